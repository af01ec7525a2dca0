//! Unreliable datagrams, to one pair or to a multicast group.
#![expect(unsafe_code, reason = "moves bytes between memory that was checked under the lock")]

use rdma_sys as c;

use super::{QueuePair, execute::Step, receive::Offer, route::mtu_bytes, work::Request};
use crate::{
    address::{Header, Vector},
    completion_queue::Completion,
    fabric::{Fabric, Scratch},
    memory::{Piece, Place},
};

/// The bytes before a datagram in the receive buffer.
const HEADER: usize = 40;
/// The queue pair number of a multicast message.
const MULTICAST: u32 = 0xff_ffff;
/// Keys with this bit are not the user's to send: the pair's own is sent instead.
const PRIVILEGED: u32 = 1 << 31;

/// A datagram on its way.
#[derive(Debug, Clone, Copy)]
struct Datagram {
    from: u32,
    vector: Vector,
    key: u32,
    request: Request,
    length: u64,
    header: [u8; HEADER],
    slid: u16,
}

impl Fabric {
    /// One request of an unreliable datagram pair. Whether it arrives, its sender does not learn.
    pub(super) fn datagram(
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
        // The header of each receiver goes before the payload.
        let place = Place::Nowhere;
        scratch.from.push(Piece { place, length: HEADER });
        let Ok(length) = self.near(pair, position, 0, scratch) else {
            return Step::failed(c::IBV_WC_LOC_PROT_ERR);
        };
        let mtu = self.device(pair.device).map_or(0, |device| device.description.mtu);
        if length > mtu_bytes(mtu) {
            return Step::failed(c::IBV_WC_LOC_LEN_ERR);
        }
        let privileged = request.qkey & PRIVILEGED != 0;
        let datagram = Datagram {
            from: number,
            vector,
            key: if privileged { pair.attr.qkey } else { request.qkey },
            request,
            length,
            header: self.header(pair, &vector, length),
            slid: self.port_of(pair).map_or(0, |port| port.lid),
        };
        let group = vector.global.map(|global| global.dgid).filter(|gid| gid[0] == 0xff);
        match group {
            Some(gid) if request.qpn == MULTICAST => {
                let blocks = pair.blocks_loopback;
                for place in 0..self.members.len() {
                    let Some(&member) = self.members.get(place) else { break };
                    if member.gid == gid && !(blocks && member.pair == number) {
                        self.deliver_datagram(&datagram, member.pair, scratch);
                    }
                }
            }
            Some(_) => {}
            None => {
                let reached = self.pairs.get(request.qpn).is_some_and(|peer| {
                    self.pairs.get(number).is_some_and(|pair| self.reaches(pair, &vector, peer))
                });
                if reached {
                    self.deliver_datagram(&datagram, request.qpn, scratch);
                }
            }
        }
        Step::Done(c::IBV_WC_SUCCESS, length)
    }

    /// The network header of a datagram; all zeros without a global route.
    fn header(&self, pair: &QueuePair, vector: &Vector, length: u64) -> [u8; HEADER] {
        let Some(global) = vector.global else { return [0; HEADER] };
        let own = self.port_of(pair).and_then(|port| port.gids.get(usize::from(global.sgid_index)));
        let header = Header {
            from: own.map_or([0; 16], |entry| entry.gid),
            to: global.dgid,
            flow_label: global.flow_label,
            hop_limit: global.hop_limit,
            traffic_class: global.traffic_class,
        };
        header.bytes(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// Gives a datagram to a pair, or drops it where that pair does not want it.
    fn deliver_datagram(&mut self, datagram: &Datagram, target: u32, scratch: &mut Scratch) {
        let wanted = self.pairs.get(target).is_some_and(|pair| {
            let keyed = pair.kind == c::IBV_QPT_UD && pair.attr.qkey == datagram.key;
            let active = self.port_of(pair).is_some_and(|port| port.state == c::IBV_PORT_ACTIVE);
            keyed && active && self.listens(pair)
        });
        let Some(inlet) = self.inlet(target, 0).filter(|_| wanted) else { return };
        scratch.to.clear();
        let whole = datagram.length + u64::try_from(HEADER).unwrap_or(0);
        let wr_id = match self.offer(target, inlet, whole, &mut scratch.to) {
            Offer::Room(wr_id) => wr_id,
            Offer::Nothing => return,
            Offer::Failed(_) => {
                self.broken.push((target, c::IBV_EVENT_QP_REQ_ERR));
                return;
            }
        };
        if let Some(first) = scratch.from.first_mut() {
            first.place = Place::Host(datagram.header.as_ptr().expose_provenance());
        }
        // SAFETY: both sides were checked under the lock that is held, and the header is borrowed.
        if unsafe { self.transfer(&scratch.from, &scratch.to) }.is_err() {
            let failed = inlet.received(target, wr_id).ended(c::IBV_WC_GENERAL_ERR);
            self.report_receive(target, inlet, failed);
            self.broken.push((target, c::IBV_EVENT_QP_REQ_ERR));
            return;
        }
        let request = datagram.request;
        let immediate = request.opcode == c::IBV_WR_SEND_WITH_IMM;
        let global = datagram.vector.global.is_some();
        let completion = Completion {
            byte_len: u32::try_from(whole).unwrap_or(u32::MAX),
            imm_data: if immediate { request.immediate } else { 0 },
            wc_flags: if immediate { c::IBV_WC_WITH_IMM } else { 0 }
                | if global { c::IBV_WC_GRH } else { 0 },
            src_qp: datagram.from,
            slid: datagram.slid,
            sl: datagram.vector.sl,
            solicited: request.flags & c::IBV_SEND_SOLICITED != 0,
            ..inlet.received(target, wr_id)
        };
        self.report_receive(target, inlet, completion);
    }
}
