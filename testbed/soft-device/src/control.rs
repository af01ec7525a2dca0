//! What a test can make a device do: refuse calls, hold completions back, break them, count.

use std::{
    cell::Cell,
    collections::VecDeque,
    ffi::c_int,
    time::{Duration, Instant},
};

use crate::{
    completion_queue::Completion, dma::Engine, errno::Outcome, fabric::Fabric, verb::Verb,
};

/// How the next completions of a device are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// At once.
    Prompt,
    /// After a time.
    After(Duration),
    /// Not before the test says so.
    Held,
}

/// What is wrong with a completion that the device reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionFault {
    /// Another status than the true one, known to the library or not. The work itself was done.
    Status(u32),
    /// Another opcode than the true one.
    Opcode(u32),
    /// Another request number than was posted.
    WorkRequestId(u64),
    /// Another length than was transferred.
    ByteLength(u32),
    /// Another vendor error.
    VendorError(u32),
    /// Another queue pair number.
    QueuePairNumber(u32),
    /// No completion at all; its place in the send or receive queue is never freed.
    Drop,
    /// The same completion twice.
    Repeat,
}

#[derive(Debug, Clone, Copy)]
struct Refusal {
    place: usize,
    /// The call, counted from the first of this verb on the device, that is refused.
    call: u64,
    errno: c_int,
}

/// The state of a device that only tests see.
#[derive(Debug)]
pub(crate) struct Control {
    calls: [u64; Verb::COUNT],
    refusals: Vec<Refusal>,
    pub(crate) failing_deregistrations: u64,
    pub(crate) delivery: Delivery,
    held: VecDeque<Held>,
    faults: Vec<(u64, CompletionFault)>,
    completions: u64,
    pub(crate) violations: Vec<String>,
    pub(crate) engine: Option<Engine>,
    /// Writes through the engine wait for a flush.
    pub(crate) holds_inbound: bool,
    /// Where requests of scalable reliable datagrams are done out of order: the state of the dice.
    pub(crate) disorder: Option<Cell<u64>>,
}

/// A completion on its way to a queue.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) due: Option<Instant>,
    pub(crate) queue: u32,
    pub(crate) completion: Completion,
}

impl Control {
    pub(crate) fn new() -> Self {
        Self {
            calls: [0; Verb::COUNT],
            refusals: Vec::new(),
            failing_deregistrations: 0,
            delivery: Delivery::Prompt,
            held: VecDeque::new(),
            faults: Vec::new(),
            completions: 0,
            violations: Vec::new(),
            engine: None,
            holds_inbound: false,
            disorder: None,
        }
    }

    /// Counts a call; the errno if it is one that is refused.
    pub(crate) fn enter(&mut self, verb: Verb) -> Outcome {
        let place = verb.place();
        let Some(calls) = self.calls.get_mut(place) else { return Ok(()) };
        *calls += 1;
        if self.refusals.is_empty() {
            return Ok(());
        }
        let call = *calls;
        match self.refusals.iter().position(|each| each.place == place && each.call == call) {
            Some(found) => Err(self.refusals.swap_remove(found).errno),
            None => Ok(()),
        }
    }

    /// Refuses the `nth` call from now, 1 being the next.
    pub(crate) fn refuse(&mut self, place: usize, nth: u64, errno: c_int) {
        let call = self.calls(place) + nth;
        self.refusals.push(Refusal { place, call, errno });
    }

    pub(crate) fn calls(&self, place: usize) -> u64 {
        self.calls.get(place).copied().unwrap_or(0)
    }

    /// Breaks the `nth` completion from now, 1 being the next.
    pub(crate) fn break_completion(&mut self, nth: u64, fault: CompletionFault) {
        self.faults.push((self.completions + nth, fault));
    }

    /// Counts a completion; how it is to be broken, if it is.
    pub(crate) fn next_fault(&mut self) -> Option<CompletionFault> {
        self.completions += 1;
        let found = self.faults.iter().position(|&(number, _)| number == self.completions)?;
        Some(self.faults.swap_remove(found).1)
    }

    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    pub(crate) fn hold(&mut self, held: Held) {
        self.held.push_back(held);
    }

    /// Forgets what is on its way if `which` says so.
    pub(crate) fn forget_held(&mut self, which: impl Fn(&Held) -> bool) {
        self.held.retain(|held| !which(held));
    }

    /// The completions that are due, all of them if there is no more delay.
    fn take_due(&mut self, now: Instant) -> Option<Held> {
        let due = match (self.delivery, self.held.front()?.due) {
            (Delivery::Prompt, _) => true,
            (_, Some(due)) => due <= now,
            (_, None) => false,
        };
        if due { self.held.pop_front() } else { None }
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.held.front()?.due
    }
}

impl Fabric {
    /// Delivers the completions that were held back until now.
    pub(crate) fn release_due(&mut self, now: Instant) {
        for device in 0..self.devices.len() {
            while let Some(held) =
                self.devices.get_mut(device).and_then(|device| device.control.take_due(now))
            {
                self.deliver(held.queue, held.completion);
            }
        }
    }
}
