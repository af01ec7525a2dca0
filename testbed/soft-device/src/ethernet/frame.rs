//! What stands in an Ethernet frame: its headers, as far as rules and hashes look at them.

/// The frame of a VLAN has its tag (IEEE 802.1Q) behind this type.
pub(crate) const VLAN: u16 = 0x8100;
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The port of VXLAN (RFC 7348).
const VXLAN: u16 = 4789;

/// The headers of a frame, and of the one that a VXLAN tunnel carries in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headers {
    pub(crate) outer: Layers,
    /// The network of the tunnel, and what is inside.
    pub(crate) tunnel: Option<(u32, Layers)>,
}

/// The headers of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layers {
    pub(crate) destination: [u8; 6],
    pub(crate) source: [u8; 6],
    /// The tag with priority and number, if there is one.
    pub(crate) vlan: Option<u16>,
    /// The type behind the tag.
    pub(crate) ether_type: u16,
    pub(crate) network: Option<Network>,
    pub(crate) transport: Option<Transport>,
}

/// The header of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    V4 { source: [u8; 4], destination: [u8; 4], protocol: u8, service: u8, hops: u8, flags: u8 },
    V6 { source: [u8; 16], destination: [u8; 16], next: u8, class: u8, hops: u8, label: u32 },
}

/// The ports of a packet that has some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transport {
    pub(crate) tcp: bool,
    pub(crate) source: u16,
    pub(crate) destination: u16,
}

impl Headers {
    /// Reads a frame; `None` if it ends before its Ethernet header does.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let (outer, rest) = Layers::read(frame)?;
        let tunneled = outer.transport.is_some_and(|to| !to.tcp && to.destination == VXLAN);
        let tunnel = rest.filter(|_| tunneled).and_then(|rest| {
            let (header, inner) = rest.split_at_checked(8)?;
            let network = u32::from_be_bytes(take(header, 4)?) >> 8;
            Some((network, Layers::read(inner)?.0))
        });
        Some(Self { outer, tunnel })
    }
}

impl Layers {
    /// Reads one frame, and what comes after a UDP header.
    fn read(frame: &[u8]) -> Option<(Self, Option<&[u8]>)> {
        let mut layers = Self {
            destination: take(frame, 0)?,
            source: take(frame, 6)?,
            vlan: None,
            ether_type: u16::from_be_bytes(take(frame, 12)?),
            network: None,
            transport: None,
        };
        let mut start = 14;
        if layers.ether_type == VLAN
            && let (Some(tag), Some(behind)) = (take(frame, 14), take(frame, 16))
        {
            layers.vlan = Some(u16::from_be_bytes(tag));
            layers.ether_type = u16::from_be_bytes(behind);
            start = 18;
        }
        let Some((network, length, whole)) =
            frame.get(start..).and_then(|packet| Network::read(layers.ether_type, packet))
        else {
            return Some((layers, None));
        };
        layers.network = Some(network);
        let segment = frame.get(start + length..).filter(|_| whole);
        let tcp = network.protocol() == TCP;
        let has_ports = tcp || network.protocol() == UDP;
        layers.transport = segment.filter(|_| has_ports).and_then(|segment| {
            Some(Transport {
                tcp,
                source: u16::from_be_bytes(take(segment, 0)?),
                destination: u16::from_be_bytes(take(segment, 2)?),
            })
        });
        let payload = segment.filter(|_| !tcp && has_ports).and_then(|segment| segment.get(8..));
        Some((layers, payload))
    }
}

