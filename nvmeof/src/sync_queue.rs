//! A queue whose commands are waited for: the admin queue, and an I/O queue until it is connected.
//!
//! Beside the command that is waited for, asynchronous event requests and keep-alives are in
//! flight. Whoever waits drives them too, so that a slow command cannot let the controller's timer
//! run out.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    CommandSet, Error, Result, Violation,
    queue::CommandTable,
    transport::{Channel, ChannelParameters, Transport},
    wire::{Command, Completion, admin, event::AsynchronousEvent},
};

/// Events that nobody asked for yet are kept up to this many; then the oldest go.
const MAX_EVENTS: usize = 64;

/// A queue and what is in flight on it.
#[derive(Debug)]
pub(crate) struct SyncQueue {
    number: u16,
    entries: u16,
    channel: Box<dyn Channel>,
    table: CommandTable<Tag>,
    /// The completion of the command that is waited for.
    completed: Option<Completion>,
    events: VecDeque<AsynchronousEvent>,
    keep_alive: Option<KeepAlive>,
    timeout: Duration,
}

/// What a command in flight is for, and when it is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    /// Somebody waits for it, and looks at the clock.
    Waited,
    /// Completes when there is an event, if ever.
    Event,
    KeepAlive {
        sent: Instant,
        patience: Duration,
    },
    Abort {
        sent: Instant,
        patience: Duration,
    },
}

impl Tag {
    /// What to say of it if its answer is late.
    fn late(self, now: Instant) -> Option<Error> {
        let (operation, sent, after) = match self {
            Self::Waited | Self::Event => return None,
            Self::KeepAlive { sent, patience } => ("keep alive", sent, patience),
            Self::Abort { sent, patience } => ("abort", sent, patience),
        };
        (now.saturating_duration_since(sent) >= after)
            .then_some(Error::TimedOut { operation, after })
    }
}

#[derive(Debug)]
struct KeepAlive {
    interval: Duration,
    next: Instant,
    /// How long its answer may take.
    patience: Duration,
}

impl SyncQueue {
    /// Opens a channel for a queue. Commands on it are waited for up to `timeout`.
    pub(crate) fn open(
        transport: &dyn Transport,
        parameters: &ChannelParameters,
        timeout: Duration,
    ) -> Result<Self> {
        let channel = transport.open(parameters)?;
        let entries = channel.entries();
        Ok(Self {
            number: parameters.queue,
            entries,
            channel,
            // One entry stays free, so that a full queue and an empty one can be told apart.
            table: CommandTable::new(entries.saturating_sub(1)),
            completed: None,
            events: VecDeque::new(),
            keep_alive: None,
            timeout,
        })
    }

    /// The channel, for a queue that is connected now.
    pub(crate) fn into_channel(self) -> Box<dyn Channel> {
        self.channel
    }

    pub(crate) const fn number(&self) -> u16 {
        self.number
    }

    /// Entries of the submission queue, as host and target agreed.
    pub(crate) const fn entries(&self) -> u16 {
        self.entries
    }

    /// Sends a command and waits for its completion, whatever its status.
    pub(crate) fn complete(
        &mut self,
        operation: &'static str,
        command: Command,
    ) -> Result<Completion> {
        let deadline = Instant::now() + self.timeout;
        self.completed = None;
        self.start(Tag::Waited, command)?;
        loop {
            let driven = self.drive();
            // An answer that came before the connection ended counts.
            if let Some(completion) = self.completed.take() {
                return Ok(completion);
            }
            driven?;
            let now = Instant::now();
            if now >= deadline {
                // The answer may still come, and would be taken for that of the next command.
                return Err(Error::TimedOut { operation, after: self.timeout });
            }
            let waited = self.wait((deadline - now).min(Duration::from_millis(100)));
            if self.completed.is_none() {
                waited?;
            }
        }
    }

    /// Sends a command and waits for its success.
    pub(crate) fn execute(
        &mut self,
        operation: &'static str,
        set: CommandSet,
        command: Command,
    ) -> Result<Completion> {
        let completion = self.complete(operation, command)?;
        if completion.status.is_success() {
            Ok(completion)
        } else {
            Err(Error::Command { operation, set, status: completion.status })
        }
    }

    /// Asks for one asynchronous event at a time from now on.
    pub(crate) fn request_events(&mut self) -> Result<()> {
        self.start(Tag::Event, admin::asynchronous_event_request())
    }

