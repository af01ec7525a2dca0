//! Sleeping until a completion queue has news (`-e`).

use std::cell::Cell;

use example_support::AnyError;
use ibverbs::{CompletionChannel, CompletionQueue, Notification};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// How long a sleep takes at most, so that a dead peer is noticed.
const LONGEST: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The channel of this side's queues, and which of them will ring.
pub(crate) struct Bell<'r, 'a> {
    channel: &'r CompletionChannel<'a>,
    sends: Rope<'r, 'a>,
    receives: Rope<'r, 'a>,
}

/// Which queues have what a loop waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queues {
    Sends,
    Receives,
    Both,
}

/// A queue, and whether its next completion raises an event or has raised one that nobody took.
struct Rope<'r, 'a> {
    queue: &'r CompletionQueue<'a>,
    armed: Cell<bool>,
}

impl<'r, 'a> Bell<'r, 'a> {
    /// The bell of two queues that were made with this channel.
    pub(crate) fn new(
        channel: &'r CompletionChannel<'a>,
        sends: &'r CompletionQueue<'a>,
        receives: &'r CompletionQueue<'a>,
    ) -> Self {
        let rope = |queue| Rope { queue, armed: Cell::new(false) };
        Self { channel, sends: rope(sends), receives: rope(receives) }
    }

    /// Arms the queues that are not armed yet; if all are, sleeps until one of them has news, or for a while. Whether
    /// that while passed in silence.
    ///
    /// Between the two calls the queues have to be polled: what is in a queue when it is armed raises no event.
    pub(crate) fn rest(&self, queues: Queues) -> Result<bool, AnyError> {
        let sends = queues != Queues::Receives && self.sends.arm()?;
        let receives = queues != Queues::Sends && self.receives.arm()?;
        if sends || receives {
            return Ok(false);
        }
        match poll(&mut [PollFd::new(self.channel, PollFlags::IN)], Some(&LONGEST)) {
            Ok(0) | Err(Errno::INTR) => return Ok(true),
            Ok(_) => {}
            Err(error) => return Err(format!("waiting for an event: {error}").into()),
        }
        // One at a time: a second one is still there the next time.
        if let Some(queue) = self.channel.try_next_event()? {
            for rope in [&self.sends, &self.receives] {
                if rope.queue.id() == queue {
                    rope.armed.set(false);
                }
            }
        }
        Ok(false)
    }
}

impl Rope<'_, '_> {
    /// Whether it was not armed before.
    fn arm(&self) -> Result<bool, AnyError> {
        let unarmed = !self.armed.replace(true);
        if unarmed {
            self.queue.request_notification(Notification::Any)?;
        }
        Ok(unarmed)
    }
}
