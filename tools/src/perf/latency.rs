//! One request at a time.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use example_support::AnyError;
use ibverbs::{Completion, Gather, Inline, SendWr, SharedBytes};

use super::{
    bell::Queues,
    clock::Clock,
    flow::Inlet,
    memory::Memory,
    options::Metric,
    plan::Operation,
    progress::Progress,
    rig::{Outcome, Rig},
    watch::Watch,
    wire::{Local, Wire},
};

/// One of so many pings reports, so that the send queue does not fill up.
const REPORT: u64 = 16;

/// Does `count` requests of `size` bytes one after the other, and takes the time of all but the first `skip`.
///
/// The time is that of a message one way, half of a round trip, for writes and sends, and of the whole request for others.
pub(crate) fn round<T: Wire>(
    rig: &Rig<'_, '_, T>,
    memory: &Memory<'_>,
    size: usize,
    count: u64,
    skip: u64,
) -> Result<Outcome, AnyError> {
    let polls_memory = T::ORDERED && memory.shared().is_some() && !rig.plan.events;
    let operation = rig.plan.operation(Metric::Latency, polls_memory);
    let start = Instant::now();
    let (samples, sent) = match (operation, memory.shared()) {
        (Operation::Write, Some(bytes)) => {
            let mut ping = MemoryPing::new(rig, memory, &bytes, size, count)?;
            let samples = exchange(rig, count, skip, &mut ping)?;
            ping.reporter.await_report(rig)?;
            rig.pings.set(rig.pings.get() + count);
            // What is sent is again what it was.
            bytes.set(rig.layout.outbox(0, size).end - 1, rig.payload[size - 1])?;
            (samples, count)
        }
        (Operation::Send | Operation::WriteWithImmediate, _) => {
            let mut ping = MessagePing::new(rig, memory, operation, size, count)?;
            let samples = exchange(rig, count, skip, &mut ping)?;
            ping.reporter.await_report(rig)?;
            ping.inlet.refill()?;
            (samples, count)
        }
        _ if rig.initiator => (requests(rig, memory, operation, size, count, skip)?, count),
        _ => (Vec::new(), 0),
    };
    Ok(Outcome { elapsed: start.elapsed(), sent, arrived: 0, samples })
}

/// A way to tell the other side something, and to hear of it.
trait Ping {
    fn send(&mut self) -> Result<(), AnyError>;
    fn hear(&mut self) -> Result<(), AnyError>;
}

/// Pings from the initiator, answered by the other side.
fn exchange<T: Wire>(
    rig: &Rig<'_, '_, T>,
    count: u64,
    skip: u64,
    ping: &mut impl Ping,
) -> Result<Vec<u64>, AnyError> {
    if !rig.initiator {
        for _ in 0..count {
            ping.hear()?;
            ping.send()?;
        }
        return Ok(Vec::new());
    }
    let mut samples = Samples::new(rig, count, 2);
    for _ in 0..count {
        ping.send()?;
        ping.hear()?;
        samples.take();
    }
    Ok(samples.after(skip))
}

/// Requests that are done when they complete.
fn requests<T: Wire>(
    rig: &Rig<'_, '_, T>,
    memory: &Memory<'_>,
    operation: Operation,
    size: usize,
    count: u64,
    skip: u64,
) -> Result<Vec<u64>, AnyError> {
    let pair = &rig.lanes[0].pair;
    let mut request = [rig.request(memory, operation, 0, size)?.signaled()];
    let mut slots = Completion::slots::<1>();
    let mut watch = rig.watch("a request to complete", Some(Queues::Sends));
    let mut samples = Samples::new(rig, count, 1);
    for _ in 0..count {
        pair.post_send(&mut request)?;
        loop {
            if let [completion] = rig.sends.poll(&mut slots)? {
                completion.outcome().map_err(T::failure)?;
                break;
            }
            watch.idle()?;
        }
        watch.progress();
        samples.take();
    }
    Ok(samples.after(skip))
}

/// Times between one look at the clock and the next.
struct Samples<'r> {
    clock: Clock,
    last: u64,
    ticks: Vec<u64>,
    /// Messages in each time.
    parts: u64,
    progress: &'r Progress,
}