    /// Sends keep-alives from now on, two in each `time`, after which a controller without a sign of life is given up by
    /// the other side: this side does not wait longer for an answer either.
    pub(crate) fn keep_alive(&mut self, time: Duration) {
        let interval = time / 2;
        let (next, patience) = (Instant::now() + interval, time.min(self.timeout));
        self.keep_alive = Some(KeepAlive { interval, next, patience });
    }

    /// Asks the controller to end a command of another queue early.
    pub(crate) fn abort(&mut self, queue: u16, command_id: u16) -> Result<()> {
        if !self.table.has_credit() {
            return Ok(());
        }
        let (sent, patience) = (Instant::now(), self.timeout);
        self.start(Tag::Abort { sent, patience }, admin::abort(queue, command_id))
    }

    /// Takes an event that has come.
    pub(crate) fn next_event(&mut self) -> Option<AsynchronousEvent> {
        self.events.pop_front()
    }

    /// Takes what has come, sends what is due. Never waits.
    pub(crate) fn drive(&mut self) -> Result<()> {
        while let Some(response) = self.channel.poll()? {
            let completion = check(self.number, self.entries, &response)?;
            let tag = self
                .table
                .finish(completion.command_id)
                .map_err(|violation| Error::Protocol { queue: self.number, violation })?;
            match tag {
                Tag::Waited => self.completed = Some(completion),
                Tag::Event if completion.status.is_success() => {
                    if self.events.len() == MAX_EVENTS {
                        self.events.pop_front();
                    }
                    self.events.push_back(AsynchronousEvent::from_dword(completion.dword0()));
                    self.request_events()?;
                }
                Tag::KeepAlive { .. } if !completion.status.is_success() => {
                    // The association is over, and with it whatever else is in flight here.
                    let operation = "keep alive";
                    let status = completion.status;
                    let cause = Error::Command { operation, set: CommandSet::Admin, status };
                    return Err(Error::ConnectionLost { operation, cause: Arc::new(cause) });
                }
                // A controller without events refuses the request; it is not asked again.
                // A command that could not be aborted runs into its time-out.
                Tag::Event | Tag::KeepAlive { .. } | Tag::Abort { .. } => {}
            }
        }
        let now = Instant::now();
        if let Some(late) = self.table.iter_mut().find_map(|(_, tag)| tag.late(now)) {
            return Err(late);
        }
        if let Some(keep_alive) = &mut self.keep_alive
            && now >= keep_alive.next
        {
            keep_alive.next = now + keep_alive.interval;
            let (sent, patience) = (now, keep_alive.patience);
            if self.table.has_credit() {
                self.start(Tag::KeepAlive { sent, patience }, admin::keep_alive())?;
            }
        }
        Ok(())
    }

    /// When the next keep-alive is due.
    pub(crate) fn next_keep_alive(&self) -> Option<Instant> {
        self.keep_alive.as_ref().map(|keep_alive| keep_alive.next)
    }

    fn start(&mut self, tag: Tag, command: Command) -> Result<()> {
        let (place, id) =
            self.table.start(tag).ok_or(Error::QueueFull { places: self.table.capacity() })?;
        self.channel.send(place, &command.id(id), &[])?;
        self.channel.flush()
    }

    fn wait(&mut self, at_most: Duration) -> Result<()> {
        // Most answers come at once; waiting for an interrupt would double the time they take.
        for _ in 0..100 {
            self.drive()?;
            if self.completed.is_some() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let waiter = self.channel.arm()?;
        self.drive()?;
        if self.completed.is_none() { waiter.wait(at_most) } else { Ok(()) }
    }
}

/// Checks a response capsule as far as that needs no table.
pub(crate) fn check(
    queue: u16,
    entries: u16,
    response: &crate::transport::Response,
) -> Result<Completion> {
    let violated = |violation| Error::Protocol { queue, violation };
    if response.length != 16 {
        return Err(violated(Violation::CapsuleSize { bytes: response.length }));
    }
    let completion = Completion::parse(&response.bytes)?;
    let head = completion.submission_queue_head;
    // All ones says that the target does not keep the head.
    if head >= entries && head != u16::MAX {
        return Err(violated(Violation::QueueHead { head, entries }));
    }
    Ok(completion)
}
