//! What a frame must have in its headers for a flow to take it.

use std::net::{Ipv4Addr, Ipv6Addr};

use rdma_sys::{
    ibv_flow_eth_filter, ibv_flow_ipv4_ext_filter, ibv_flow_ipv6_filter, ibv_flow_tcp_udp_filter,
};

use crate::{Error, MacAddress, Result};

/// Fields of a header, and which bits of them count.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Filter<F> {
    pub(super) value: F,
    pub(super) mask: F,
}

impl<F> Filter<F> {
    /// Demands a field: `put` writes it into the value, and all the bits that count into the mask.
    fn with<V>(mut self, value: V, mask: V, put: impl Fn(&mut F, V)) -> Self {
        put(&mut self.value, value);
        put(&mut self.mask, mask);
        self
    }
}

/// Packets by their headers. What is not named may be anything.
///
/// Few devices take parts of a field, such as the network of an address: most want it whole or not at all, and refuse the
/// flow otherwise.
///
/// # Examples
///
/// DNS requests to this host:
///
/// ```
/// use ibverbs::{EthernetMatch, Ipv4Match, MacAddress, PacketMatch, PortMatch};
///
/// fn requests(host: MacAddress) -> PacketMatch {
///     PacketMatch::new()
///         .ethernet(EthernetMatch::new().destination(host))
///         .ipv4(Ipv4Match::new())
///         .udp(PortMatch::new().destination(53))
/// }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "packets are named for a `FlowRule`"]
pub struct PacketMatch {
    pub(super) ethernet: Option<EthernetMatch>,
    pub(super) network: Option<NetworkMatch>,
    pub(super) transport: Option<TransportMatch>,
    pub(super) tunnel: Option<(u32, Box<Self>)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum NetworkMatch {
    V4(Ipv4Match),
    V6(Ipv6Match),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum TransportMatch {
    Tcp(PortMatch),
    Udp(PortMatch),
}

impl PacketMatch {
    /// Every packet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Frames with this Ethernet header.
    #[doc(alias = "ibv_flow_spec_eth")]
    pub fn ethernet(self, header: EthernetMatch) -> Self {
        Self { ethernet: Some(header), ..self }
    }

    /// Packets of IPv4 with this header.
    #[doc(alias = "ibv_flow_spec_ipv4")]
    pub fn ipv4(self, header: Ipv4Match) -> Self {
        Self { network: Some(NetworkMatch::V4(header)), ..self }
    }

    /// Packets of IPv6 with this header.
    #[doc(alias = "ibv_flow_spec_ipv6")]
    pub fn ipv6(self, header: Ipv6Match) -> Self {
        Self { network: Some(NetworkMatch::V6(header)), ..self }
    }

    /// TCP with these ports.
    #[doc(alias = "ibv_flow_spec_tcp_udp")]
    pub fn tcp(self, ports: PortMatch) -> Self {
        Self { transport: Some(TransportMatch::Tcp(ports)), ..self }
    }

    /// UDP with these ports.
    #[doc(alias = "ibv_flow_spec_tcp_udp")]
    pub fn udp(self, ports: PortMatch) -> Self {
        Self { transport: Some(TransportMatch::Udp(ports)), ..self }
    }

    /// Packets of a VXLAN tunnel (RFC 7348) of this network that carry such packets inside. Devices want to be told that
    /// it is [UDP](Self::udp) outside.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the network does not fit 24 bits; [`Error::Invalid`] if there is a tunnel inside of the tunnel.
    #[doc(alias = "ibv_flow_spec_tunnel")]
    pub fn vxlan(self, network: u32, inside: Self) -> Result<Self> {
        Error::check("the VXLAN network", network.into(), 0, 0xff_ffff)?;
        if inside.tunnel.is_some() {
            return Err(Error::Invalid {
                what: "there is a tunnel inside of a tunnel".into(),
                remedy: "a flow looks into one; leave the other out",
            });
        }
        Ok(Self { tunnel: Some((network, Box::new(inside))), ..self })
    }
}

/// An Ethernet header.
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "a header is named for a `PacketMatch`"]
pub struct EthernetMatch(pub(super) Filter<ibv_flow_eth_filter>);

impl EthernetMatch {
    /// Any.
    pub fn new() -> Self {
        Self::default()
    }

    /// To this address.
    pub fn destination(self, address: MacAddress) -> Self {
        self.destination_in(address, MacAddress::BROADCAST)
    }

