//! One queue over RDMA: capsules in sends and receives.
//!
//! The laws of this module:
//!
//! 1. A receive is posted for every command that can be in flight before its command is sent, and
//!    posted again before the next command is.
//! 2. The place of a command in the capsule memory is not written again before its response came,
//!    which proves that the target has received the capsule.
//! 3. At least one send in every half round of the send queue is signaled, and no more are posted
//!    than it has room for.

use std::{
    array,
    collections::VecDeque,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ibverbs::{
    Access, Completion, CompletionChannel, CompletionQueue, Inline, MemoryRegion, Notification,
    PageAligned, ProtectionDomain, QueuePair, Rc, RecvWr, SendWr,
    connection::{EventChannel, EventKind, Identifier},
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::{
    Error, Result,
    rdma::{timespec, transport_error},
    transport::{Channel, ChannelParameters, Response, Waiter},
    wire::{self, Command},
};

/// Requests that are posted behind one doorbell.
const BATCH: usize = 16;

/// Bytes between two response places: a cache line, so that two of them never share one.
const RESPONSE_STRIDE: usize = 64;

/// Marks the identifier of a send; the other bits count sends.
const SEND: u64 = 1 << 63;

/// Empty polls between two looks for an end of the connection.
const POLLS_PER_LOOK: u32 = 1024;

/// Waits between two looks, as far as they count as polls.
const ARMS_PER_LOOK: u32 = 16;

/// One queue.
#[derive(Debug)]
pub(crate) struct RdmaChannel {
    pair: QueuePair<'static, Rc>,
    completions: Arc<CompletionQueue<'static>>,
    link: Arc<Link>,
    /// Entries of the submission queue, of which the receives and the capsules may be more.
    entries: u16,
    capsules: MemoryRegion<'static, PageAligned>,
    capsule_stride: usize,
    responses: MemoryRegion<'static, PageAligned>,
    /// Capsules that were not posted yet.
    pending: VecDeque<Pending>,
    /// Receives to be posted again.
    empty: Vec<u16>,
    arrived: VecDeque<Response>,
    /// Sends that were posted, and sends that are known to have completed.
    posted: u64,
    completed: u64,
    /// One send in so many is signaled.
    signal_every: u64,
    polls: u32,
}

#[derive(Debug)]
struct Pending {
    place: u16,
    length: usize,
    /// Sent in place of the capsule memory if nothing follows the command.
    command: [u8; Command::BYTES],
}

/// What waiting needs of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    queue: u16,
    events: EventChannel,
    identifier: Identifier,
    completions: Arc<CompletionChannel<'static>>,
    is_ended: AtomicBool,
    /// The queue was armed, and the event that this raises was not taken.
    is_armed: AtomicBool,
}

impl RdmaChannel {
    /// Takes over a connection, and posts as many receives as the target was told; `agreed` entries are used.
    pub(crate) fn new(
        pair: QueuePair<'static, Rc>,
        completions: Arc<CompletionQueue<'static>>,
        link: Link,
        domain: &Arc<ProtectionDomain<'static>>,
        parameters: &ChannelParameters,
        agreed: u16,
    ) -> Result<Self> {
        let entries = usize::from(parameters.entries);
        let capsule = Command::BYTES + parameters.in_capsule_bytes;
        let capsule_stride = capsule.next_multiple_of(64);
        let register = |length, access| {
            PageAligned::new(length)
                .and_then(|memory| MemoryRegion::register(domain, memory, access))
                .map_err(|error| transport_error("registering capsules", parameters.queue, error))
        };
        let mut channel = Self {
            capsules: register(entries * capsule_stride, Access::empty())?,
            responses: register(entries * RESPONSE_STRIDE, Access::LOCAL_WRITE)?,
            pair,
            completions,
            link: Arc::new(link),
            entries: agreed,
            capsule_stride,
            pending: VecDeque::with_capacity(entries),
            empty: (0..parameters.entries).collect(),
            arrived: VecDeque::with_capacity(entries),
            posted: 0,
            completed: 0,
            signal_every: u64::from(parameters.entries / 2).max(1),
            polls: 0,
        };
        channel.post_receives()?;
        Ok(channel)
    }

    fn failed<E>(&self, operation: &'static str) -> impl Fn(E) -> Error + use<E>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let queue = self.link.queue;
        move |error| transport_error(operation, queue, error)
    }

    fn post_receives(&mut self) -> Result<()> {
        while !self.empty.is_empty() {
            let count = self.empty.len().min(BATCH);
            let places = &self.empty[self.empty.len() - count..];
            let mut failure = None;
            let mut batch: [RecvWr<'_>; BATCH] = array::from_fn(|index| {
                let Some(place) = places.get(index) else { return RecvWr::new(0) };
                let start = usize::from(*place) * RESPONSE_STRIDE;
                match self.responses.segment(start..start + RESPONSE_STRIDE) {
                    Ok(segment) => RecvWr::to(u64::from(*place), segment),
                    Err(error) => {
                        failure = Some(error);
                        RecvWr::new(0)
                    }
                }
            });
            if let Some(error) = failure {
                return Err(self.failed("posting a receive")(error));
            }
            self.pair
                .post_receive(&mut batch[..count])
                .map_err(self.failed("posting a receive"))?;
            let left = self.empty.len() - count;
            self.empty.truncate(left);
        }
        Ok(())
    }

    fn post_sends(&mut self) -> Result<()> {
        let capacity = u64::from(self.pair.capabilities().send_requests);
        loop {
            let room = capacity.saturating_sub(self.posted - self.completed);
            let count = self.pending.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            match count {
                0 => return Ok(()),
                1 => self.post_batch::<1>(1)?,
                2..=4 => self.post_batch::<4>(count)?,
                _ => self.post_batch::<BATCH>(count.min(BATCH))?,
            }
        }
    }

    /// Posts the first `count` capsules that wait, at most `N`.
    fn post_batch<const N: usize>(&mut self, count: usize) -> Result<()> {
        let mut failure = None;
        let mut number = self.posted;
        let mut batch: [SendWr<'_, Rc>; N] = array::from_fn(|index| {
            let Some(pending) = self.pending.get(index) else {
                return SendWr::send(Inline(&[]));
            };
            number += 1;
            let request = match self.gather(pending) {
                Ok(request) => request,
                Err(error) => {
                    failure = Some(error);
                    SendWr::send(Inline(&[]))
                }
            };
            if number.is_multiple_of(self.signal_every) {
                request.id(SEND | number).signaled()
            } else {
                request.id(SEND | number)
            }
        });
        if let Some(error) = failure {
            return Err(self.failed("posting a command")(error));
        }
        self.pair.post_send(&mut batch[..count]).map_err(self.failed("posting a command"))?;
        self.pending.drain(..count);
        self.posted += u64::try_from(count).unwrap_or(0);
        Ok(())
    }

    fn gather<'c>(&'c self, pending: &'c Pending) -> ibverbs::Result<SendWr<'c, Rc>> {
        if pending.length == Command::BYTES && self.is_inline() {
            return Ok(SendWr::send(Inline(&pending.command)));
        }
        let start = usize::from(pending.place) * self.capsule_stride;
        Ok(SendWr::send(self.capsules.segment(start..start + pending.length)?))
    }

    fn is_inline(&self) -> bool {
        usize::try_from(self.pair.capabilities().inline).is_ok_and(|most| most >= Command::BYTES)
    }

    fn take_completions(&mut self) -> Result<()> {
        let mut slots = Completion::slots::<BATCH>();
        let queue = Arc::clone(&self.completions);
        let found = queue.poll(&mut slots).map_err(self.failed("polling"))?;
        // A response beside one that failed counts nevertheless: its command was carried out.
        let mut outcome = Ok(());
        for completion in found {
            let taken = self.take_completion(completion);
            outcome = outcome.and(taken);
        }
        outcome
    }

    fn take_completion(&mut self, completion: &Completion) -> Result<()> {
        let id = completion.id();
        let is_send = id & SEND != 0;
        let what = if is_send { "sending a command" } else { "receiving a response" };
        let work = completion.outcome().map_err(self.failed(what))?;
        if is_send {
            self.completed = id & !SEND;
            return Ok(());
        }
        let place = u16::try_from(id).unwrap_or(0);
        let mut bytes = [0; wire::Completion::BYTES];
        self.responses
            .bytes()
            .read(usize::from(place) * RESPONSE_STRIDE, &mut bytes)
            .map_err(self.failed("reading a response"))?;
        self.arrived.push_back(Response { bytes, length: work.byte_length() });
        self.empty.push(place);
        Ok(())
    }

    /// Looks whether the connection has ended, without waiting.
    fn look(&self) -> Result<()> {
        self.link.take_events()?;
        self.link.check()
    }
}

