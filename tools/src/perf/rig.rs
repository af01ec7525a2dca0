//! What one side has for its measurements: queue pairs, memory, and what it knows of the other side's.

use std::{cell::Cell, sync::atomic::AtomicU64, time::Duration};

use example_support::{AnyError, World};
use ibverbs::{
    CompletionQueue, Inline, MemoryRegion, PageAligned, RecvWr, RemoteMemory, RemoteSegment, SendWr,
};

use super::{
    bell::{Bell, Queues},
    flow::{CREDIT, Credit, Inlet, Outlet, Pace},
    memory::{Layout, Memory},
    plan::{Operation, Plan},
    progress::Progress,
    watch::{Waiting, Watch},
    wire::{Lane, Local, Wire},
};

/// Bytes of the control region that each lane has: a word that comes and a word that goes, a cache line each.
pub(crate) const CONTROL: usize = 128;
/// Receives that are posted again at a time, at most.
const REFILL: u32 = 32;

pub(crate) struct Rig<'r, 'a, T: Wire> {
    pub(crate) world: &'r World,
    pub(crate) plan: &'r Plan,
    pub(crate) lanes: &'r [Lane<'a, T>],
    pub(crate) sends: &'r CompletionQueue<'a>,
    pub(crate) receives: &'r CompletionQueue<'a>,
    pub(crate) layout: Layout,
    pub(crate) longest: usize,
    pub(crate) control: &'r MemoryRegion<'a, PageAligned>,
    pub(crate) remote: RemoteMemory,
    pub(crate) remote_control: RemoteMemory,
    /// What is sent, for requests that carry it.
    pub(crate) payload: &'r [u8],
    /// Up to how many bytes are copied into requests.
    pub(crate) inline: usize,
    /// Whether this side begins.
    pub(crate) initiator: bool,
    /// Whether the device needs the processor that this side polls on.
    pub(crate) yields: bool,
    /// What this side sleeps at, if it does.
    pub(crate) bell: Option<Bell<'r, 'a>>,
    pub(crate) progress: &'r Progress,
    /// Pings of all rounds so far, for those that are seen in memory.
    pub(crate) pings: Cell<u64>,
    /// Atomics of each lane since its word was zero.
    pub(crate) atomics: Cell<u64>,
}

/// What a round came to on one side.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) elapsed: Duration,
    /// Messages that this side's requests moved.
    pub(crate) sent: u64,
    /// Messages that came into this side's receives.
    pub(crate) arrived: u64,
    /// Nanoseconds of each message.
    pub(crate) samples: Vec<u64>,
}

impl<'r, 'a, T: Wire> Rig<'r, 'a, T> {
    /// Watches a loop that waits for `what`, which these queues tell, if queues do.
    pub(crate) fn watch(&self, what: &'static str, queues: Option<Queues>) -> Watch<'_> {
        let waiting = match (&self.bell, queues) {
            (Some(bell), Some(queues)) => Waiting::Sleeping(bell, queues),
            _ if self.yields => Waiting::Yielding,
            _ => Waiting::Spinning,
        };
        Watch::new(self.world, what, waiting)
    }

    /// The other side's part of the memory that a lane's requests reach.
    pub(crate) fn target(
        &self,
        operation: Operation,
        lane: usize,
        size: usize,
    ) -> Result<RemoteSegment, AnyError> {
        // Both sides have the same layout.
        let range = match operation {
            Operation::Read => self.layout.outbox(lane, size),
            _ => self.layout.inbox(lane, size),
        };
        Ok(self.remote.part(range.start as u64..range.end as u64)?)
    }

    /// This side's memory of a lane's requests.
    pub(crate) fn local<'m>(
        &self,
        memory: &'m Memory<'_>,
        operation: Operation,
        lane: usize,
        size: usize,
    ) -> Result<Local<'m>, AnyError>
    where
        'r: 'm,
    {
        Ok(match operation {
            Operation::Read => Local::Into(memory.incoming(self.layout.inbox(lane, size))?),
            // The word itself is in the other side's inbox, and its old value is not sent anywhere.
            Operation::FetchAndAdd | Operation::CompareAndSwap => {
                Local::Into(memory.incoming(self.layout.outbox(lane, size))?)
            }
            _ if size <= self.inline => Local::From(Inline(&self.payload[..size]).into()),
            _ => Local::From(memory.outgoing(self.layout.outbox(lane, size))?),
        })
    }

    /// A lane's request.
    pub(crate) fn request<'m>(
        &self,
        memory: &'m Memory<'_>,
        operation: Operation,
        lane: usize,
        size: usize,
    ) -> Result<SendWr<'m, T>, AnyError>
    where
        'r: 'm,
    {
        let local = self.local(memory, operation, lane, size)?;
        let target = self.target(operation, lane, size)?;
        T::request(operation, local, &target, &self.lanes[lane].peer)
    }

    /// A lane's receives, as many as are posted at a time; each has room for the longest message.
    pub(crate) fn receive_batch<'m>(
        &self,
        memory: &'m Memory<'_>,
        lane: usize,
        count: u32,
    ) -> Result<Vec<RecvWr<'m>>, AnyError> {
        let mut room = self.layout.inbox(lane, self.longest);
        room.start -= T::HEADER;
        let room = memory.incoming(room)?;
        Ok((0..count).map(|_| RecvWr::to(lane as u64, room)).collect())
    }

    /// A lane's receives, with credits if it is a stream of messages that has them.
    pub(crate) fn inlet<'m>(
        &self,
        memory: &'m Memory<'_>,
        lane: usize,
        credits: bool,
    ) -> Result<Inlet<'m, 'a, T>, AnyError>
    where
        'r: 'm,
    {
        let step = self.plan.room_step(credits);
        let batch = self.receive_batch(memory, lane, REFILL.min(step))?;
        let credit = if credits { Some(self.credit(lane)?) } else { None };
        Ok(Inlet::new(&self.lanes[lane].pair, batch, credit))
    }

    fn credit(&self, lane: usize) -> Result<Credit<'r, T>, AnyError> {
        let word = lane * CONTROL + CONTROL / 2;
        let target = (lane * CONTROL) as u64;
        let target = self.remote_control.part(target..target + 8)?;
        let local = Local::From(self.control.segment(word..word + 8)?.into());
        let request = T::request(Operation::Write, local, &target, &self.lanes[lane].peer)?;
        Ok(Credit {
            request: request.id(lane as u64 | CREDIT).signaled(),
            word: self.control.bytes().word(word)?,
            every: self.plan.room_step(true).into(),
            told: 0,
            outstanding: 0,
        })
    }

    /// Where the peer says how many of a lane's messages it has taken.
    pub(crate) fn credit_word(&self, lane: usize) -> Result<&'r AtomicU64, AnyError> {
        Ok(self.control.bytes().word(lane * CONTROL)?)
    }

    /// A lane's requests.
    pub(crate) fn outlet<'m>(
        &self,
        memory: &'m Memory<'_>,
        operation: Operation,
        lane: usize,
        size: usize,
        count: u64,
    ) -> Result<Outlet<'m, 'a, T>, AnyError>
    where
        'r: 'm,
    {
        let plan = self.plan;
        let pace = Pace {
            list: plan.post_list.into(),
            step: plan.signal_step(size as u64).into(),
            depth: plan.tx_depth.into(),
            room: plan.rx_depth.into(),
        };
        let credits = T::CREDITS && operation == Operation::Send;
        let credit = if credits { Some(self.credit_word(lane)?) } else { None };
        let pair = &self.lanes[lane].pair;
        Outlet::new(pair, lane, count, pace, credit, || self.request(memory, operation, lane, size))
    }
}
