//! Scalable reliable datagrams, as EFA has them: reliable, to any pair, in no order.
#![expect(unsafe_code, reason = "moves bytes between memory that was checked under the lock")]

use std::{
    mem,
    time::{Duration, Instant},
};

use rdma_sys as c;

use super::{
    QueuePair,
    execute::Step,
    receive::Offer,
    wait::{Reason, Waiting, failure, patience},
    work::Request,
};
use crate::{
    address::Vector,
    completion_queue::Completion,
    fabric::{Fabric, Scratch},
    memory::{Asker, Piece},
};

/// How long a request stays on its way where a test wants them out of order and nobody polls.
const LINGERS: Duration = Duration::from_millis(1);
/// How long the device pauses before it tries a receiver that was not ready again.
const PAUSE: Duration = Duration::from_millis(1);

/// A pair whose requests are on their way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lingering {
    pair: u32,
    device: u32,
    pub(crate) until: Instant,
}

impl Fabric {
    /// Begins what was just posted to a pair. Requests that shall be out of order wait until a few
    /// are there, which is when somebody polls or a moment has passed.
    pub(super) fn start(&mut self, number: u32) {
        let mixes = |pair: &&QueuePair| {
            pair.kind == c::IBV_QPT_DRIVER
                && self.device(pair.device).is_some_and(|device| device.control.disorder.is_some())
        };
        let Some(device) = self.pairs.get(number).filter(mixes).map(|pair| pair.device) else {
            return self.progress(number);
        };
        if !self.lingering.iter().any(|each| each.pair == number) {
            self.lingering.push(Lingering {
                pair: number,
                device,
                until: Instant::now() + LINGERS,
            });
        }
        self.watch_the_clock();
    }

    /// Does what lingered long enough, or on a device that is polled.
    pub(crate) fn stop_lingering(&mut self, polled: Option<u32>) {
        if self.lingering.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(place) =
            self.lingering.iter().position(|each| each.until <= now || Some(each.device) == polled)
        {
            let pair = self.lingering.swap_remove(place).pair;
            self.progress(pair);
        }
    }

    /// Does the requests of a pair that can be done, in an order of the device's choice.
    pub(super) fn progress_scalable(&mut self, number: u32) {
        while let Some(pair) = self.pairs.get(number)
            && let Some((first, _)) = pair.send.next()
        {
            match pair.state {
                c::IBV_QPS_RTS => {}
                c::IBV_QPS_ERR => {
                    self.finish(number, c::IBV_WC_WR_FLUSH_ERR, 0);
                    continue;
                }
                _ => return,
            }
            let count = pair.send.end() - first;
            let skipped = self.disorder(pair.device) % count;
            let done = (0..count)
                .map(|step| first + (skipped + step) % count)
                .find_map(|position| Some((position, self.attempt(number, position)?)));
            let Some((position, (status, length))) = done else {
                return self.wait_for_any(number);
            };
            if let Some(pair) = self.pairs.get_mut(number) {
                pair.send.bring_forward(position);
            }
            self.finish(number, status, length);
        }
        self.stop_waiting(number);
    }

    /// A number that differs each time where a test wants requests out of order, else 0.
    fn disorder(&self, device: u32) -> u64 {
        self.device(device).and_then(|device| device.control.disorder.as_ref()).map_or(0, |seed| {
            // xorshift, by Marsaglia.
            let mut state = seed.get();
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            seed.set(state);
            state
        })
    }

    /// Tries a request; its status and length if that ends it.
    fn attempt(&mut self, number: u32, position: u64) -> Option<(c::ibv_wc_status, u64)> {
        let pair = self.pairs.get(number)?;
        let request = pair.send.request(position)?;
        let mut scratch = mem::take(&mut self.scratch);
        scratch.from.clear();
        scratch.to.clear();
        let step = self.scalable(number, position, request, &mut scratch);
        self.scratch = scratch;
        let reason = match step {
            Step::Done(status, length) => return Some((status, length)),
            Step::Refused(status, ..) => return Some((status, 0)),
            Step::Later(reason) => reason,
        };
        let pair = self.pairs.get_mut(number)?;
        let patience = patience(pair, reason);
        let now = Instant::now();
        let ends = pair
            .send
            .waits_until(position, || patience.and_then(|patience| now.checked_add(patience)));
        ends.is_some_and(|ends| ends <= now).then_some((failure(reason, pair.kind), 0))
    }

