//! Doing the work: the oldest request of a send queue, and what its end means for the pair.

use std::mem;

use rdma_sys as c;

use super::{QueuePair, wait::Reason, work::Request};
use crate::{
    async_event::Element,
    completion_counter::operation_of,
    completion_queue::{Completion, Frees},
    fabric::{Fabric, Scratch},
    memory::Denied,
};

/// How far a request came.
pub(super) enum Step {
    /// It is done, with a status and the count of bytes that it moved.
    Done(c::ibv_wc_status, u64),
    /// Its peer refused it with a status, and is in error itself.
    Refused(c::ibv_wc_status, u32, c::ibv_event_type),
    /// It has to be tried again.
    Later(Reason),
}

impl Step {
    /// It failed on its own side, before anything moved.
    pub(super) const fn failed(status: c::ibv_wc_status) -> Self {
        Self::Done(status, 0)
    }
}

impl Fabric {
    /// Does the requests of a pair until there is none, or one has to wait.
    pub(crate) fn progress(&mut self, number: u32) {
        if self.pairs.get(number).is_some_and(|pair| pair.kind == c::IBV_QPT_DRIVER) {
            return self.progress_scalable(number);
        }
        while let Some(pair) = self.pairs.get(number)
            && let Some((position, request)) = pair.send.next()
        {
            match pair.state {
                c::IBV_QPS_RTS => {}
                c::IBV_QPS_ERR | c::IBV_QPS_SQE => {
                    self.finish(number, c::IBV_WC_WR_FLUSH_ERR, 0);
                    continue;
                }
                _ => return,
            }
            match self.step(number, position, request) {
                Step::Done(status, length) => self.finish(number, status, length),
                Step::Refused(status, peer, event) => {
                    self.finish(number, status, 0);
                    self.fail(peer, Some(event));
                }
                Step::Later(reason) => match self.wait(number, position, reason) {
                    Ok(()) => return,
                    Err(status) => self.finish(number, status, 0),
                },
            }
            while let Some((receiver, event)) = self.broken.pop() {
                self.fail(receiver, Some(event));
            }
        }
    }

    /// Ends the oldest request of a pair with a status.
    pub(super) fn finish(&mut self, number: u32, status: c::ibv_wc_status, length: u64) {
        self.stop_waiting(number);
        let Some(pair) = self.pairs.get_mut(number) else { return };
        let Some((position, request)) = pair.send.next() else { return };
        pair.send.advance();
        let good = status == c::IBV_WC_SUCCESS;
        let signaled = pair.signals_all || request.flags & c::IBV_SEND_SIGNALED != 0;
        let kind = pair.kind;
        if let Some(queue) = pair.send_cq
            && (signaled || !good)
        {
            let completion = Completion {
                wr_id: request.wr_id,
                opcode: completion_opcode(request.opcode),
                byte_len: u32::try_from(length).unwrap_or(u32::MAX),
                qp_num: number,
                pair: number,
                frees: Frees::Sends { pair: number, before: position + 1 },
                ..Completion::default()
            };
            let mut ended = completion.ended(status);
            if kind == c::IBV_QPT_DRIVER {
                ended.vendor_err = scalable_error(status);
            }
            self.report(queue, ended);
        }
        self.count_end(number, operation_of(request.opcode), good, length);
        if good || status == c::IBV_WC_WR_FLUSH_ERR {
            return;
        }
        match kind {
            c::IBV_QPT_RC | c::IBV_QPT_XRC_SEND | c::IBV_QPT_RAW_PACKET => self.fail(number, None),
            // Each message stands for itself.
            c::IBV_QPT_DRIVER => {}
            // Without acknowledgements only the sending half fails.
            _ => {
                if let Some(pair) = self.pairs.get_mut(number)
                    && pair.state == c::IBV_QPS_RTS
                {
                    pair.state = c::IBV_QPS_SQE;
                }
            }
        }
    }

    /// Puts a pair into the error state and flushes what was posted to it.
    pub(crate) fn fail(&mut self, number: u32, event: Option<c::ibv_event_type>) {
        let Some(pair) = self.pairs.get_mut(number) else { return };
        let was = mem::replace(&mut pair.state, c::IBV_QPS_ERR);
        let (context, raw, shares) = (pair.context, pair.raw, pair.srq.is_some());
        self.stop_waiting(number);
        if let Some(event) = event {
            self.raise(context, event, Element::Pair(number, raw));
        }
        if shares && was != c::IBV_QPS_ERR {
            let last = c::IBV_EVENT_QP_LAST_WQE_REACHED;
            self.raise(context, last, Element::Pair(number, raw));
        }
        self.progress(number);
        self.flush_receives(number);
    }

