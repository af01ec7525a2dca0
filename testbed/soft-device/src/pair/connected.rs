//! Requests between two pairs that know each other: RC, UC and XRC.
#![expect(unsafe_code, reason = "moves bytes between memory that was checked under the lock")]

use rdma_sys as c;

use super::{
    execute::Step,
    receive::{Inlet, Offer},
    wait::{Reason, pause},
    work::Request,
};
use crate::{
    completion_queue::Completion,
    fabric::{Fabric, Scratch},
    memory::{Asker, Piece, Place},
};

/// The far end of a request.
#[derive(Debug, Clone, Copy)]
struct Target {
    pair: u32,
    asker: Asker,
    inlet: Inlet,
}

impl Fabric {
    /// One request of a connection.
    pub(super) fn connected(
        &mut self,
        number: u32,
        position: u64,
        request: Request,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(pair) = self.pairs.get(number) else { return Step::Done(0, 0) };
        let reads = matches!(
            request.opcode,
            c::IBV_WR_RDMA_READ | c::IBV_WR_ATOMIC_CMP_AND_SWP | c::IBV_WR_ATOMIC_FETCH_AND_ADD
        );
        let access = if reads { c::IBV_ACCESS_LOCAL_WRITE } else { 0 };
        let Ok(length) = self.near(pair, position, access, scratch) else {
            return Step::failed(c::IBV_WC_LOC_PROT_ERR);
        };
        let most = self.device(pair.device).map_or(0, |each| each.description.limits.max_msg_sz);
        if length > u64::from(most) {
            return Step::failed(c::IBV_WC_LOC_LEN_ERR);
        }
        if reads && pair.attr.max_rd_atomic == 0 {
            return Step::failed(c::IBV_WC_LOC_QP_OP_ERR);
        }
        let Some(target) = self.responder(number, pair) else {
            return Step::Later(Reason::Silence);
        };
        if self.path_is_too_narrow(number, target, length) {
            return invalid_request(target);
        }
        let Some(inlet) = self.inlet(target, request.srqn) else { return invalid_request(target) };
        let asker = Asker { pair: target, domain: self.inlet_domain(target, inlet) };
        let target = Target { pair: target, asker, inlet };
        let step = match request.opcode {
            c::IBV_WR_SEND | c::IBV_WR_SEND_WITH_IMM | c::IBV_WR_SEND_WITH_INV => {
                self.send_to(number, target, request, length, scratch)
            }
            c::IBV_WR_RDMA_WRITE | c::IBV_WR_RDMA_WRITE_WITH_IMM => {
                self.write_to(number, target, request, length, scratch)
            }
            c::IBV_WR_RDMA_READ => self.read_from(target, request, length, scratch),
            c::IBV_WR_FLUSH => self.flush(target, request),
            c::IBV_WR_ATOMIC_WRITE => self.atomic_write(target, request, length, scratch),
            _ => self.atomic(target, request, length, scratch),
        };
        if let Step::Done(c::IBV_WC_SUCCESS, _) = step {
            self.count_packets(number, target.pair, length);
        }
        step
    }

