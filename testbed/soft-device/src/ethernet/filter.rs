//! The specifications of a flow: which frames it wants, and what is to be done with them.
#![expect(unsafe_code, reason = "reads a list of structs behind an ibv_flow_attr")]

use std::ptr;

use rdma_sys as c;

use super::frame::{Headers, Layers, Network};
use crate::{errno::Outcome, handle::Handle};

/// What one header of a frame must be: the bits of `value` under `mask`.
#[derive(Debug, Clone, Copy)]
enum Part {
    Ethernet(c::ibv_flow_eth_filter, c::ibv_flow_eth_filter),
    Ipv4(c::ibv_flow_ipv4_ext_filter, c::ibv_flow_ipv4_ext_filter),
    Ipv6(c::ibv_flow_ipv6_filter, c::ibv_flow_ipv6_filter),
    Ports { tcp: bool, value: c::ibv_flow_tcp_udp_filter, mask: c::ibv_flow_tcp_udp_filter },
    Tunnel(u32, u32),
}

/// A part, and whether it is about the frame inside of a tunnel.
#[derive(Debug, Clone, Copy)]
struct Filter {
    inner: bool,
    part: Part,
}

/// The specifications of a flow.
#[derive(Debug, Default)]
pub(crate) struct Specifications {
    filters: Vec<Filter>,
    pub(crate) tag: u32,
    pub(crate) drops: bool,
    pub(crate) counters: Option<u32>,
}

/// The tags that a completion has room for, as on ConnectX cards.
const TAG_LIMIT: u32 = 1 << 24;

impl Specifications {
    /// Reads what stands behind the attributes: `EINVAL` for a size that is not that of its kind, a header that is named
    /// twice, a tag that is too great, or a tag for what is dropped; `EOPNOTSUPP` for kinds that the
    /// device does not know.
    ///
    /// # Safety
    ///
    /// `attr` is followed by as many specifications as it says, and each of them has the size that it says. The
    /// counters that they name are live.
    pub(crate) unsafe fn read(attr: *const c::ibv_flow_attr) -> Outcome<Self> {
        // SAFETY: the caller gives a readable struct.
        let head = unsafe { attr.read() };
        let mut found = Self::default();
        let mut place: *const u8 = attr.wrapping_add(1).cast();
        for _ in 0..head.num_of_specs {
            // SAFETY: a specification begins here, by the contract above.
            let spec = unsafe { found.read_one(place) }?;
            if spec.is_filter && found.names_a_header_twice() {
                return Err(libc::EINVAL);
            }
            place = place.wrapping_add(spec.size);
        }
        let length = place.addr() - attr.addr();
        if usize::from(head.size) != length || (found.drops && found.tag != 0) {
            return Err(libc::EINVAL);
        }
        Ok(found)
    }

    /// Reads one specification; how long it is, and whether it is a filter.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read).
    unsafe fn read_one(&mut self, place: *const u8) -> Outcome<Spec> {
        // SAFETY: each specification begins with this, wherever it stands.
        let head = unsafe {
            ptr::read_unaligned(place.cast::<c::ibv_flow_spec__bindgen_ty_1__bindgen_ty_1>())
        };
        let inner = head.type_ & c::IBV_FLOW_SPEC_INNER != 0;
        let size = usize::from(head.size);
        /// The whole specification, whose size must be that of its struct.
        macro_rules! spec {
            ($kind:ty) => {{
                if size != size_of::<$kind>() {
                    return Err(libc::EINVAL);
                }
                // SAFETY: it has as many bytes as its size says, which was compared.
                unsafe { ptr::read_unaligned(place.cast::<$kind>()) }
            }};
        }
        let part = match head.type_ & !c::IBV_FLOW_SPEC_INNER {
            c::IBV_FLOW_SPEC_ETH => {
                let spec = spec!(c::ibv_flow_spec_eth);
                Part::Ethernet(spec.val, spec.mask)
            }
            c::IBV_FLOW_SPEC_IPV4 => {
                let spec = spec!(c::ibv_flow_spec_ipv4);
                let whole = |it: c::ibv_flow_ipv4_filter| c::ibv_flow_ipv4_ext_filter {
                    src_ip: it.src_ip,
                    dst_ip: it.dst_ip,
                    ..c::ibv_flow_ipv4_ext_filter::default()
                };
                Part::Ipv4(whole(spec.val), whole(spec.mask))
            }
            c::IBV_FLOW_SPEC_IPV4_EXT => {
                let spec = spec!(c::ibv_flow_spec_ipv4_ext);
                Part::Ipv4(spec.val, spec.mask)
            }
            c::IBV_FLOW_SPEC_IPV6 => {
                let spec = spec!(c::ibv_flow_spec_ipv6);
                Part::Ipv6(spec.val, spec.mask)
            }
            kind @ (c::IBV_FLOW_SPEC_TCP | c::IBV_FLOW_SPEC_UDP) => {
                let spec = spec!(c::ibv_flow_spec_tcp_udp);
                Part::Ports { tcp: kind == c::IBV_FLOW_SPEC_TCP, value: spec.val, mask: spec.mask }
            }
            c::IBV_FLOW_SPEC_VXLAN_TUNNEL => {
                let spec = spec!(c::ibv_flow_spec_tunnel);
                Part::Tunnel(spec.val.tunnel_id, spec.mask.tunnel_id)
            }
            c::IBV_FLOW_SPEC_ACTION_TAG => {
                self.tag = spec!(c::ibv_flow_spec_action_tag).tag_id;
                if self.tag >= TAG_LIMIT {
                    return Err(libc::EINVAL);
                }
                return Ok(Spec { size, is_filter: false });
            }
            c::IBV_FLOW_SPEC_ACTION_DROP => {
                let _ = spec!(c::ibv_flow_spec_action_drop);
                self.drops = true;
                return Ok(Spec { size, is_filter: false });
            }
            c::IBV_FLOW_SPEC_ACTION_COUNT => {
                let counters = spec!(c::ibv_flow_spec_counter_action).counters;
                if counters.is_null() || self.counters.is_some() {
                    return Err(libc::EINVAL);
                }
                // SAFETY: the counters are live, by the contract of `read`.
                self.counters = Some(unsafe { Handle::number(counters) });
                return Ok(Spec { size, is_filter: false });
            }
            _ => return Err(libc::EOPNOTSUPP),
        };
        self.filters.push(Filter { inner, part });
        Ok(Spec { size, is_filter: true })
    }