impl Network {
    /// Reads a packet: its header, how long that is, and whether the ports follow, which they do in the first
    /// fragment only.
    fn read(ether_type: u16, packet: &[u8]) -> Option<(Self, usize, bool)> {
        let [first] = take(packet, 0)?;
        match (ether_type, first >> 4) {
            (IPV4, 4) => {
                let [service] = take(packet, 1)?;
                let place = u16::from_be_bytes(take(packet, 6)?);
                let [hops] = take(packet, 8)?;
                let [protocol] = take(packet, 9)?;
                let header = Self::V4 {
                    source: take(packet, 12)?,
                    destination: take(packet, 16)?,
                    protocol,
                    service,
                    hops,
                    flags: u8::try_from(place >> 13).unwrap_or(0),
                };
                let length = usize::from(first & 0xf) * 4;
                Some((header, length.max(20), place & 0x1fff == 0))
            }
            (IPV6, 6) => {
                let word = u32::from_be_bytes(take(packet, 0)?);
                let [next] = take(packet, 6)?;
                let [hops] = take(packet, 7)?;
                let header = Self::V6 {
                    source: take(packet, 8)?,
                    destination: take(packet, 24)?,
                    next,
                    class: u8::try_from(word >> 20 & 0xff).unwrap_or(0),
                    hops,
                    label: word & 0xf_ffff,
                };
                Some((header, 40, true))
            }
            _ => None,
        }
    }

    pub(crate) fn protocol(self) -> u8 {
        match self {
            Self::V4 { protocol, .. } => protocol,
            Self::V6 { next, .. } => next,
        }
    }
}

/// `N` bytes from a place on.
fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame of UDP over IPv4, whose checksums are not set.
    pub(crate) fn udp(source: ([u8; 4], u16), destination: ([u8; 4], u16), data: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame.extend([0x45, 0x12, 0, 0, 0, 0, 0x40, 0, 63, UDP, 0, 0]);
        frame.extend(source.0);
        frame.extend(destination.0);
        frame.extend(source.1.to_be_bytes());
        frame.extend(destination.1.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(data);
        frame
    }

    #[test]
    fn every_layer_of_a_frame_is_read() {
        let frame = udp(([10, 0, 0, 1], 7), ([10, 0, 0, 2], 9), &[]);
        let layers = Headers::read(&frame).unwrap().outer;
        assert_eq!(layers.destination, [2, 0, 0, 0, 0, 2]);
        assert_eq!((layers.vlan, layers.ether_type), (None, IPV4));
        let (source, destination) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let (protocol, service, hops, flags) = (UDP, 0x12, 63, 2);
        let network = Network::V4 { source, destination, protocol, service, hops, flags };
        assert_eq!(layers.network, Some(network));
        let transport = Transport { tcp: false, source: 7, destination: 9 };
        assert_eq!(layers.transport, Some(transport));
    }

    #[test]
    fn the_type_of_a_tagged_frame_stands_behind_the_tag() {
        let mut frame = udp(([10, 0, 0, 1], 7), ([10, 0, 0, 2], 9), &[]);
        frame.splice(12..12, [0x81, 0, 0x60, 5]);
        let layers = Headers::read(&frame).unwrap().outer;
        assert_eq!((layers.vlan, layers.ether_type), (Some(0x6005), IPV4));
        assert_eq!(layers.transport.unwrap().destination, 9);
    }

    #[test]
    fn a_tunnel_has_headers_inside() {
        let inner = udp(([192, 0, 2, 1], 1), ([192, 0, 2, 2], 2), &[]);
        let mut data = vec![8, 0, 0, 0, 0, 0, 77, 0];
        data.extend(&inner);
        let headers =
            Headers::read(&udp(([10, 0, 0, 1], 7), ([10, 0, 0, 2], 4789), &data)).unwrap();
        assert_eq!(headers.tunnel, Some((77, Headers::read(&inner).unwrap().outer)));
    }

    #[test]
    fn no_length_is_too_short_to_be_read() {
        let frame = udp(([10, 0, 0, 1], 7), ([10, 0, 0, 2], 4789), &[0; 40]);
        for length in 0..frame.len() {
            assert_eq!(Headers::read(&frame[..length]).is_some(), length >= 14);
        }
    }
}
