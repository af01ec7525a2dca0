//! Receive-side scaling: the Toeplitz hash of a packet's addresses and ports.

use rdma_sys as c;

use super::frame::{Headers, Network};

/// The bytes of a key.
pub(crate) const KEY: usize = 40;
/// The most that is hashed: two IPv6 addresses and two ports.
const MOST: usize = 36;

/// The fields that the device can hash.
pub(crate) const FIELDS: u32 = IPV4 | IPV6 | TCP | UDP;
pub(crate) const IPV4: u32 = c::IBV_RX_HASH_SRC_IPV4 | c::IBV_RX_HASH_DST_IPV4;
pub(crate) const IPV6: u32 = c::IBV_RX_HASH_SRC_IPV6 | c::IBV_RX_HASH_DST_IPV6;
pub(crate) const TCP: u32 = c::IBV_RX_HASH_SRC_PORT_TCP | c::IBV_RX_HASH_DST_PORT_TCP;
pub(crate) const UDP: u32 = c::IBV_RX_HASH_SRC_PORT_UDP | c::IBV_RX_HASH_DST_PORT_UDP;

/// How a queue pair spreads what comes to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spreading {
    pub(crate) table: u32,
    pub(crate) key: [u8; KEY],
    pub(crate) fields: u32,
}

impl Spreading {
    /// The hash of a frame; 0 if it has none of the fields.
    pub(crate) fn hash(&self, headers: &Headers) -> u32 {
        let mut input = Input { bytes: [0; MOST], length: 0 };
        let asked = |field: u32| self.fields & field != 0;
        match headers.outer.network {
            Some(Network::V4 { source, destination, .. }) => {
                input.add(asked(c::IBV_RX_HASH_SRC_IPV4), &source);
                input.add(asked(c::IBV_RX_HASH_DST_IPV4), &destination);
            }
            Some(Network::V6 { source, destination, .. }) => {
                input.add(asked(c::IBV_RX_HASH_SRC_IPV6), &source);
                input.add(asked(c::IBV_RX_HASH_DST_IPV6), &destination);
            }
            None => {}
        }
        if let Some(ports) = headers.outer.transport {
            let (source, destination) = if ports.tcp {
                (c::IBV_RX_HASH_SRC_PORT_TCP, c::IBV_RX_HASH_DST_PORT_TCP)
            } else {
                (c::IBV_RX_HASH_SRC_PORT_UDP, c::IBV_RX_HASH_DST_PORT_UDP)
            };
            input.add(asked(source), &ports.source.to_be_bytes());
            input.add(asked(destination), &ports.destination.to_be_bytes());
        }
        toeplitz(&self.key, input.bytes.get(..input.length).unwrap_or(&[]))
    }
}

struct Input {
    bytes: [u8; MOST],
    length: usize,
}

impl Input {
    fn add(&mut self, asked: bool, field: &[u8]) {
        let end = self.length + field.len();
        if asked && let Some(place) = self.bytes.get_mut(self.length..end) {
            place.copy_from_slice(field);
            self.length = end;
        }
    }
}

/// The hash of the specification of receive-side scaling: for each bit of the input that is set, the 32 bits of
/// the key that begin at its place.
fn toeplitz(key: &[u8; KEY], input: &[u8]) -> u32 {
    let [a, b, c, d, ..] = *key;
    let mut window = u32::from_be_bytes([a, b, c, d]);
    let mut hash = 0;
    for (place, byte) in input.iter().enumerate() {
        let next = key.get(place + 4).copied().unwrap_or(0);
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::frame::{Layers, Transport};

    /// The key that the specification verifies implementations with.
    const KEY_OF_THE_SPECIFICATION: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn hashes(network: Network, source: u16, destination: u16) -> (u32, u32) {
        let transport = Some(Transport { tcp: true, source, destination });
        let outer = Layers {
            destination: [0; 6],
            source: [0; 6],
            vlan: None,
            ether_type: 0,
            network: Some(network),
            transport,
        };
        let headers = Headers { outer, tunnel: None };
        let with = Spreading { table: 0, key: KEY_OF_THE_SPECIFICATION, fields: FIELDS };
        let without = Spreading { fields: FIELDS & !TCP, ..with };
        (without.hash(&headers), with.hash(&headers))
    }

    #[test]
    fn the_hashes_of_ipv4_are_those_of_the_specification() {
        // Destination and its port, source and its port, the hash without ports, and with.
        let vectors = [
            ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e_8fc2, 0x51cc_c178),
            ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718_262a, 0xc626_b0ea),
            ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0_a5de, 0x5c2b_394a),
            ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x8298_9176, 0xafc7_327f),
            ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d18_09c5, 0x10e8_28a2),
        ];
        for (to, to_port, from, from_port, without, with) in vectors {
            let octets = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().octets();
            let network = Network::V4 {
                source: octets(from),
                destination: octets(to),
                protocol: 6,
                service: 0,
                hops: 1,
                flags: 0,
            };
            assert_eq!(hashes(network, from_port, to_port), (without, with), "{from}");
        }
    }

    #[test]
    fn the_hashes_of_ipv6_are_those_of_the_specification() {
        let vectors = [
            ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc1_8cd5, 0x4020_7d3d),
            ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c_461c, 0xdde5_1bbf),
            (
                "fe80::200:f8ff:fe21:67cf",
                38024,
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
                0x4b61_e985,
                0x02d1_feef,
            ),
        ];
        for (to, to_port, from, from_port, without, with) in vectors {
            let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
            let network = Network::V6 {
                source: octets(from),
                destination: octets(to),
                next: 6,
                class: 0,
                hops: 1,
                label: 0,
            };
            assert_eq!(hashes(network, from_port, to_port), (without, with), "{from}");
        }
    }
}
