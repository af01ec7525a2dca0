//! A rule as C takes it: attributes, and specifications one behind the other.
#![expect(unsafe_code, reason = "lays out a list of C structs")]

use std::mem::MaybeUninit;

use rdma_sys::ibv_flow_attr;

use super::{
    FlowRule,
    packets::{
        EthernetMatch, Filter, Ipv4Match, Ipv6Match, NetworkMatch, PortMatch, TransportMatch,
    },
};
use crate::{PacketMatch, PortNumber};

/// Attributes and specifications in one piece of memory.
pub(super) struct Encoded {
    /// Aligned for every struct in it that stands at the start; the others stand where the one before them ends.
    words: Vec<MaybeUninit<u64>>,
    attributes: ibv_flow_attr,
    length: usize,
}

/// Adds a specification of a kind, whose struct names its own size.
macro_rules! push {
    ($to:ident, $type:ident($kind:expr) { $($field:ident: $value:expr),* }) => {{
        let mut spec = rdma_sys::$type::default();
        spec.type_ = $kind;
        spec.size = u16::try_from(size_of::<rdma_sys::$type>()).unwrap_or(u16::MAX);
        $(spec.$field = $value;)*
        $to.push(spec);
    }};
}

impl Encoded {
    pub(super) fn new(rule: &FlowRule<'_>, port: PortNumber) -> Self {
        let attributes = ibv_flow_attr {
            type_: rule.kind,
            priority: rule.priority,
            port: port.get(),
            flags: if rule.lets_pass { rdma_sys::IBV_FLOW_ATTR_FLAGS_DONT_TRAP } else { 0 },
            ..Default::default()
        };
        let length = size_of::<ibv_flow_attr>();
        let mut encoded = Self { words: Vec::new(), attributes, length };
        encoded.packets(&rule.packets, 0);
        if let Some(tag) = rule.tag {
            push!(encoded, ibv_flow_spec_action_tag(rdma_sys::IBV_FLOW_SPEC_ACTION_TAG) { tag_id: tag });
        }
        if rule.discards {
            push!(encoded, ibv_flow_spec_action_drop(rdma_sys::IBV_FLOW_SPEC_ACTION_DROP) {});
        }
        if let Some(counters) = &rule.counters {
            let raw = counters.as_raw();
            push!(encoded, ibv_flow_spec_counter_action(rdma_sys::IBV_FLOW_SPEC_ACTION_COUNT) { counters: raw });
        }
        encoded.attributes.size = u16::try_from(encoded.length).unwrap_or(u16::MAX);
        let attributes = encoded.attributes;
        encoded.write(0, attributes);
        encoded
    }

    /// The headers from the outside to the inside, which is the order that devices want.
    fn packets(&mut self, packets: &PacketMatch, inner: u32) {
        if let Some(EthernetMatch(Filter { value, mask })) = packets.ethernet {
            push!(self, ibv_flow_spec_eth(rdma_sys::IBV_FLOW_SPEC_ETH | inner) { val: value, mask: mask });
        }
        match packets.network {
            Some(NetworkMatch::V4(Ipv4Match(Filter { value, mask }))) => {
                let rest = [mask.proto, mask.tos, mask.ttl, mask.flags];
                if rest == [0; 4] {
                    // Addresses alone have a specification of their own, which older devices know too.
                    let addresses = |it: rdma_sys::ibv_flow_ipv4_ext_filter| {
                        rdma_sys::ibv_flow_ipv4_filter { src_ip: it.src_ip, dst_ip: it.dst_ip }
                    };
                    let (value, mask) = (addresses(value), addresses(mask));
                    push!(self, ibv_flow_spec_ipv4(rdma_sys::IBV_FLOW_SPEC_IPV4 | inner) { val: value, mask: mask });
                } else {
                    push!(self, ibv_flow_spec_ipv4_ext(rdma_sys::IBV_FLOW_SPEC_IPV4_EXT | inner) { val: value, mask: mask });
                }
            }
            Some(NetworkMatch::V6(Ipv6Match(Filter { value, mask }))) => {
                push!(self, ibv_flow_spec_ipv6(rdma_sys::IBV_FLOW_SPEC_IPV6 | inner) { val: value, mask: mask });
            }
            None => {}
        }
        let ports = match packets.transport {
            Some(TransportMatch::Tcp(ports)) => Some((rdma_sys::IBV_FLOW_SPEC_TCP, ports)),
            Some(TransportMatch::Udp(ports)) => Some((rdma_sys::IBV_FLOW_SPEC_UDP, ports)),
            None => None,
        };
        if let Some((kind, PortMatch(Filter { value, mask }))) = ports {
            push!(self, ibv_flow_spec_tcp_udp(kind | inner) { val: value, mask: mask });
        }
        if let Some((network, inside)) = &packets.tunnel {
            let value = rdma_sys::ibv_flow_tunnel_filter { tunnel_id: network.to_be() };
            let mask = rdma_sys::ibv_flow_tunnel_filter { tunnel_id: 0xff_ffff_u32.to_be() };
            push!(self, ibv_flow_spec_tunnel(rdma_sys::IBV_FLOW_SPEC_VXLAN_TUNNEL) { val: value, mask: mask });
            self.packets(inside, rdma_sys::IBV_FLOW_SPEC_INNER);
        }
    }

