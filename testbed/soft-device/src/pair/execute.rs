//! Doing the work: a request goes from the send queue of one pair to the memory of another.
#![expect(unsafe_code, reason = "moves bytes between memory that was checked under the lock")]

use std::mem;

use rdma_sys as c;

use super::{
    QueuePair,
    wait::{Reason, pause},
    work::Request,
};
use crate::{
    address::gid_bytes,
    async_event::Element,
    completion_queue::{Completion, Frees},
    fabric::{Fabric, Scratch},
    memory::{Denied, Piece, Place},
    transfer,
};

/// How far a request came.
enum Step {
    /// It is done, with a status and the count of bytes that it moved.
    Done(c::ibv_wc_status, u64),
    /// It failed, and so does the pair it was for, which is told why.
    Refused(c::ibv_wc_status, u32, c::ibv_event_type),
    /// It has to be tried again.
    Later(Reason),
}

impl Step {
    /// It failed on its own side, before anything moved.
    const fn failed(status: c::ibv_wc_status) -> Self {
        Self::Done(status, 0)
    }
}

/// What a pair offers to a message that uses up a receive.
enum Offer {
    /// Room in memory, under a request number.
    Room(u64),
    Nothing,
    /// The receive is used up, since it failed with this status.
    Failed(c::ibv_wc_status),
}

impl Fabric {
    /// Does the requests of a pair until there is none, or one has to wait.
    pub(crate) fn progress(&mut self, number: u32) {
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
        let queue = pair.send_cq;
        if signaled || !good {
            let completion = Completion {
                wr_id: request.wr_id,
                opcode: completion_opcode(request.opcode),
                byte_len: u32::try_from(length).unwrap_or(u32::MAX),
                qp_num: number,
                pair: number,
                frees: Frees::Sends { pair: number, before: position + 1 },
                ..Completion::default()
            };
            self.report(queue, completion.ended(status));
        }
        if !good && status != c::IBV_WC_WR_FLUSH_ERR {
            self.fail(number, None);
        }
    }

    /// Puts a pair into the error state and flushes what was posted to it.
    pub(crate) fn fail(&mut self, number: u32, event: Option<c::ibv_event_type>) {
        let Some(pair) = self.pairs.get_mut(number) else { return };
        pair.state = c::IBV_QPS_ERR;
        let (context, raw) = (pair.context, pair.raw);
        self.stop_waiting(number);
        if let Some(event) = event {
            self.raise(context, event, Element::Pair(number, raw));
        }
        self.progress(number);
        self.flush_receives(number);
    }

    /// Ends the receives of a pair in the error state.
    pub(super) fn flush_receives(&mut self, number: u32) {
        while let Some(pair) = self.pairs.get_mut(number)
            && let Some((wr_id, _)) = pair.receive.next()
        {
            pair.receive.advance();
            let queue = pair.receive_cq;
            self.report(queue, received(number, wr_id).ended(c::IBV_WC_WR_FLUSH_ERR));
        }
    }

    fn step(&mut self, number: u32, position: u64, request: Request) -> Step {
        let mut scratch = mem::take(&mut self.scratch);
        scratch.from.clear();
        scratch.to.clear();
        let step = self.connected(number, position, request, &mut scratch);
        self.scratch = scratch;
        step
    }