    /// Whether the last filter is about a header of a layer that another is about.
    fn names_a_header_twice(&self) -> bool {
        let place = |filter: &Filter| (filter.inner, filter.part.layer());
        self.filters
            .split_last()
            .is_some_and(|(last, others)| others.iter().any(|other| place(other) == place(last)))
    }

    pub(crate) fn has_filters(&self) -> bool {
        !self.filters.is_empty()
    }

    /// Whether the flow wants a frame.
    pub(crate) fn want(&self, headers: &Headers) -> bool {
        self.filters.iter().all(|filter| filter.wants(headers))
    }
}

/// How long a specification is, and whether it is a filter.
struct Spec {
    size: usize,
    is_filter: bool,
}

impl Filter {
    fn wants(&self, headers: &Headers) -> bool {
        if let Part::Tunnel(value, mask) = self.part {
            let mask = u32::from_be(mask);
            return headers.tunnel.is_some_and(|(id, _)| (id ^ u32::from_be(value)) & mask == 0);
        }
        let layers =
            if self.inner { headers.tunnel.map(|(_, inner)| inner) } else { Some(headers.outer) };
        layers.is_some_and(|layers| self.part.wants(&layers))
    }
}

impl Part {
    /// How deep in a packet it stands.
    fn layer(&self) -> u8 {
        match self {
            Self::Ethernet(..) => 1,
            Self::Ipv4(..) | Self::Ipv6(..) => 2,
            Self::Ports { .. } => 3,
            Self::Tunnel(..) => 4,
        }
    }

    fn wants(&self, layers: &Layers) -> bool {
        match *self {
            Self::Ethernet(value, mask) => {
                let tag = layers.vlan.unwrap_or(0);
                same(&layers.destination, &value.dst_mac, &mask.dst_mac)
                    && same(&layers.source, &value.src_mac, &mask.src_mac)
                    && same_number(layers.ether_type, value.ether_type, mask.ether_type)
                    && (mask.vlan_tag == 0 || layers.vlan.is_some())
                    && same_number(tag, value.vlan_tag, mask.vlan_tag)
            }
            Self::Ipv4(value, mask) => {
                let Some(Network::V4 { source, destination, protocol, service, hops, flags }) =
                    layers.network
                else {
                    return false;
                };
                same(&source, &value.src_ip.to_ne_bytes(), &mask.src_ip.to_ne_bytes())
                    && same(&destination, &value.dst_ip.to_ne_bytes(), &mask.dst_ip.to_ne_bytes())
                    && same(
                        &[protocol, service, hops, flags],
                        &[value.proto, value.tos, value.ttl, value.flags],
                        &[mask.proto, mask.tos, mask.ttl, mask.flags],
                    )
            }
            Self::Ipv6(value, mask) => {
                let Some(Network::V6 { source, destination, next, class, hops, label }) =
                    layers.network
                else {
                    return false;
                };
                same(&source, &value.src_ip, &mask.src_ip)
                    && same(&destination, &value.dst_ip, &mask.dst_ip)
                    && (label.to_be() ^ value.flow_label) & mask.flow_label == 0
                    && same(
                        &[next, class, hops],
                        &[value.next_hdr, value.traffic_class, value.hop_limit],
                        &[mask.next_hdr, mask.traffic_class, mask.hop_limit],
                    )
            }
            Self::Ports { tcp, value, mask } => layers.transport.is_some_and(|ports| {
                ports.tcp == tcp
                    && same_number(ports.source, value.src_port, mask.src_port)
                    && same_number(ports.destination, value.dst_port, mask.dst_port)
            }),
            Self::Tunnel(..) => false,
        }
    }
}

fn same(found: &[u8], value: &[u8], mask: &[u8]) -> bool {
    found.iter().zip(value).zip(mask).all(|((found, value), mask)| (found ^ value) & mask == 0)
}

/// Of a number in the order of this machine, and a filter in network order.
fn same_number(found: u16, value: u16, mask: u16) -> bool {
    (found.to_be() ^ value) & mask == 0
}