impl Channel for RdmaChannel {
    fn entries(&self) -> u16 {
        self.entries
    }

    fn send(&mut self, place: u16, command: &Command, data: &[u8]) -> Result<()> {
        self.link.check()?;
        let length = Command::BYTES + data.len();
        if !(data.is_empty() && self.is_inline()) {
            let start = usize::from(place) * self.capsule_stride;
            let bytes = self.capsules.bytes();
            bytes
                .write(start, command.as_bytes())
                .and_then(|()| bytes.write(start + Command::BYTES, data))
                .map_err(self.failed("writing a capsule"))?;
        }
        self.pending.push_back(Pending { place, length, command: *command.as_bytes() });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.post_receives()?;
        self.post_sends()
    }

    fn poll(&mut self) -> Result<Option<Response>> {
        if let Some(response) = self.arrived.pop_front() {
            return Ok(Some(response));
        }
        let completed = self.completed;
        let taken = self.take_completions();
        if let Some(response) = self.arrived.pop_front() {
            // What came before a failure counts; a queue that failed once fails again.
            return Ok(Some(response));
        }
        taken?;
        if self.completed != completed {
            self.flush()?;
        }
        self.polls += 1;
        if self.polls < POLLS_PER_LOOK && self.link.queue > 0 {
            return Ok(None);
        }
        self.polls = 0;
        self.look().map(|()| None).or_else(|ended| {
            // The last responses may have come in just before.
            let taken = self.take_completions();
            match self.arrived.pop_front() {
                Some(response) => Ok(Some(response)),
                None => taken.and(Err(ended)),
            }
        })
    }