    fn step(&mut self, number: u32, position: u64, request: Request) -> Step {
        let Some(kind) = self.pairs.get(number).map(|pair| pair.kind) else {
            return Step::Done(c::IBV_WC_SUCCESS, 0);
        };
        let mut scratch = mem::take(&mut self.scratch);
        scratch.from.clear();
        scratch.to.clear();
        let step = match (request.opcode, kind) {
            (c::IBV_WR_BIND_MW | c::IBV_WR_LOCAL_INV, _) => self.local(number, request),
            (_, c::IBV_QPT_UD) => self.datagram(number, position, request, &mut scratch),
            (_, c::IBV_QPT_RAW_PACKET) => self.frame(number, position, request, &mut scratch),
            (_, c::IBV_QPT_UC) => {
                self.connected(number, position, request, &mut scratch).forgotten()
            }
            _ => self.connected(number, position, request, &mut scratch),
        };
        self.scratch = scratch;
        step
    }

    /// The near side of a request: its inline data, or what its segments open.
    pub(super) fn near(
        &self,
        pair: &QueuePair,
        position: u64,
        access: u32,
        scratch: &mut Scratch,
    ) -> Result<u64, Denied> {
        let pieces = if access == 0 { &mut scratch.from } else { &mut scratch.to };
        if let Some(piece) = pair.send.inline(position) {
            pieces.push(piece);
            return u64::try_from(piece.length).map_err(|_| Denied);
        }
        self.keys.gather(pair.send.segments(position), pair.domain, access, pieces)
    }
}

impl Step {
    /// What a sender without acknowledgements sees: whatever went wrong at the far side, nothing.
    fn forgotten(self) -> Self {
        match self {
            Self::Done(status, length) => Self::Done(status, length),
            Self::Refused(..) | Self::Later(_) => Self::Done(c::IBV_WC_SUCCESS, 0),
        }
    }
}

impl Completion {
    /// The completion of work that ended with a status.
    ///
    /// After a failure the fields that `ibv_poll_cq(3)` calls undefined have values that make no
    /// sense, so that a program that reads them is noticed.
    pub(crate) fn ended(self, status: c::ibv_wc_status) -> Self {
        if status == c::IBV_WC_SUCCESS {
            return self;
        }
        Self {
            status,
            vendor_err: 0x50 + status,
            opcode: 0x7fff_fff1,
            byte_len: 0xdead_beef,
            imm_data: 0xdead_beef,
            src_qp: 0x00ff_fff1,
            wc_flags: c::IBV_WC_WITH_IMM,
            ..self
        }
    }
}

/// What a request is called when it is done.
fn completion_opcode(opcode: c::ibv_wr_opcode) -> c::ibv_wc_opcode {
    match opcode {
        c::IBV_WR_RDMA_WRITE | c::IBV_WR_RDMA_WRITE_WITH_IMM => c::IBV_WC_RDMA_WRITE,
        c::IBV_WR_RDMA_READ => c::IBV_WC_RDMA_READ,
        c::IBV_WR_ATOMIC_CMP_AND_SWP => c::IBV_WC_COMP_SWAP,
        c::IBV_WR_ATOMIC_FETCH_AND_ADD => c::IBV_WC_FETCH_ADD,
        c::IBV_WR_BIND_MW => c::IBV_WC_BIND_MW,
        c::IBV_WR_LOCAL_INV => c::IBV_WC_LOCAL_INV,
        c::IBV_WR_FLUSH => c::IBV_WC_FLUSH,
        c::IBV_WR_ATOMIC_WRITE => c::IBV_WC_ATOMIC_WRITE,
        c::IBV_WR_TSO => c::IBV_WC_TSO,
        _ => c::IBV_WC_SEND,
    }
}

/// The completion status of an EFA device that libefa makes a status out of.
pub(super) fn scalable_error(status: c::ibv_wc_status) -> u32 {
    match status {
        c::IBV_WC_SUCCESS => 0,
        c::IBV_WC_WR_FLUSH_ERR => 1,
        c::IBV_WC_LOC_QP_OP_ERR => 4,
        c::IBV_WC_LOC_PROT_ERR => 5,
        c::IBV_WC_LOC_LEN_ERR => 6,
        c::IBV_WC_REM_ACCESS_ERR => 7,
        c::IBV_WC_REM_ABORT_ERR => 8,
        c::IBV_WC_REM_INV_RD_REQ_ERR => 9,
        c::IBV_WC_RNR_RETRY_EXC_ERR => 10,
        c::IBV_WC_REM_INV_REQ_ERR => 11,
        c::IBV_WC_BAD_RESP_ERR => 12,
        c::IBV_WC_RESP_TIMEOUT_ERR => 13,
        // The responder does not know its peer.
        c::IBV_WC_REM_OP_ERR => 14,
        // The two ends do not agree on unsolicited writes.
        _ => 18,
    }
}
