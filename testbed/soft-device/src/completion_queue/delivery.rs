//! The way of a completion: from finished work into its queue, and the event that it raises.

use std::time::{Duration, Instant};

use rdma_sys as c;

use super::{Armed, Completion, Frees};
use crate::{
    CompletionFault,
    async_event::Element,
    clock,
    control::{Delivery, Held},
    fabric::Fabric,
};

impl Fabric {
    /// When the event of a queue with moderation comes.
    pub(crate) fn event_due(&self, queue: u32) -> Option<Instant> {
        self.queues.get(queue)?.event_due
    }

    /// Reports finished work, in the way that a test may have asked for.
    pub(crate) fn report(&mut self, queue: u32, mut completion: Completion) {
        let Some(device) = self.queues.get(queue).map(|queue| queue.device) else { return };
        let Some(control) = self.control(device) else { return };
        let mut times = 1;
        match control.next_fault() {
            None => {}
            Some(CompletionFault::Drop) => return,
            Some(CompletionFault::Repeat) => times = 2,
            Some(CompletionFault::Status(status)) => completion.status = status,
            Some(CompletionFault::Opcode(opcode)) => completion.opcode = opcode,
            Some(CompletionFault::WorkRequestId(wr_id)) => completion.wr_id = wr_id,
            Some(CompletionFault::ByteLength(byte_len)) => completion.byte_len = byte_len,
            Some(CompletionFault::VendorError(vendor_err)) => completion.vendor_err = vendor_err,
            Some(CompletionFault::QueuePairNumber(qp_num)) => completion.qp_num = qp_num,
        }
        let due = match control.delivery {
            Delivery::Prompt => {
                for _ in 0..times {
                    self.deliver(queue, completion);
                }
                return;
            }
            Delivery::Held => None,
            Delivery::After(delay) => Instant::now().checked_add(delay),
        };
        for _ in 0..times {
            control.hold(Held { due, queue, completion });
        }
        if due.is_some() {
            self.watch_the_clock();
        }
    }

    /// Puts a completion into its queue and raises the event that was asked for.
    pub(crate) fn deliver(&mut self, number: u32, completion: Completion) {
        let Some(queue) = self.queues.get_mut(number) else { return };
        if queue.entries.len() >= queue.capacity {
            let (context, raw) = (queue.context, queue.raw);
            let first = !queue.overrun && !queue.ignores_overrun;
            queue.overrun = true;
            if first {
                self.raise(context, c::IBV_EVENT_CQ_ERR, Element::Queue(number, raw));
            }
            return;
        }
        let clocks = queue.has_clocks;
        queue.entries.push_back(Completion {
            timestamp: if clocks { clock::ticks() } else { 0 },
            wallclock: if clocks { clock::wallclock() } else { 0 },
            ..completion
        });
        let wanted = match queue.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited || completion.status != c::IBV_WC_SUCCESS,
        };
        if !wanted || queue.channel.is_none() {
            return;
        }
        queue.counted = queue.counted.saturating_add(1);
        let c::ibv_moderate_cq { cq_count, cq_period } = queue.moderation;
        if cq_period == 0 || queue.counted >= cq_count {
            self.tell_channel(number);
        } else if queue.event_due.is_none() {
            queue.event_due = Instant::now().checked_add(Duration::from_micros(cq_period.into()));
            self.moderated.push(number);
            self.watch_the_clock();
        }
    }

    /// Raises the event that was asked for.
    fn tell_channel(&mut self, number: u32) {
        self.moderated.retain(|&each| each != number);
        let Some(queue) = self.queues.get_mut(number) else { return };
        queue.armed = Armed::No;
        queue.counted = 0;
        queue.event_due = None;
        if let Some(channel) = queue.channel.and_then(|channel| self.channels.get_mut(channel)) {
            channel.push(number);
        }
    }

    /// Raises the events whose time has come.
    pub(crate) fn end_moderation(&mut self, now: Instant) {
        while let Some(number) = self.moderated.iter().copied().find(|&number| {
            self.queues.get(number).is_none_or(|queue| queue.event_due.is_none_or(|due| due <= now))
        }) {
            self.tell_channel(number);
        }
    }

    /// Takes the oldest completion out of a queue, and frees the places that it held.
    pub(super) fn take(&mut self, queue: u32) -> Option<Completion> {
        let completion = self.queues.get_mut(queue)?.entries.pop_front()?;
        match completion.frees {
            Frees::Nothing => {}
            Frees::Sends { pair, before } => {
                if let Some(pair) = self.pairs.get_mut(pair) {
                    pair.send.free_before(before);
                }
            }
            Frees::Shared { queue } => {
                if let Some(shared) = self.shared.get_mut(queue) {
                    shared.receive.free_one();
                }
            }
            Frees::Work { queue } => self.free_work(queue),
            Frees::Receive { pair } => {
                if let Some(pair) = self.pairs.get_mut(pair) {
                    pair.receive.free_one();
                }
            }
        }
        Some(completion)
    }

    /// Removes the completions of a pair that is destroyed or reset, on their way or there.
    pub(crate) fn sweep(&mut self, queue: u32, pair: u32) {
        self.sweep_those(queue, |completion| completion.pair == pair);
    }

    /// Removes the completions that are meant, on their way or there.
    pub(crate) fn sweep_those(&mut self, queue: u32, meant: impl Fn(&Completion) -> bool) {
        let Some(there) = self.queues.get_mut(queue) else { return };
        there.entries.retain(|completion| !meant(completion));
        let device = there.device;
        if let Some(control) = self.control(device) {
            control.forget_held(|held| held.queue == queue && meant(&held.completion));
        }
    }
}
