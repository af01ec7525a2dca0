//! The receiving side: where a message takes its receive from, and where that reports.

use rdma_sys as c;

use super::execute::scalable_error;
use super::work::ReceiveQueue;
use crate::{
    completion_queue::{Completion, Frees},
    fabric::Fabric,
    memory::Piece,
};

/// Where a message takes its receive from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inlet {
    /// The queue of a pair itself.
    Own(u32),
    /// A shared queue.
    Shared(u32),
}

/// What is offered to a message that uses up a receive.
pub(super) enum Offer {
    /// Room in memory, under a request number.
    Room(u64),
    Nothing,
    /// The receive is used up, since it failed with this status.
    Failed(c::ibv_wc_status),
}

impl Inlet {
    /// The completion of a receive, without what is special about the message.
    pub(super) fn received(self, pair: u32, wr_id: u64) -> Completion {
        Completion {
            wr_id,
            opcode: c::IBV_WC_RECV,
            qp_num: pair,
            pair,
            frees: match self {
                Self::Own(pair) => Frees::Receive { pair },
                Self::Shared(queue) => Frees::Shared { queue },
            },
            ..Completion::default()
        }
    }
}

impl Fabric {
    /// Where a message to a pair takes its receive from. The target of an XRC connection takes it
    /// from the queue that the message names, in the same XRC domain.
    pub(super) fn inlet(&self, pair: u32, srqn: u32) -> Option<Inlet> {
        let target = self.pairs.get(pair)?;
        if target.xrc_domain.is_some() {
            let named = self.shared.get(srqn)?.xrc.map(|(domain, _)| domain);
            return (named == target.xrc_domain).then_some(Inlet::Shared(srqn));
        }
        Some(target.srq.map_or(Inlet::Own(pair), Inlet::Shared))
    }

    /// The domain whose keys count for a message to a pair.
    pub(super) fn inlet_domain(&self, pair: u32, inlet: Inlet) -> u32 {
        let own = self.pairs.get(pair).filter(|pair| pair.xrc_domain.is_none());
        match (own, inlet) {
            (Some(pair), _) => pair.domain,
            (None, Inlet::Shared(queue)) => self.shared.get(queue).map_or(0, |queue| queue.domain),
            (None, Inlet::Own(_)) => 0,
        }
    }

    fn queue_of(&mut self, inlet: Inlet) -> Option<&mut ReceiveQueue> {
        match inlet {
            Inlet::Own(pair) => Some(&mut self.pairs.get_mut(pair)?.receive),
            Inlet::Shared(queue) => Some(&mut self.shared.get_mut(queue)?.receive),
        }
    }

    pub(super) fn has_receive(&mut self, inlet: Inlet) -> bool {
        self.queue_of(inlet).is_some_and(|queue| queue.waiting() > 0)
    }

    /// Uses the oldest receive up, whatever memory it names; its request number.
    pub(super) fn use_up(&mut self, inlet: Inlet) -> Option<u64> {
        let queue = self.queue_of(inlet)?;
        let (wr_id, _) = queue.next()?;
        queue.advance();
        if let Inlet::Shared(queue) = inlet {
            self.check_limit(queue);
        }
        Some(wr_id)
    }

    /// Uses the oldest receive up for a message, and adds the memory that it names to `pieces`.
    pub(super) fn offer(
        &mut self,
        pair: u32,
        inlet: Inlet,
        length: u64,
        pieces: &mut Vec<Piece>,
    ) -> Offer {
        let (queue, domain) = match inlet {
            Inlet::Own(pair) => {
                let Some(pair) = self.pairs.get(pair) else { return Offer::Nothing };
                (&pair.receive, pair.domain)
            }
            Inlet::Shared(queue) => {
                let Some(shared) = self.shared.get(queue) else { return Offer::Nothing };
                (&shared.receive, shared.domain)
            }
        };
        let Some((_, segments)) = queue.next() else { return Offer::Nothing };
        let room: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
        let opened = self.keys.gather(segments, domain, c::IBV_ACCESS_LOCAL_WRITE, pieces);
        let Some(wr_id) = self.use_up(inlet) else { return Offer::Nothing };
        let status = if length > room {
            c::IBV_WC_LOC_LEN_ERR
        } else if opened.is_err() {
            c::IBV_WC_LOC_PROT_ERR
        } else {
            return Offer::Room(wr_id);
        };
        self.report_receive(pair, inlet, inlet.received(pair, wr_id).ended(status));
        Offer::Failed(status)
    }

    /// Reports a receive to the completion queue of the pair, or of an XRC queue.
    pub(super) fn report_receive(&mut self, pair: u32, inlet: Inlet, mut completion: Completion) {
        let own = self.pairs.get(pair).and_then(|pair| pair.receive_cq);
        let queue = match inlet {
            Inlet::Own(_) => own,
            Inlet::Shared(queue) => {
                let xrc = self.shared.get(queue).and_then(|shared| shared.xrc);
                xrc.map(|(_, queue)| queue).or(own)
            }
        };
        let good = completion.status == c::IBV_WC_SUCCESS;
        if !good && self.pairs.get(pair).is_some_and(|pair| pair.kind == c::IBV_QPT_DRIVER) {
            completion.vendor_err = scalable_error(completion.status);
        }
        let bytes = if good { completion.byte_len.into() } else { 0 };
        self.count_end(pair, c::IBV_QP_ATTACH_COMP_CNTR_OP_RECV, good, bytes);
        if let Some(queue) = queue {
            self.report(queue, completion);
        }
    }

    /// Ends the receives of a pair in the error state. Those of a shared queue stay there.
    pub(super) fn flush_receives(&mut self, number: u32) {
        let inlet = Inlet::Own(number);
        while let Some(wr_id) = self.use_up(inlet) {
            let flushed = inlet.received(number, wr_id).ended(c::IBV_WC_WR_FLUSH_ERR);
            self.report_receive(number, inlet, flushed);
        }
    }
}
