//! Drives one I/O queue: submits requests as commands, takes completions, follows the controller
//! from one association to the next.
//!
//! The laws of this module:
//!
//! 1. A request ends once, in a result, and not before each of its commands has completed or the
//!    channel that they were sent on has been dropped. Its memory is the target's until then.
//! 2. A channel is dropped at its first error. What was in flight on it follows
//!    [`Progress::lost`].
//! 3. Time is counted in ticks that only pass while somebody polls, so that a program that was
//!    stopped for a while does not take its own pause for the target's.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Buffer, CommandSet, Error, Memory, Result, Status,
    association::Limits,
    queue::CommandTable,
    ranges::{Deallocation, Ranges},
    request::{Kind, Operation, Part, Progress},
    shared::{Connected, Liveness, Shared, Taken},
    sync_queue::check,
    transport::{Channel, Response, Waiter},
    wire::nvm::Range,
};

/// A command is late after this many ticks.
const LATE: u64 = 8;

/// And its connection is given up after this many, if an Abort did not end it.
const GIVEN_UP: u64 = 10;

/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 64;

/// One I/O queue and the requests on it.
#[derive(Debug)]
pub(crate) struct Engine {
    shared: Arc<Shared>,
    /// Counted from 0; the queue's number is one more.
    index: usize,
    number: u16,
    /// The association of `channel`; 0 when there is none.
    association: u64,
    channel: Option<Box<dyn Channel>>,
    limits: Limits,
    table: CommandTable<Tag>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Requests with parts to send.
    ready: VecDeque<usize>,
    /// Parts that are sent again at a certain time.
    delayed: Vec<(Instant, usize, Part)>,
    /// Requests that ended and were not taken.
    finished: VecDeque<usize>,
    /// In-capsule data on its way from the user's memory to the channel.
    staging: Vec<u8>,
    /// Openings of namespaces that are not what they were.
    stale: Vec<u32>,
    tick: u64,
    last_tick: Instant,
    polls: u32,
}

#[derive(Clone, Copy, Debug)]
struct Tag {
    slot: usize,
    part: Part,
    tick: u64,
    is_aborted: bool,
}

#[derive(Debug)]
enum Slot {
    Free,
    /// With the memory of a request that brings its own.
    Active(Progress, Option<Buffer>),
    Finished(Result<()>),
}