    fn send_to(
        &mut self,
        number: u32,
        target: Target,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        if !self.has_receive(target.inlet) {
            return self.not_ready(target.pair);
        }
        let invalidates = request.opcode == c::IBV_WR_SEND_WITH_INV;
        if invalidates && self.invalidate(target.asker, request.immediate).is_err() {
            return denied(target.pair);
        }
        let wr_id = match self.offer(target.pair, target.inlet, length, &mut scratch.to) {
            Offer::Room(wr_id) => wr_id,
            Offer::Nothing => return self.not_ready(target.pair),
            Offer::Failed(status) => {
                self.broken.push((target.pair, c::IBV_EVENT_QP_REQ_ERR));
                return Step::failed(if status == c::IBV_WC_LOC_LEN_ERR {
                    c::IBV_WC_REM_INV_REQ_ERR
                } else {
                    c::IBV_WC_REM_OP_ERR
                });
            }
        };
        // SAFETY: both sides were checked above, under the lock that `self` shows is held.
        if unsafe { self.transfer(&scratch.from, &scratch.to) }.is_err() {
            return Step::failed(c::IBV_WC_GENERAL_ERR);
        }
        let mut arrived = self.arrived(number, target, wr_id, request, length);
        if invalidates {
            arrived.wc_flags = c::IBV_WC_WITH_INV;
            arrived.imm_data = request.immediate;
        }
        self.report_receive(target.pair, target.inlet, arrived);
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    fn write_to(
        &mut self,
        number: u32,
        target: Target,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        match self.far(target, request, length, c::IBV_ACCESS_REMOTE_WRITE) {
            Ok(piece) => scratch.to.extend(piece),
            Err(step) => return step,
        }
        let immediate = request.opcode == c::IBV_WR_RDMA_WRITE_WITH_IMM;
        let mut wr_id = 0;
        if immediate {
            let Some(next) = self.use_up(target.inlet) else { return self.not_ready(target.pair) };
            wr_id = next;
        }
        // SAFETY: both sides were checked above, under the lock that `self` shows is held.
        if unsafe { self.transfer(&scratch.from, &scratch.to) }.is_err() {
            return Step::failed(c::IBV_WC_GENERAL_ERR);
        }
        if immediate {
            let arrived = self.arrived(number, target, wr_id, request, length);
            let opcode = c::IBV_WC_RECV_RDMA_WITH_IMM;
            self.report_receive(target.pair, target.inlet, Completion { opcode, ..arrived });
        }
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    fn read_from(
        &mut self,
        target: Target,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        if !self.answers_reads(target.pair) {
            return invalid_request(target.pair);
        }
        match self.far(target, request, length, c::IBV_ACCESS_REMOTE_READ) {
            Ok(piece) => scratch.from.extend(piece),
            Err(step) => return step,
        }
        // SAFETY: both sides were checked above, under the lock that `self` shows is held.
        if unsafe { self.transfer(&scratch.from, &scratch.to) }.is_err() {
            return Step::failed(c::IBV_WC_GENERAL_ERR);
        }
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    fn atomic(
        &mut self,
        target: Target,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        if length != 8 {
            return Step::failed(c::IBV_WC_LOC_LEN_ERR);
        }
        if !self.answers_reads(target.pair) || !request.remote_address.is_multiple_of(8) {
            return invalid_request(target.pair);
        }
        let place = match self.far(target, request, length, c::IBV_ACCESS_REMOTE_ATOMIC) {
            Ok(Some(piece)) => piece.place,
            Ok(None) => return invalid_request(target.pair),
            Err(step) => return step,
        };
        let change = |old: u64| {
            if request.opcode == c::IBV_WR_ATOMIC_FETCH_AND_ADD {
                Some(old.wrapping_add(request.compare_add))
            } else {
                (old == request.compare_add).then_some(request.swap)
            }
        };
        // SAFETY: eight bytes were checked above, under the lock that `self` shows is held.
        let Ok(old) = (unsafe { self.exchange(place, change) }) else {
            return Step::failed(c::IBV_WC_GENERAL_ERR);
        };
        let old = old.to_ne_bytes();
        let place = Place::Host(old.as_ptr().expose_provenance());
        // SAFETY: the source is `old`, and the other side was checked under the lock that is held.
        if unsafe { self.transfer(&[Piece { place, length: 8 }], &scratch.to) }.is_err() {
            return Step::failed(c::IBV_WC_GENERAL_ERR);
        }
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    /// A write of eight bytes that no reader sees in part.
    fn atomic_write(
        &mut self,
        target: Target,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        if length != 8 {
            return Step::failed(c::IBV_WC_LOC_LEN_ERR);
        }
        if !self.answers_reads(target.pair) || !request.remote_address.is_multiple_of(8) {
            return invalid_request(target.pair);
        }
        let place = match self.far(target, request, length, c::IBV_ACCESS_REMOTE_WRITE) {
            Ok(Some(piece)) => piece.place,
            Ok(None) => return invalid_request(target.pair),
            Err(step) => return step,
        };
        let mut value = [0u8; 8];
        let mine = Place::Host(value.as_mut_ptr().expose_provenance());
        // SAFETY: the source was checked under the lock that is held, and the target is `value`.
        let copied = unsafe { self.transfer(&scratch.from, &[Piece { place: mine, length: 8 }]) };
        let value = u64::from_ne_bytes(value);
        // SAFETY: eight bytes were checked above, under the lock that `self` shows is held.
        match copied.and_then(|()| unsafe { self.exchange(place, |_| Some(value)) }) {
            Ok(_) => Step::Done(c::IBV_WC_SUCCESS, length),
            Err(_) => Step::failed(c::IBV_WC_GENERAL_ERR),
        }
    }

    /// Makes what was written visible: it is already, so that only the right to ask is checked.
    fn flush(&mut self, target: Target, request: Request) -> Step {
        // The placement in the lower half, the selectivity in the upper.
        let (kind, level) = (request.swap & 0xff, request.swap >> 8);
        let access = match u32::try_from(kind).unwrap_or(0) {
            c::IBV_FLUSH_GLOBAL => c::IBV_ACCESS_FLUSH_GLOBAL,
            c::IBV_FLUSH_PERSISTENT => c::IBV_ACCESS_FLUSH_PERSISTENT,
            _ => c::IBV_ACCESS_FLUSH_GLOBAL | c::IBV_ACCESS_FLUSH_PERSISTENT,
        };
        if !self.answers_reads(target.pair) {
            return invalid_request(target.pair);
        }
        let whole = level == u64::from(c::IBV_FLUSH_MR);
        let length = if whole { 0 } else { request.compare_add };
        match self.opened(target, request, length, access) {
            Ok(_) => Step::Done(c::IBV_WC_SUCCESS, 0),
            Err(step) => step,
        }
    }

    /// The far side of a request, if the pair and the key allow it. No bytes need no key.
    fn far(
        &self,
        target: Target,
        request: Request,
        length: u64,
        access: u32,
    ) -> Result<Option<Piece>, Step> {
        if length == 0 {
            self.granted(target, access).map(|()| None)
        } else {
            self.opened(target, request, length, access).map(Some)
        }
    }

    /// Whether the pair was given the access.
    fn granted(&self, target: Target, access: u32) -> Result<(), Step> {
        let Some(pair) = self.pairs.get(target.pair) else {
            return Err(Step::Later(Reason::Silence));
        };
        if pair.attr.qp_access_flags & access == access {
            Ok(())
        } else {
            Err(invalid_request(target.pair))
        }
    }

    /// What the key of a request opens.
    fn opened(
        &self,
        target: Target,
        request: Request,
        length: u64,
        access: u32,
    ) -> Result<Piece, Step> {
        self.granted(target, access)?;
        let (key, address) = (request.rkey, request.remote_address);
        let opened = self.keys.remote(key, target.asker, address, length, access);
        let place = opened.map_err(|_| denied(target.pair))?;
        let length = usize::try_from(length).map_err(|_| denied(target.pair))?;
        Ok(Piece { place, length })
    }

    /// The completion of a message that arrived.
    fn arrived(
        &self,
        from: u32,
        target: Target,
        wr_id: u64,
        request: Request,
        length: u64,
    ) -> Completion {
        let immediate =
            matches!(request.opcode, c::IBV_WR_SEND_WITH_IMM | c::IBV_WR_RDMA_WRITE_WITH_IMM);
        Completion {
            byte_len: u32::try_from(length).unwrap_or(u32::MAX),
            imm_data: if immediate { request.immediate } else { 0 },
            wc_flags: if immediate { c::IBV_WC_WITH_IMM } else { 0 },
            src_qp: from,
            solicited: request.flags & c::IBV_SEND_SOLICITED != 0,
            ..target.inlet.received(target.pair, wr_id)
        }
    }

    fn answers_reads(&self, target: u32) -> bool {
        self.pairs.get(target).is_some_and(|pair| pair.attr.max_dest_rd_atomic > 0)
    }

    fn not_ready(&self, target: u32) -> Step {
        let code = self.pairs.get(target).map_or(0, |pair| pair.attr.min_rnr_timer);
        Step::Later(Reason::NotReady(pause(code)))
    }
}

/// The peer cannot do what was asked of it, and its connection ends.
const fn invalid_request(target: u32) -> Step {
    Step::Refused(c::IBV_WC_REM_INV_REQ_ERR, target, c::IBV_EVENT_QP_REQ_ERR)
}

/// The key opens nothing of the kind, and the connection ends.
const fn denied(target: u32) -> Step {
    Step::Refused(c::IBV_WC_REM_ACCESS_ERR, target, c::IBV_EVENT_QP_ACCESS_ERR)
}