    fn arm(&mut self) -> Result<Arc<dyn Waiter>> {
        // Whoever waits looks at both descriptors, so that this is for those who watch only one.
        self.polls += POLLS_PER_LOOK / ARMS_PER_LOOK;
        // Each time that the queue is armed raises one event; whoever armed it and then did not wait
        // left that for later.
        if self.link.is_armed.load(Ordering::Acquire) {
            self.link.take_completion_event()?;
        }
        if !self.link.is_armed.swap(true, Ordering::AcqRel) {
            self.completions
                .request_notification(Notification::Any)
                .map_err(self.failed("arming the completion queue"))?;
        }
        let waiter: Arc<dyn Waiter> = self.link.clone();
        Ok(waiter)
    }
}

impl Drop for RdmaChannel {
    fn drop(&mut self) {
        // The target is told, and reaches nothing any more once the queue pair is gone, which its
        // own drop sees to.
        if let Err(error) = self.pair.fail() {
            log::debug!("the queue pair of queue {} did not fail: {error}", self.link.queue);
        }
        if let Err(error) = self.link.identifier.disconnect() {
            log::debug!("queue {} was not connected any more: {error}", self.link.queue);
        }
    }
}

impl Link {
    pub(crate) fn new(
        queue: u16,
        events: EventChannel,
        identifier: Identifier,
        completions: Arc<CompletionChannel<'static>>,
    ) -> Self {
        let (is_ended, is_armed) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { queue, events, identifier, completions, is_ended, is_armed }
    }

    /// Takes the event that an armed queue has raised, if it has.
    fn take_completion_event(&self) -> Result<()> {
        let taken = self.completions.try_next_event();
        let failed = |error| transport_error("reading a completion event", self.queue, error);
        if taken.map_err(failed)?.is_some() {
            self.is_armed.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Takes what the connection manager has to say.
    fn take_events(&self) -> Result<()> {
        let failed = |error| transport_error("reading connection events", self.queue, error);
        while let Some(event) = self.events.try_event().map_err(failed)? {
            log::debug!("queue {}: {}", self.queue, event.kind());
            if matches!(event.kind(), EventKind::DISCONNECTED | EventKind::DEVICE_REMOVAL) {
                self.is_ended.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.is_ended.load(Ordering::Acquire) {
            return Err(transport_error("keeping the connection", self.queue, ENDED));
        }
        Ok(())
    }
}

/// The cause of an error whose connection was ended by the target.
const ENDED: &str = "the target has ended the connection";

impl Waiter for Link {
    fn wait(&self, at_most: Duration) -> Result<()> {
        let mut descriptors = [
            PollFd::from_borrowed_fd(self.completions.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.events.as_fd(), PollFlags::IN),
        ];
        match poll(&mut descriptors, Some(&timespec(at_most))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(transport_error("waiting", self.queue, errno)),
        }
        let has = |index: usize| !descriptors[index].revents().is_empty();
        let (has_completion, has_event) = (has(0), has(1));
        if has_completion {
            self.take_completion_event()?;
        }
        if has_event {
            self.take_events()?;
        }
        Ok(())
    }

    #[cfg(feature = "tokio")]
    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        Some(self.completions.as_fd())
    }
}