    /// None of the requests can be done: waits for the one whose time is over first.
    fn wait_for_any(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(number) else { return };
        let ends = pair.send.earliest_end();
        pair.waiting = Some(Waiting::for_any(ends));
        if !self.waiting.contains(&number) {
            self.waiting.push(number);
        }
        if ends.is_some() {
            self.watch_the_clock();
        }
    }

    /// One request of a scalable reliable datagram pair.
    fn scalable(
        &mut self,
        number: u32,
        position: u64,
        request: Request,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(pair) = self.pairs.get(number) else { return Step::Done(0, 0) };
        let Some(vector) = request.vector else {
            return Step::failed(c::IBV_WC_LOC_QP_OP_ERR);
        };
        let reads = request.opcode == c::IBV_WR_RDMA_READ;
        let sends = matches!(request.opcode, c::IBV_WR_SEND | c::IBV_WR_SEND_WITH_IMM);
        let access = if reads { c::IBV_ACCESS_LOCAL_WRITE } else { 0 };
        let Ok(length) = self.near(pair, position, access, scratch) else {
            return Step::failed(c::IBV_WC_LOC_PROT_ERR);
        };
        let limits = self.device(pair.device).and_then(|each| each.description.efa.as_ref());
        let most = limits.map_or(0, |limits| if sends { limits.mtu } else { limits.max_rdma_size });
        if length > most.into() {
            return Step::failed(c::IBV_WC_LOC_LEN_ERR);
        }
        let target = match self.scalable_target(pair, &vector, request) {
            Ok(target) => target,
            Err(step) => return step,
        };
        if sends {
            self.scalable_send(number, target, request, length, scratch)
        } else {
            self.scalable_rdma(number, target, request, length, scratch)
        }
    }

    /// The pair that a request is for.
    fn scalable_target(
        &self,
        pair: &QueuePair,
        vector: &Vector,
        request: Request,
    ) -> Result<u32, Step> {
        let active = |number: u8, device: usize| {
            let port = self.devices.get(device)?.description.port(number)?;
            (port.state == c::IBV_PORT_ACTIVE && vector.names(port)).then_some(())
        };
        let own = self.port_of(pair).is_some_and(|port| port.state == c::IBV_PORT_ACTIVE);
        let there = (0..self.devices.len()).any(|device| active(1, device).is_some());
        if !own || !there {
            return Err(Step::Later(Reason::Silence));
        }
        let peer = self.pairs.get(request.qpn).filter(|peer| {
            peer.kind == c::IBV_QPT_DRIVER
                && peer.attr.qkey == request.qkey
                && self.listens(peer)
                && self.reaches(pair, vector, peer)
        });
        peer.map(|_| request.qpn).ok_or(Step::failed(c::IBV_WC_REM_INV_RD_REQ_ERR))
    }