    /// To an address whose bits are those of `address` where `mask` has ones: with `01:00:00:00:00:00` for both, to any
    /// group.
    pub fn destination_in(self, address: MacAddress, mask: MacAddress) -> Self {
        Self(self.0.with(address, mask, |to, it| to.dst_mac = it.0))
    }

    /// From this address.
    pub fn source(self, address: MacAddress) -> Self {
        self.source_in(address, MacAddress::BROADCAST)
    }

    /// From an address whose bits are those of `address` where `mask` has ones.
    pub fn source_in(self, address: MacAddress, mask: MacAddress) -> Self {
        Self(self.0.with(address, mask, |to, it| to.src_mac = it.0))
    }

    /// Of this type, such as 0x0806 for ARP; that behind the tag, if there is a tag of a VLAN.
    pub fn ether_type(self, ether_type: u16) -> Self {
        Self(self.0.with(ether_type, u16::MAX, |to, it| to.ether_type = it.to_be()))
    }

    /// With the tag of this VLAN, of whatever priority.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the number does not fit 12 bits.
    pub fn vlan(self, number: u16) -> Result<Self> {
        Error::check("the VLAN", number.into(), 0, 0xfff)?;
        Ok(Self(self.0.with(number, 0xfff, |to, it| to.vlan_tag = it.to_be())))
    }
}

/// A header of IPv4.
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "a header is named for a `PacketMatch`"]
pub struct Ipv4Match(pub(super) Filter<ibv_flow_ipv4_ext_filter>);

impl Ipv4Match {
    /// Any.
    pub fn new() -> Self {
        Self::default()
    }

    /// From this address.
    pub fn source(self, address: Ipv4Addr) -> Self {
        self.source_in_bits(address, u32::MAX)
    }

    /// From the network of the first `prefix` bits of `address`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `prefix` is over 32.
    pub fn source_in(self, address: Ipv4Addr, prefix: u8) -> Result<Self> {
        Ok(self.source_in_bits(address, mask_of_32(prefix)?))
    }

    fn source_in_bits(self, address: Ipv4Addr, mask: u32) -> Self {
        Self(self.0.with(address.to_bits(), mask, |to, it| to.src_ip = it.to_be()))
    }

    /// To this address.
    pub fn destination(self, address: Ipv4Addr) -> Self {
        self.destination_in_bits(address, u32::MAX)
    }

    /// To the network of the first `prefix` bits of `address`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `prefix` is over 32.
    pub fn destination_in(self, address: Ipv4Addr, prefix: u8) -> Result<Self> {
        Ok(self.destination_in_bits(address, mask_of_32(prefix)?))
    }

    fn destination_in_bits(self, address: Ipv4Addr, mask: u32) -> Self {
        Self(self.0.with(address.to_bits(), mask, |to, it| to.dst_ip = it.to_be()))
    }

    /// Of this protocol, such as 1 for ICMP.
    #[doc(alias = "proto")]
    pub fn protocol(self, protocol: u8) -> Self {
        Self(self.0.with(protocol, u8::MAX, |to, it| to.proto = it))
    }

    /// With this type of service: the DSCP in its upper six bits.
    #[doc(alias = "tos")]
    pub fn type_of_service(self, service: u8) -> Self {
        Self(self.0.with(service, u8::MAX, |to, it| to.tos = it))
    }

    /// With this time to live.
    #[doc(alias = "ttl")]
    pub fn time_to_live(self, hops: u8) -> Self {
        Self(self.0.with(hops, u8::MAX, |to, it| to.ttl = it))
    }
}

/// A header of IPv6.
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "a header is named for a `PacketMatch`"]
pub struct Ipv6Match(pub(super) Filter<ibv_flow_ipv6_filter>);

impl Ipv6Match {
    /// Any.
    pub fn new() -> Self {
        Self::default()
    }

    /// From this address.
    pub fn source(self, address: Ipv6Addr) -> Self {
        self.source_in_bits(address, u128::MAX)
    }

    /// From the network of the first `prefix` bits of `address`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `prefix` is over 128.
    pub fn source_in(self, address: Ipv6Addr, prefix: u8) -> Result<Self> {
        Ok(self.source_in_bits(address, mask_of_128(prefix)?))
    }

    fn source_in_bits(self, address: Ipv6Addr, mask: u128) -> Self {
        Self(self.0.with(address.to_bits(), mask, |to, it| to.src_ip = it.to_be_bytes()))
    }