impl<'r> Samples<'r> {
    fn new<T: Wire>(rig: &Rig<'r, '_, T>, count: u64, parts: u64) -> Self {
        let ticks = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        let clock = Clock::new();
        Self { clock, last: clock.now(), ticks, parts, progress: rig.progress }
    }

    #[inline(always)]
    fn take(&mut self) {
        let now = self.clock.now();
        self.ticks.push(now.wrapping_sub(self.last));
        self.last = now;
        self.progress.add(1);
    }

    /// All but the first `skip`, in nanoseconds.
    fn after(mut self, skip: u64) -> Vec<u64> {
        self.ticks.drain(..usize::try_from(skip).unwrap_or(usize::MAX).min(self.ticks.len()));
        self.clock.to_nanoseconds(&mut self.ticks, self.parts);
        self.ticks
    }
}

/// Lets one of several requests report, and waits for its report before the next one that does.
struct Reporter<'w> {
    watch: Watch<'w>,
    every: u64,
    left: u64,
    /// Requests of the round that are still to come.
    to_come: u64,
    outstanding: bool,
    slots: [Completion; 1],
}

impl<'w> Reporter<'w> {
    fn new<T: Wire>(rig: &'w Rig<'_, '_, T>, count: u64) -> Self {
        Self {
            watch: rig.watch("earlier requests to complete", Some(Queues::Sends)),
            every: if T::ORDERED { REPORT } else { 1 },
            left: if T::ORDERED { REPORT } else { 1 },
            to_come: count,
            outstanding: false,
            slots: Completion::slots(),
        }
    }

    /// Whether the next request is to report.
    #[inline(always)]
    fn next<T: Wire>(&mut self, rig: &Rig<'_, '_, T>) -> Result<bool, AnyError> {
        self.left -= 1;
        self.to_come -= 1;
        // The last one does, so that after the round no request reads memory any more.
        if self.left > 0 && self.to_come > 0 {
            return Ok(false);
        }
        self.left = self.every;
        self.await_report(rig)?;
        self.outstanding = true;
        Ok(true)
    }

    /// Waits for the report that is outstanding, if one is.
    fn await_report<T: Wire>(&mut self, rig: &Rig<'_, '_, T>) -> Result<(), AnyError> {
        while self.outstanding {
            if let [completion] = rig.sends.poll(&mut self.slots)? {
                completion.outcome().map_err(T::failure)?;
                self.outstanding = false;
                self.watch.progress();
            } else {
                self.watch.idle()?;
            }
        }
        Ok(())
    }
}

/// Writes whose last byte says that they have come.
struct MemoryPing<'p, 'r, 'a, T: Wire> {
    rig: &'p Rig<'r, 'a, T>,
    watch: Watch<'p>,
    reporter: Reporter<'p>,
    /// Where the last byte comes, and the bits of it in that word.
    heard: &'p AtomicU64,
    heard_shift: usize,
    hearing: u8,
    outgoing: Outgoing<'p, T>,
    sending: u8,
}

/// What is written.
enum Outgoing<'p, T: Wire> {
    /// Copied into each request.
    Inline { bytes: Vec<u8>, target: ibverbs::RemoteSegment },
    /// From registered memory, whose last byte is in this word.
    Memory {
        /// One that does not report, and one that does.
        requests: Vec<SendWr<'p, T>>,
        word: &'p AtomicU64,
        shift: usize,
    },
}

/// The word that has a byte, and where in it.
fn byte_of<'m>(bytes: &SharedBytes<'m>, offset: usize) -> Result<(&'m AtomicU64, usize), AnyError> {
    let place = if cfg!(target_endian = "big") { 7 - offset % 8 } else { offset % 8 };
    Ok((bytes.word(offset & !7)?, place * 8))
}