    /// Puts a specification behind what there is.
    fn push<T: Copy>(&mut self, spec: T) {
        self.write(self.length, spec);
        self.length += size_of::<T>();
        self.attributes.num_of_specs += 1;
    }

    fn write<T: Copy>(&mut self, at: usize, value: T) {
        let words = (at + size_of::<T>()).div_ceil(size_of::<u64>());
        if self.words.len() < words {
            self.words.resize(words, MaybeUninit::zeroed());
        }
        let place = self.words.as_mut_ptr().wrapping_byte_add(at).cast::<T>();
        // SAFETY: the words reach to the end of the value, which was seen to; any bytes can be in them.
        unsafe { place.write_unaligned(value) };
    }

    /// What `ibv_create_flow` reads.
    pub(super) fn as_mut_ptr(&mut self) -> *mut ibv_flow_attr {
        self.words.as_mut_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MacAddress;

    /// Kind and place of each specification.
    fn specifications(encoded: &mut Encoded) -> Vec<(u32, usize)> {
        let attributes = encoded.as_mut_ptr();
        // SAFETY: the attributes stand at the start.
        let count = unsafe { (*attributes).num_of_specs };
        let mut place = size_of::<ibv_flow_attr>();
        let mut found = Vec::new();
        for _ in 0..count {
            let head = attributes.wrapping_byte_add(place);
            // SAFETY: each specification begins with its kind.
            let kind = unsafe { head.cast::<u32>().read_unaligned() };
            // SAFETY: and goes on with its size.
            let size = unsafe { head.wrapping_byte_add(4).cast::<u16>().read_unaligned() };
            found.push((kind, place));
            place += usize::from(size);
        }
        // SAFETY: the attributes stand at the start.
        assert_eq!(place, usize::from(unsafe { (*attributes).size }));
        assert!(place <= size_of_val(encoded.words.as_slice()));
        found
    }

    #[test]
    fn specifications_go_from_the_outside_in_whatever_the_order_of_their_setters() {
        let inside = PacketMatch::new().tcp(PortMatch::new()).ipv4(Ipv4Match::new().protocol(6));
        let packets = PacketMatch::new()
            .udp(PortMatch::new().destination(4789))
            .vxlan(7, inside)
            .unwrap()
            .ipv6(Ipv6Match::new())
            .ethernet(EthernetMatch::new().destination(MacAddress::BROADCAST));
        let rule = FlowRule::new(packets).tag(3);
        let mut encoded = Encoded::new(&rule, PortNumber::new(1).unwrap());
        let inner = rdma_sys::IBV_FLOW_SPEC_INNER;
        let kinds: Vec<u32> = specifications(&mut encoded).iter().map(|it| it.0).collect();
        assert_eq!(
            kinds,
            [
                rdma_sys::IBV_FLOW_SPEC_ETH,
                rdma_sys::IBV_FLOW_SPEC_IPV6,
                rdma_sys::IBV_FLOW_SPEC_UDP,
                rdma_sys::IBV_FLOW_SPEC_VXLAN_TUNNEL,
                rdma_sys::IBV_FLOW_SPEC_IPV4_EXT | inner,
                rdma_sys::IBV_FLOW_SPEC_TCP | inner,
                rdma_sys::IBV_FLOW_SPEC_ACTION_TAG,
            ]
        );
    }

    #[test]
    fn a_rule_without_headers_is_attributes_alone() {
        let rule = FlowRule::new(PacketMatch::new()).priority(2).let_pass();
        let mut encoded = Encoded::new(&rule, PortNumber::new(3).unwrap());
        assert_eq!(specifications(&mut encoded), []);
        // SAFETY: the attributes stand at the start.
        let attributes = unsafe { encoded.as_mut_ptr().read() };
        assert_eq!((attributes.priority, attributes.port), (2, 3));
        assert_eq!(attributes.type_, rdma_sys::IBV_FLOW_ATTR_NORMAL);
        assert_eq!(attributes.flags, rdma_sys::IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
    }
}
