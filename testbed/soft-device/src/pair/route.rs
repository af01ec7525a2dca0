//! Who hears whom: ports, packet numbers, packet sizes.

use rdma_sys as c;

use super::QueuePair;
use crate::{address::Vector, device::Port, fabric::Fabric};

/// One more than the greatest number of a packet.
const PSN_LIMIT: u32 = 1 << 24;

impl Fabric {
    /// The peer of a connection, if the packets reach it and it expects them.
    pub(super) fn responder(&self, number: u32, pair: &QueuePair) -> Option<u32> {
        let target = pair.attr.dest_qp_num;
        let peer = self.pairs.get(target)?;
        let answers = match pair.kind {
            c::IBV_QPT_XRC_SEND => c::IBV_QPT_XRC_RECV,
            kind => kind,
        };
        // Without acknowledgements a gap in the numbers loses messages, which there is none of here.
        let in_order = pair.kind == c::IBV_QPT_UC || peer.receive_psn == pair.send_psn;
        let expects = peer.kind == answers && peer.attr.dest_qp_num == number && in_order;
        let vector = Vector::new(&pair.attr.ah_attr);
        (expects && self.listens(peer) && self.reaches(pair, &vector, peer)).then_some(target)
    }

    /// Whether a pair takes messages.
    pub(super) fn listens(&self, pair: &QueuePair) -> bool {
        matches!(pair.state, c::IBV_QPS_RTR | c::IBV_QPS_RTS | c::IBV_QPS_SQD | c::IBV_QPS_SQE)
    }

    /// The port of a pair, once it has one.
    pub(super) fn port_of(&self, pair: &QueuePair) -> Option<&Port> {
        self.device(pair.device)?.description.port(pair.attr.port_num)
    }

    /// Whether a packet from a pair to an address comes to the port of another pair.
    pub(super) fn reaches(&self, pair: &QueuePair, vector: &Vector, peer: &QueuePair) -> bool {
        let (Some(from), Some(to)) = (self.port_of(pair), self.port_of(peer)) else {
            return false;
        };
        let active = from.state == c::IBV_PORT_ACTIVE && to.state == c::IBV_PORT_ACTIVE;
        active && vector.names(to)
    }

    /// Whether a message needs packets that the peer does not take.
    pub(super) fn path_is_too_narrow(&self, number: u32, target: u32, length: u64) -> bool {
        let mtu = |number| self.pairs.get(number).map_or(0, |pair| pair.attr.path_mtu);
        let (ours, theirs) = (mtu(number), mtu(target));
        ours > theirs && length > mtu_bytes(theirs)
    }

    /// Counts the packets of a message on both sides.
    pub(super) fn count_packets(&mut self, number: u32, target: u32, length: u64) {
        let Some(pair) = self.pairs.get_mut(number) else { return };
        let packets = length.div_ceil(mtu_bytes(pair.attr.path_mtu)).max(1);
        let packets = u32::try_from(packets % u64::from(PSN_LIMIT)).unwrap_or(0);
        pair.send_psn = (pair.send_psn + packets) % PSN_LIMIT;
        if let Some(peer) = self.pairs.get_mut(target) {
            peer.receive_psn = (peer.receive_psn + packets) % PSN_LIMIT;
        }
    }
}

/// The bytes of an `ibv_mtu`.
pub(super) fn mtu_bytes(mtu: c::ibv_mtu) -> u64 {
    128 << mtu.clamp(c::IBV_MTU_256, c::IBV_MTU_4096)
}