    /// To this address.
    pub fn destination(self, address: Ipv6Addr) -> Self {
        self.destination_in_bits(address, u128::MAX)
    }

    /// To the network of the first `prefix` bits of `address`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `prefix` is over 128.
    pub fn destination_in(self, address: Ipv6Addr, prefix: u8) -> Result<Self> {
        Ok(self.destination_in_bits(address, mask_of_128(prefix)?))
    }

    fn destination_in_bits(self, address: Ipv6Addr, mask: u128) -> Self {
        Self(self.0.with(address.to_bits(), mask, |to, it| to.dst_ip = it.to_be_bytes()))
    }

    /// With this flow label.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the label does not fit 20 bits.
    pub fn flow_label(self, label: u32) -> Result<Self> {
        Error::check("the flow label", label.into(), 0, 0xf_ffff)?;
        Ok(Self(self.0.with(label, 0xf_ffff, |to, it| to.flow_label = it.to_be())))
    }

    /// With this number of the header behind it, such as 17 for UDP.
    #[doc(alias = "next_hdr")]
    pub fn next_header(self, protocol: u8) -> Self {
        Self(self.0.with(protocol, u8::MAX, |to, it| to.next_hdr = it))
    }

    /// With this traffic class: the DSCP in its upper six bits.
    pub fn traffic_class(self, class: u8) -> Self {
        Self(self.0.with(class, u8::MAX, |to, it| to.traffic_class = it))
    }

    /// With this hop limit.
    pub fn hop_limit(self, hops: u8) -> Self {
        Self(self.0.with(hops, u8::MAX, |to, it| to.hop_limit = it))
    }
}

/// The ports of TCP or UDP.
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "ports are named for a `PacketMatch`"]
pub struct PortMatch(pub(super) Filter<ibv_flow_tcp_udp_filter>);

impl PortMatch {
    /// Any.
    pub fn new() -> Self {
        Self::default()
    }

    /// From this port.
    pub fn source(self, port: u16) -> Self {
        Self(self.0.with(port, u16::MAX, |to, it| to.src_port = it.to_be()))
    }

    /// To this port.
    pub fn destination(self, port: u16) -> Self {
        Self(self.0.with(port, u16::MAX, |to, it| to.dst_port = it.to_be()))
    }
}

fn mask_of_32(prefix: u8) -> Result<u32> {
    Error::check("the length of a prefix in bits", prefix.into(), 0, 32)?;
    Ok(u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0))
}

fn mask_of_128(prefix: u8) -> Result<u128> {
    Error::check("the length of a prefix in bits", prefix.into(), 0, 128)?;
    Ok(u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_network_order_and_count_with_all_their_bits() {
        let ethernet = EthernetMatch::new().ether_type(0x0806).vlan(5).unwrap().0;
        assert_eq!(ethernet.value.ether_type.to_ne_bytes(), [8, 6]);
        assert_eq!(ethernet.mask.ether_type, u16::MAX);
        assert_eq!(ethernet.mask.vlan_tag.to_ne_bytes(), [0x0f, 0xff]);
        assert_eq!(ethernet.mask.dst_mac, [0; 6]);
        let network = Ipv4Match::new().destination(Ipv4Addr::new(192, 0, 2, 7)).0;
        assert_eq!(network.value.dst_ip.to_ne_bytes(), [192, 0, 2, 7]);
        assert_eq!((network.mask.dst_ip, network.mask.src_ip), (u32::MAX, 0));
    }

    #[test]
    fn a_prefix_is_a_mask_of_so_many_ones() {
        assert_eq!([0, 8, 31, 32].map(|it| mask_of_32(it).unwrap()), [0, 0xff << 24, !1, !0]);
        assert_eq!([0, 128].map(|it| mask_of_128(it).unwrap()), [0, u128::MAX]);
        let text = mask_of_32(33).unwrap_err().to_string();
        assert_eq!(text, "the length of a prefix in bits cannot be 33: it must be from 0 to 32");
    }

    #[test]
    fn numbers_that_their_field_has_no_room_for_are_refused() {
        EthernetMatch::new().vlan(4096).unwrap_err();
        Ipv6Match::new().flow_label(1 << 20).unwrap_err();
        PacketMatch::new().vxlan(1 << 24, PacketMatch::new()).unwrap_err();
        let tunnel = PacketMatch::new().vxlan(1, PacketMatch::new()).unwrap();
        PacketMatch::new().vxlan(1, tunnel).unwrap_err();
    }
}