    /// One request of a reliable connection.
    fn connected(
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
        let (access, near) = if reads {
            (c::IBV_ACCESS_LOCAL_WRITE, &mut scratch.to)
        } else {
            (0, &mut scratch.from)
        };
        let Ok(length) = self.near(pair, position, access, near) else {
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
        let step = match request.opcode {
            c::IBV_WR_SEND | c::IBV_WR_SEND_WITH_IMM => {
                self.send_to(number, target, request, length, scratch)
            }
            c::IBV_WR_RDMA_WRITE | c::IBV_WR_RDMA_WRITE_WITH_IMM => {
                self.write_to(number, target, request, length, scratch)
            }
            c::IBV_WR_RDMA_READ => self.read_from(target, request, length, scratch),
            _ => self.atomic(target, request, length, scratch),
        };
        if let Step::Done(c::IBV_WC_SUCCESS, _) = step {
            self.count_packets(number, target, length);
        }
        step
    }

    /// The near side of a request: its inline data, or what its segments open.
    fn near(
        &self,
        pair: &QueuePair,
        position: u64,
        access: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<u64, Denied> {
        if let Some(piece) = pair.send.inline(position) {
            pieces.push(piece);
            return u64::try_from(piece.length).map_err(|_| Denied);
        }
        self.keys.gather(pair.send.segments(position), pair.domain, access, pieces)
    }

    fn send_to(
        &mut self,
        number: u32,
        target: u32,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        let wr_id = match self.offer(target, length, scratch) {
            Offer::Room(wr_id) => wr_id,
            Offer::Nothing => return self.not_ready(target),
            Offer::Failed(c::IBV_WC_LOC_LEN_ERR) => return invalid_request(target),
            Offer::Failed(_) => {
                return Step::Refused(c::IBV_WC_REM_OP_ERR, target, c::IBV_EVENT_QP_REQ_ERR);
            }
        };
        // SAFETY: both sides were checked above, under the lock that `self` shows is held.
        unsafe { transfer::transfer(&scratch.from, &scratch.to) };
        self.arrived(number, target, wr_id, c::IBV_WC_RECV, request, length);
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    fn write_to(
        &mut self,
        number: u32,
        target: u32,
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
            let Some(pair) = self.pairs.get_mut(target) else {
                return Step::Later(Reason::Silence);
            };
            let Some((next, _)) = pair.receive.next() else { return self.not_ready(target) };
            wr_id = next;
            pair.receive.advance();
        }
        // SAFETY: both sides were checked above, under the lock that `self` shows is held.
        unsafe { transfer::transfer(&scratch.from, &scratch.to) };
        if immediate {
            self.arrived(number, target, wr_id, c::IBV_WC_RECV_RDMA_WITH_IMM, request, length);
        }
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    fn read_from(
        &mut self,
        target: u32,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        if self.pairs.get(target).is_none_or(|pair| pair.attr.max_dest_rd_atomic == 0) {
            return invalid_request(target);
        }
        match self.far(target, request, length, c::IBV_ACCESS_REMOTE_READ) {
            Ok(piece) => scratch.from.extend(piece),
            Err(step) => return step,
        }
        // SAFETY: both sides were checked above, under the lock that `self` shows is held.
        unsafe { transfer::transfer(&scratch.from, &scratch.to) };
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    fn atomic(
        &mut self,
        target: u32,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        if length != 8 {
            return Step::failed(c::IBV_WC_LOC_LEN_ERR);
        }
        let can = self.pairs.get(target).is_some_and(|pair| pair.attr.max_dest_rd_atomic > 0);
        if !can || !request.remote_address.is_multiple_of(8) {
            return invalid_request(target);
        }
        let place = match self.far(target, request, length, c::IBV_ACCESS_REMOTE_ATOMIC) {
            Ok(Some(piece)) => piece.place,
            Ok(None) => return invalid_request(target),
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
        let Some(old) = (unsafe { transfer::exchange(place, change) }) else {
            return invalid_request(target);
        };
        let old = old.to_ne_bytes();
        let place = Place::Host(old.as_ptr().expose_provenance());
        // SAFETY: the source is `old`, and the other side was checked under the lock that is held.
        unsafe { transfer::transfer(&[Piece { place, length: 8 }], &scratch.to) };
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    /// The far side of a request, if the pair and the key allow it. No bytes need no key.
    fn far(
        &self,
        target: u32,
        request: Request,
        length: u64,
        access: u32,
    ) -> Result<Option<Piece>, Step> {
        let Some(pair) = self.pairs.get(target) else { return Err(Step::Later(Reason::Silence)) };
        if pair.attr.qp_access_flags & access != access {
            return Err(invalid_request(target));
        }
        if length == 0 {
            return Ok(None);
        }
        let denied = Step::Refused(c::IBV_WC_REM_ACCESS_ERR, target, c::IBV_EVENT_QP_ACCESS_ERR);
        let Ok(place) =
            self.keys.remote(request.rkey, pair.domain, request.remote_address, length, access)
        else {
            return Err(denied);
        };
        let Ok(length) = usize::try_from(length) else { return Err(denied) };
        Ok(Some(Piece { place, length }))
    }

    /// Takes the oldest receive of a pair for a message, and opens the memory that it names.
    fn offer(&mut self, target: u32, length: u64, scratch: &mut Scratch) -> Offer {
        let Some(pair) = self.pairs.get_mut(target) else { return Offer::Nothing };
        let Some((wr_id, segments)) = pair.receive.next() else { return Offer::Nothing };
        let room: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
        let opened =
            self.keys.gather(segments, pair.domain, c::IBV_ACCESS_LOCAL_WRITE, &mut scratch.to);
        pair.receive.advance();
        let status = if length > room {
            c::IBV_WC_LOC_LEN_ERR
        } else if opened.is_err() {
            c::IBV_WC_LOC_PROT_ERR
        } else {
            return Offer::Room(wr_id);
        };
        let queue = pair.receive_cq;
        self.report(queue, received(target, wr_id).ended(status));
        Offer::Failed(status)
    }

    /// Reports a message that arrived.
    fn arrived(
        &mut self,
        from: u32,
        target: u32,
        wr_id: u64,
        opcode: c::ibv_wc_opcode,
        request: Request,
        length: u64,
    ) {
        let Some(pair) = self.pairs.get(target) else { return };
        let immediate =
            matches!(request.opcode, c::IBV_WR_SEND_WITH_IMM | c::IBV_WR_RDMA_WRITE_WITH_IMM);
        let completion = Completion {
            opcode,
            byte_len: u32::try_from(length).unwrap_or(u32::MAX),
            imm_data: if immediate { request.immediate } else { 0 },
            wc_flags: if immediate { c::IBV_WC_WITH_IMM } else { 0 },
            src_qp: from,
            solicited: request.flags & c::IBV_SEND_SOLICITED != 0,
            ..received(target, wr_id)
        };
        self.report(pair.receive_cq, completion);
    }

    /// The peer of a connection, if the packets reach it and it expects them.
    fn responder(&self, number: u32, pair: &QueuePair) -> Option<u32> {
        let target = pair.attr.dest_qp_num;
        let peer = self.pairs.get(target)?;
        let ready = matches!(peer.state, c::IBV_QPS_RTR | c::IBV_QPS_RTS | c::IBV_QPS_SQD);
        let expects = peer.kind == pair.kind
            && peer.attr.dest_qp_num == number
            && peer.receive_psn == pair.send_psn;
        (ready && expects && self.reaches(pair, peer)).then_some(target)
    }

    /// Whether a packet from a pair comes to the port of its peer.
    fn reaches(&self, pair: &QueuePair, peer: &QueuePair) -> bool {
        let port = |pair: &QueuePair, number| self.device(pair.device)?.description.port(number);
        let vector = &pair.attr.ah_attr;
        let (Some(from), Some(to)) =
            (port(pair, pair.attr.port_num), port(peer, peer.attr.port_num))
        else {
            return false;
        };
        let active = from.state == c::IBV_PORT_ACTIVE && to.state == c::IBV_PORT_ACTIVE;
        let addressed = if vector.is_global == 0 {
            to.lid == vector.dlid
        } else {
            let wanted = gid_bytes(&vector.grh.dgid);
            to.gids.iter().any(|entry| entry.gid == wanted)
        };
        active && addressed
    }

    /// Whether a message needs packets that the peer does not take.
    fn path_is_too_narrow(&self, number: u32, target: u32, length: u64) -> bool {
        let mtu = |number| self.pairs.get(number).map_or(0, |pair| pair.attr.path_mtu);
        let (ours, theirs) = (mtu(number), mtu(target));
        ours > theirs && length > mtu_bytes(theirs)
    }

    /// Counts the packets of a message on both sides.
    fn count_packets(&mut self, number: u32, target: u32, length: u64) {
        let Some(pair) = self.pairs.get_mut(number) else { return };
        let packets = length.div_ceil(mtu_bytes(pair.attr.path_mtu)).max(1);
        let packets = u32::try_from(packets % (1 << 24)).unwrap_or(0);
        pair.send_psn = (pair.send_psn + packets) % (1 << 24);
        if let Some(peer) = self.pairs.get_mut(target) {
            peer.receive_psn = (peer.receive_psn + packets) % (1 << 24);
        }
    }

    fn not_ready(&self, target: u32) -> Step {
        let code = self.pairs.get(target).map_or(0, |pair| pair.attr.min_rnr_timer);
        Step::Later(Reason::NotReady(pause(code)))
    }
}

impl Completion {
    /// The completion of work that ended with a status.
    ///
    /// After a failure the fields that `ibv_poll_cq(3)` calls undefined have values that make no
    /// sense, so that a program that reads them is noticed.
    fn ended(self, status: c::ibv_wc_status) -> Self {
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

/// The completion of a receive of a pair.
fn received(pair: u32, wr_id: u64) -> Completion {
    Completion {
        wr_id,
        opcode: c::IBV_WC_RECV,
        qp_num: pair,
        pair,
        frees: Frees::Receive { pair },
        ..Completion::default()
    }
}

/// The peer cannot do what was asked of it, and its connection ends.
const fn invalid_request(target: u32) -> Step {
    Step::Refused(c::IBV_WC_REM_INV_REQ_ERR, target, c::IBV_EVENT_QP_REQ_ERR)
}

/// What a request is called when it is done.
fn completion_opcode(opcode: c::ibv_wr_opcode) -> c::ibv_wc_opcode {
    match opcode {
        c::IBV_WR_RDMA_WRITE | c::IBV_WR_RDMA_WRITE_WITH_IMM => c::IBV_WC_RDMA_WRITE,
        c::IBV_WR_RDMA_READ => c::IBV_WC_RDMA_READ,
        c::IBV_WR_ATOMIC_CMP_AND_SWP => c::IBV_WC_COMP_SWAP,
        c::IBV_WR_ATOMIC_FETCH_AND_ADD => c::IBV_WC_FETCH_ADD,
        _ => c::IBV_WC_SEND,
    }
}

/// The bytes of an `ibv_mtu`.
fn mtu_bytes(mtu: c::ibv_mtu) -> u64 {
    128 << mtu.clamp(c::IBV_MTU_256, c::IBV_MTU_4096)
}