impl<'p, 'r, 'a, T: Wire> MemoryPing<'p, 'r, 'a, T> {
    fn new(
        rig: &'p Rig<'r, 'a, T>,
        memory: &'p Memory<'_>,
        bytes: &SharedBytes<'p>,
        size: usize,
        count: u64,
    ) -> Result<Self, AnyError> {
        let (heard, heard_shift) = byte_of(bytes, rig.layout.inbox(0, size).end - 1)?;
        let target = rig.target(Operation::Write, 0, size)?;
        let outgoing = if size <= rig.inline {
            Outgoing::Inline { bytes: rig.payload[..size].to_vec(), target }
        } else {
            let outbox = rig.layout.outbox(0, size);
            let (word, shift) = byte_of(bytes, outbox.end - 1)?;
            let request = || -> Result<_, AnyError> {
                let local = Local::From(memory.outgoing(outbox.clone())?);
                T::request(Operation::Write, local, &target, &rig.lanes[0].peer)
            };
            Outgoing::Memory { requests: vec![request()?, request()?.signaled()], word, shift }
        };
        let [first, ..] = (rig.pings.get() + 1).to_le_bytes();
        Ok(Self {
            rig,
            watch: rig.watch("the other side's write", None),
            reporter: Reporter::new(rig, count),
            heard,
            heard_shift,
            hearing: first,
            outgoing,
            sending: first,
        })
    }
}

impl<T: Wire> Ping for MemoryPing<'_, '_, '_, T> {
    #[inline(always)]
    fn send(&mut self) -> Result<(), AnyError> {
        let loud = self.reporter.next(self.rig)?;
        let lane = &self.rig.lanes[0];
        match &mut self.outgoing {
            Outgoing::Inline { bytes, target } => {
                if let Some(last) = bytes.last_mut() {
                    *last = self.sending;
                }
                let gather = Gather::from(Inline(bytes));
                let request =
                    T::request(Operation::Write, Local::From(gather), target, &lane.peer)?;
                let request = if loud { request.signaled() } else { request };
                lane.pair.post_send(&mut [request])?;
            }
            Outgoing::Memory { requests, word, shift } => {
                let others = word.load(Ordering::Relaxed) & !(0xff << *shift);
                word.store(others | u64::from(self.sending) << *shift, Ordering::Release);
                let place = usize::from(loud);
                lane.pair.post_send(&mut requests[place..=place])?;
            }
        }
        self.sending = self.sending.wrapping_add(1);
        Ok(())
    }

    #[inline(always)]
    fn hear(&mut self) -> Result<(), AnyError> {
        let hearing = u64::from(self.hearing);
        while self.heard.load(Ordering::Acquire) >> self.heard_shift & 0xff != hearing {
            self.watch.idle()?;
        }
        self.watch.progress();
        self.hearing = self.hearing.wrapping_add(1);
        Ok(())
    }
}

/// Messages, or writes with an immediate.
struct MessagePing<'p, 'r, 'a, T: Wire> {
    rig: &'p Rig<'r, 'a, T>,
    watch: Watch<'p>,
    reporter: Reporter<'p>,
    quiet: [SendWr<'p, T>; 1],
    loud: [SendWr<'p, T>; 1],
    inlet: Inlet<'p, 'a, T>,
    slots: [Completion; 1],
}

impl<'p, 'r, 'a, T: Wire> MessagePing<'p, 'r, 'a, T> {
    fn new(
        rig: &'p Rig<'r, 'a, T>,
        memory: &'p Memory<'_>,
        operation: Operation,
        size: usize,
        count: u64,
    ) -> Result<Self, AnyError> {
        let request = || rig.request(memory, operation, 0, size);
        Ok(Self {
            rig,
            watch: rig.watch("the other side's message", Some(Queues::Receives)),
            reporter: Reporter::new(rig, count),
            quiet: [request()?],
            loud: [request()?.signaled()],
            inlet: rig.inlet(memory, 0, false)?,
            slots: Completion::slots(),
        })
    }
}

impl<T: Wire> Ping for MessagePing<'_, '_, '_, T> {
    #[inline(always)]
    fn send(&mut self) -> Result<(), AnyError> {
        let loud = self.reporter.next(self.rig)?;
        let pair = &self.rig.lanes[0].pair;
        Ok(pair.post_send(if loud { &mut self.loud } else { &mut self.quiet })?)
    }

    #[inline(always)]
    fn hear(&mut self) -> Result<(), AnyError> {
        loop {
            if let [completion] = self.rig.receives.poll(&mut self.slots)? {
                completion.outcome().map_err(T::failure)?;
                break;
            }
            self.watch.idle()?;
        }
        self.watch.progress();
        Ok(self.inlet.take()?)
    }
}