    fn scalable_send(
        &mut self,
        number: u32,
        target: u32,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(inlet) = self.inlet(target, 0) else { return Step::Later(Reason::Silence) };
        let wr_id = match self.offer(target, inlet, length, &mut scratch.to) {
            Offer::Room(wr_id) => wr_id,
            Offer::Nothing => return Step::Later(Reason::NotReady(PAUSE)),
            Offer::Failed(c::IBV_WC_LOC_LEN_ERR) => {
                return Step::failed(c::IBV_WC_REM_INV_REQ_ERR);
            }
            Offer::Failed(_) => return Step::failed(c::IBV_WC_REM_ABORT_ERR),
        };
        // SAFETY: both sides were checked above, under the lock that `self` shows is held.
        if unsafe { self.transfer(&scratch.from, &scratch.to) }.is_err() {
            return Step::failed(c::IBV_WC_REM_ABORT_ERR);
        }
        let arrived = self.scalable_arrived(number, target, request, length);
        let message = inlet.received(target, wr_id);
        let completion = Completion { wr_id, frees: message.frees, ..arrived };
        self.report_receive(target, inlet, completion);
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    fn scalable_rdma(
        &mut self,
        number: u32,
        target: u32,
        request: Request,
        length: u64,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(inlet) = self.inlet(target, 0) else { return Step::Later(Reason::Silence) };
        if !self.knows(target, number) {
            return Step::failed(c::IBV_WC_REM_OP_ERR);
        }
        let reads = request.opcode == c::IBV_WR_RDMA_READ;
        let access = if reads { c::IBV_ACCESS_REMOTE_READ } else { c::IBV_ACCESS_REMOTE_WRITE };
        let asker = Asker { pair: target, domain: self.inlet_domain(target, inlet) };
        let (key, address) = (request.rkey, request.remote_address);
        let far = self.keys.remote(key, asker, address, length, access);
        let (Ok(place), Ok(bytes)) = (far, usize::try_from(length)) else {
            return Step::failed(c::IBV_WC_REM_ACCESS_ERR);
        };
        let side = if reads { &mut scratch.from } else { &mut scratch.to };
        side.push(Piece { place, length: bytes });
        let immediate = request.opcode == c::IBV_WR_RDMA_WRITE_WITH_IMM;
        let unsolicited = |pair: Option<&QueuePair>| pair.is_some_and(|pair| pair.unsolicited);
        let asks_for_none = unsolicited(self.pairs.get(number));
        if immediate && asks_for_none != unsolicited(self.pairs.get(target)) {
            return Step::failed(c::IBV_WC_GENERAL_ERR);
        }
        let mut receive = None;
        if immediate && !asks_for_none {
            receive = self.use_up(inlet);
            if receive.is_none() {
                return Step::Later(Reason::NotReady(PAUSE));
            }
        }
        // SAFETY: both sides were checked above, under the lock that `self` shows is held.
        if unsafe { self.transfer(&scratch.from, &scratch.to) }.is_err() {
            return Step::failed(c::IBV_WC_REM_ABORT_ERR);
        }
        if immediate {
            let arrived = self.scalable_arrived(number, target, request, length);
            let arrived = Completion { opcode: c::IBV_WC_RECV_RDMA_WITH_IMM, ..arrived };
            let completion = match receive {
                Some(wr_id) => {
                    let frees = inlet.received(target, wr_id).frees;
                    Completion { wr_id, frees, ..arrived }
                }
                // There is no request whose number it could have.
                None => Completion { wr_id: u64::MAX, unsolicited: true, ..arrived },
            };
            self.report_receive(target, inlet, completion);
        }
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    /// Whether the device of a pair has an address handle for the sender, without which it does not
    /// let it read or write.
    fn knows(&self, target: u32, sender: u32) -> bool {
        let Some(pair) = self.pairs.get(target) else { return false };
        let gid = self.pairs.get(sender).and_then(|sender| self.source_gid(sender));
        gid.is_some_and(|gid| self.handle_number(pair.device, gid).is_some())
    }

    fn source_gid(&self, pair: &QueuePair) -> Option<[u8; 16]> {
        Some(self.port_of(pair)?.gids.first()?.gid)
    }

    /// The completion of a message, without the receive that it used up.
    fn scalable_arrived(
        &self,
        from: u32,
        target: u32,
        request: Request,
        length: u64,
    ) -> Completion {
        let immediate =
            matches!(request.opcode, c::IBV_WR_SEND_WITH_IMM | c::IBV_WR_RDMA_WRITE_WITH_IMM);
        let sgid = self.pairs.get(from).and_then(|pair| self.source_gid(pair)).unwrap_or_default();
        let device = self.pairs.get(target).map_or(0, |pair| pair.device);
        Completion {
            opcode: c::IBV_WC_RECV,
            byte_len: u32::try_from(length).unwrap_or(u32::MAX),
            imm_data: if immediate { request.immediate } else { 0 },
            wc_flags: if immediate { c::IBV_WC_WITH_IMM } else { 0 },
            qp_num: target,
            pair: target,
            src_qp: from,
            // The number of an address handle, or 0xffff if there is none for the sender.
            slid: self.handle_number(device, sgid).unwrap_or(u16::MAX),
            sgid,
            ..Completion::default()
        }
    }
}