impl Engine {
    /// The queue with this index, with room for twice as many requests as commands.
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Self {
        let limits = shared.limits_of(index);
        let places = usize::from(limits.queue_entries.max(8)) * 2;
        Self {
            number: u16::try_from(index + 1).unwrap_or(u16::MAX),
            shared,
            index,
            association: 0,
            channel: None,
            limits,
            table: CommandTable::new(limits.queue_entries.saturating_sub(1)),
            slots: std::iter::repeat_with(|| Slot::Free).take(places).collect(),
            free: (0..places).rev().collect(),
            ready: VecDeque::with_capacity(places),
            delayed: Vec::new(),
            finished: VecDeque::with_capacity(places),
            staging: vec![0; limits.in_capsule_bytes],
            stale: Vec::new(),
            tick: 0,
            last_tick: Instant::now(),
            polls: 0,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Commands that can be in flight at once.
    pub(crate) fn depth(&self) -> usize {
        self.table.capacity()
    }

    /// Requests that can be submitted and not taken at once.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Whether a request can be submitted now.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether the present association has this queue, as far as there is one.
    pub(crate) fn is_granted(&mut self) -> bool {
        self.follow();
        let is_missing = self.association != 0 && self.channel.is_none();
        !is_missing
    }

    /// Whether every request that was submitted has ended, and its result was taken.
    pub(crate) fn is_unused(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Requests that were submitted and have not ended.
    pub(crate) fn pending(&self) -> usize {
        self.slots.len() - self.free.len() - self.finished.len()
    }

    /// Takes a request and gives its slot. Its command leaves with the next poll.
    ///
    /// `memory` is looked at only for data that travels in the capsule; `own` is what a request
    /// that deallocates brings along.
    pub(crate) fn submit(
        &mut self,
        operation: Operation,
        memory: Option<&dyn Memory>,
        own: Option<Deallocation>,
    ) -> Result<usize> {
        self.follow();
        match self.shared.liveness() {
            Liveness::Over => return Err(Error::Disconnected { cause: self.shared.cause() }),
            Liveness::Live(_) if !self.is_granted() => return Err(missing_queue()),
            Liveness::Live(_) | Liveness::Waiting => {}
        }
        if self.stale.contains(&operation.opening) {
            return Err(Error::NamespaceChanged { namespace: operation.namespace });
        }
        let Some(slot) = self.free.last().copied() else {
            return Err(Error::QueueFull { places: self.slots.len() });
        };
        // The user's own code copies the data; if it panics, the place is not taken yet.
        let in_capsule = memory.and_then(|memory| self.stage(&operation, memory));
        self.free.pop();
        let (ranges, own) = match own {
            Some(Deallocation { ranges, memory }) => (ranges, Some(memory)),
            None => (Ranges::default(), None),
        };
        let mut progress = Progress::new(operation, ranges, self.shared.options.retries);
        let first = in_capsule.and_then(|bytes| Some((progress.next_part(&self.limits)?, bytes)));
        self.slots[slot] = Slot::Active(progress, own);
        match first {
            Some((part, bytes)) => self.send(slot, part, &operation, bytes),
            None => self.ready.push_back(slot),
        }
        self.issue();
        Ok(slot)
    }

    /// Sends what was submitted, takes what has come. Never waits.
    pub(crate) fn poll(&mut self) {
        self.follow();
        self.receive();
        self.issue();
        if let Some(channel) = &mut self.channel
            && let Err(error) = channel.flush()
        {
            self.lose(error);
        }
        self.polls += 1;
        if self.polls >= POLLS_PER_LOOK {
            self.look_at_clock();
        }
    }

    /// Takes the next request that ended: its slot and its result.
    pub(crate) fn next_finished(&mut self) -> Option<(usize, Result<()>)> {
        let slot = self.finished.pop_front()?;
        Some((slot, self.free_slot(slot)?))
    }

    /// Takes the result of one request, if it has ended.
    pub(crate) fn take(&mut self, slot: usize) -> Option<Result<()>> {
        let position = self.finished.iter().position(|finished| *finished == slot)?;
        self.finished.remove(position);
        self.free_slot(slot)
    }

    /// Whether a request ended that was not taken.
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Prepares for waiting: gives what to wait on. Whoever waits polls once more before, and not
    /// longer than [`Engine::patience`] at a time.
    pub(crate) fn arm(&mut self) -> Option<Arc<dyn Waiter>> {
        self.look_at_clock();
        match self.channel.as_mut()?.arm() {
            Ok(waiter) => Some(waiter),
            Err(error) => {
                self.lose(error);
                None
            }
        }
    }

    /// How long to wait at most before the next poll, for time-outs and delays to be noticed.
    pub(crate) fn patience(&self) -> Duration {
        self.tick_length().min(Duration::from_millis(20))
    }

    /// How long to poll before it pays to wait.
    pub(crate) fn spin(&self) -> Duration {
        self.shared.options.spin
    }

    /// Waits until a response may have come or the association changed, or this time has passed.
    pub(crate) fn wait(&mut self, at_most: Duration) {
        let at_most = at_most.min(self.patience());
        let Some(waiter) = self.arm() else {
            self.shared.wait_while(self.shared.liveness(), at_most);
            return;
        };
        self.poll();
        if self.finished.is_empty()
            && let Err(error) = waiter.wait(at_most)
        {
            self.lose(error);
        }
    }

    /// Gives up the connection, and with it everything in flight.
    pub(crate) fn abandon(&mut self, error: Error) {
        if self.association != 0 {
            self.lose(error);
        }
    }

    /// What to say of a queue that is dropped with requests in flight.
    pub(crate) const fn dropped(&self) -> Error {
        Error::QueueDropped { queue: self.number }
    }

    /// Ends all requests without telling anybody; only after [`Engine::abandon`].
    pub(crate) fn forget_requests(&mut self) {
        self.fail_all(|| Error::Closed);
        while let Some(slot) = self.finished.pop_front() {
            self.free_slot(slot);
        }
    }

    fn receive(&mut self) {
        let Some(mut channel) = self.channel.take() else { return };
        loop {
            let outcome = channel.poll().and_then(|response| match response {
                Some(response) => self.complete(&response).map(|()| true),
                None => Ok(false),
            });
            match outcome {
                Ok(true) => {}
                Ok(false) => {
                    self.channel = Some(channel);
                    return;
                }
                Err(error) => {
                    drop(channel);
                    self.lose(error);
                    return;
                }
            }
        }
    }

    fn complete(&mut self, response: &Response) -> Result<()> {
        let completion = check(self.number, self.limits.queue_entries, response)?;
        let tag = self
            .table
            .finish(completion.command_id)
            .map_err(|violation| Error::Protocol { queue: self.number, violation })?;
        let Some(Slot::Active(progress, _)) = self.slots.get_mut(tag.slot) else { return Ok(()) };
        let status = completion.status;
        let operation = progress.operation.kind.name();
        if status.is_success() {
            progress.succeeded();
            if progress.operation.kind == Kind::Deallocate && progress.has_more() {
                self.ready.push_back(tag.slot);
            }
        } else if tag.is_aborted && status.is_same_code(Status::ABORTED_BY_REQUEST) {
            let after = self.shared.options.command_timeout;
            progress.failed(Error::TimedOut { operation, after });
        } else if status.is_transient()
            && let Some(again) = progress.delay(tag.part)
        {
            let delay = match usize::from(status.retry_delay_index()).checked_sub(1) {
                Some(index) => self.limits.retry_delays.get(index).copied().unwrap_or_default(),
                None => Duration::ZERO,
            };
            self.delayed.push((Instant::now() + delay, tag.slot, again));
            return Ok(());
        } else {
            progress.failed(Error::Command { operation, set: CommandSet::Nvm, status });
        }
        self.settle(tag.slot);
        Ok(())
    }

    /// Makes commands of requests, one part of each in turn, while there is credit.
    fn issue(&mut self) {
        while self.channel.is_some() && self.table.has_credit() {
            let Some(slot) = self.ready.pop_front() else { return };
            let Some(Slot::Active(progress, _)) = self.slots.get_mut(slot) else { continue };
            let operation = progress.operation;
            let Some(part) = progress.next_part(&self.limits) else { continue };
            if progress.has_more() {
                self.ready.push_back(slot);
            }
            self.send(slot, part, &operation, 0);
        }
    }

    /// Sends one part, with its first bytes of the staging area in the capsule if there are any.
    fn send(&mut self, slot: usize, part: Part, operation: &Operation, in_capsule: usize) {
        let in_capsule = match operation.kind {
            Kind::Deallocate => match self.place_ranges(slot, part) {
                Ok(bytes) => bytes,
                Err(error) => return self.fail_part(slot, error),
            },
            _ => in_capsule,
        };
        let tag = Tag { slot, part, tick: self.tick, is_aborted: false };
        let (Some((place, id)), Some(channel)) = (self.table.start(tag), &mut self.channel) else {
            return;
        };
        let command = match in_capsule {
            0 => operation.command(part),
            _ => operation.command_in_capsule(part),
        };
        let data = self.staging.get(..in_capsule).unwrap_or_default();
        if let Err(error) = channel.send(place, &command.id(id), data) {
            // It did not leave, so that it can leave on another connection without any doubt.
            if let Ok(tag) = self.table.finish(id)
                && let Some(Slot::Active(progress, _)) = self.slots.get_mut(tag.slot)
            {
                progress.not_sent(tag.part);
            }
            self.ready.push_front(slot);
            self.lose(error);
        }
    }

    /// Copies data that fits into a capsule to the staging area, if it can leave at once. Gives
    /// how many bytes these are.
    fn stage(&mut self, operation: &Operation, memory: &dyn Memory) -> Option<usize> {
        let bytes = usize::try_from(operation.data_bytes()).ok()?;
        let fits = operation.kind.sends_data()
            && bytes > 0
            && bytes <= self.staging.len().min(self.limits.in_capsule_bytes)
            && operation.is_single(&self.limits);
        let leaves = self.channel.is_some() && self.ready.is_empty() && self.table.has_credit();
        (fits && leaves && memory.copy_to(0, &mut self.staging[..bytes])).then_some(bytes)
    }

    /// Puts the ranges of a part where its command has them: into the staging area, from which they travel in the
    /// capsule, or else into the memory of the request, which no other command in flight uses. Gives how many bytes are
    /// for the capsule.
    fn place_ranges(&mut self, slot: usize, part: Part) -> Result<usize> {
        let Some(Slot::Active(progress, Some(own))) = self.slots.get(slot) else {
            return Err(Error::Closed);
        };
        let bytes = usize::from(part.ranges) * Range::BYTES;
        let ranges = progress.ranges_of(part, &self.limits);
        if bytes <= self.staging.len().min(self.limits.in_capsule_bytes) {
            for (place, range) in self.staging.chunks_exact_mut(Range::BYTES).zip(ranges) {
                place.copy_from_slice(&range.to_bytes());
            }
            return Ok(bytes);
        }
        for (index, range) in ranges.enumerate() {
            own.write_at(index * Range::BYTES, &range.to_bytes())?;
        }
        Ok(0)
    }

    /// A part that was not sent fails, and its request with it.
    fn fail_part(&mut self, slot: usize, error: Error) {
        if let Some(Slot::Active(progress, _)) = self.slots.get_mut(slot) {
            progress.failed(error);
        }
        self.settle(slot);
    }

    /// Ends a request if nothing of it is left.
    fn settle(&mut self, slot: usize) {
        let Some(place) = self.slots.get_mut(slot) else { return };
        if !matches!(place, Slot::Active(progress, _) if progress.is_over()) {
            return;
        }
        if let Slot::Active(progress, own) = std::mem::replace(place, Slot::Free) {
            *place = Slot::Finished(progress.into_result());
            drop(own);
            self.finished.push_back(slot);
        }
    }

    fn free_slot(&mut self, slot: usize) -> Option<Result<()>> {
        match std::mem::replace(self.slots.get_mut(slot)?, Slot::Free) {
            Slot::Finished(result) => {
                self.free.push(slot);
                Some(result)
            }
            Slot::Free | Slot::Active(..) => None,
        }
    }

    /// Lets ticks pass; aborts what is late and gives up what stays so.
    fn look_at_clock(&mut self) {
        self.polls = 0;
        let now = Instant::now();
        if !self.delayed.is_empty() {
            self.end_delays(now);
        }
        if now.duration_since(self.last_tick) < self.tick_length() {
            return;
        }
        self.last_tick = now;
        self.tick += 1;
        let mut is_given_up = false;
        for (id, tag) in self.table.iter_mut() {
            let age = self.tick - tag.tick;
            if age > LATE && !tag.is_aborted {
                tag.is_aborted = true;
                self.shared.ask_abort(self.association, self.number, id);
            }
            is_given_up |= age > GIVEN_UP;
        }
        if is_given_up {
            let after = self.shared.options.command_timeout;
            self.lose(Error::TimedOut { operation: "an I/O command", after });
        }
    }

    fn end_delays(&mut self, now: Instant) {
        let mut index = 0;
        while let Some((due, slot, part)) = self.delayed.get(index).copied() {
            if due > now {
                index += 1;
                continue;
            }
            self.delayed.swap_remove(index);
            if let Some(Slot::Active(progress, _)) = self.slots.get_mut(slot) {
                progress.end_delay(part);
                self.ready.push_back(slot);
                self.settle(slot);
            }
        }
    }

    fn tick_length(&self) -> Duration {
        let eighth = self.shared.options.command_timeout / 8;
        eighth.max(Duration::from_millis(1))
    }

    /// Follows the controller to its present association.
    fn follow(&mut self) {
        match self.shared.liveness() {
            Liveness::Live(live) if live == self.association => {}
            Liveness::Live(live) => {
                self.detach();
                match self.shared.take_channel(self.index, live) {
                    Taken::Channel(connected) => self.attach(live, connected),
                    Taken::Missing => {
                        self.association = live;
                        self.fail_all(missing_queue);
                    }
                    // What comes instead is seen the next time.
                    Taken::Outdated => {}
                }
            }
            Liveness::Waiting => self.detach(),
            Liveness::Over => {
                self.detach();
                let cause = self.shared.cause();
                self.fail_all(|| Error::Disconnected { cause: Arc::clone(&cause) });
            }
        }
    }

    fn attach(&mut self, association: u64, connected: Connected) {
        let Connected { channel, limits, stale } = connected;
        self.association = association;
        self.channel = Some(channel);
        if limits.queue_entries != self.limits.queue_entries {
            self.table = CommandTable::new(limits.queue_entries.saturating_sub(1));
        }
        self.staging.resize(limits.in_capsule_bytes, 0);
        self.limits = limits;
        self.stale = stale;
        self.ready.clear();
        for index in 0..self.slots.len() {
            let Some(Slot::Active(progress, _)) = self.slots.get_mut(index) else { continue };
            let Operation { opening, namespace, kind, .. } = progress.operation;
            if kind == Kind::Flush {
                // Sent now, it would speak for writes that were acknowledged before: see `Kind::after_loss`.
                let (operation, cause) = (kind.name(), self.shared.cause());
                progress.fail(Error::ConnectionLost { operation, cause });
                self.settle(index);
            } else if self.stale.contains(&opening) {
                progress.fail(Error::NamespaceChanged { namespace });
                self.settle(index);
            } else if progress.has_more() {
                self.ready.push_back(index);
            }
        }
    }

    /// This queue's connection failed: tells everybody, and lets go of it.
    fn lose(&mut self, error: Error) {
        self.shared.lose(self.association, error);
        self.detach();
    }

    /// Drops the channel, which ends the target's access, and settles what was in flight.
    fn detach(&mut self) {
        if self.association == 0 {
            return;
        }
        self.channel = None;
        self.association = 0;
        let cause = self.shared.cause();
        let retry_writes = self.shared.options.retry_writes;
        let lost: Vec<Tag> = self.table.drain().collect();
        for tag in lost {
            if let Some(Slot::Active(progress, _)) = self.slots.get_mut(tag.slot) {
                progress.lost(tag.part, retry_writes, &cause);
                self.settle(tag.slot);
            }
        }
    }

    /// Ends all requests; only without a channel.
    fn fail_all(&mut self, error: impl Fn() -> Error) {
        self.ready.clear();
        for (_, slot, part) in std::mem::take(&mut self.delayed) {
            if let Some(Slot::Active(progress, _)) = self.slots.get_mut(slot) {
                progress.end_delay(part);
            }
        }
        for slot in 0..self.slots.len() {
            if let Some(Slot::Active(progress, _)) = self.slots.get_mut(slot) {
                progress.fail(error());
                self.settle(slot);
            }
        }
    }
}

fn missing_queue() -> Error {
    Error::Unsupported {
        what: "this queue",
        reason: "the target grants fewer queues than before the connection was lost",
    }
}
