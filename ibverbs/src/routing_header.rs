//! What a datagram brings along: the routing header before its payload.
//!
//! A receive of a datagram queue pair needs 40 bytes more than the payload. The device puts the global routing
//! header there: that of InfiniBand and IPv6, or for RoCE v2 over IPv4 twenty bytes of nothing and the IPv4
//! header. InfiniBand specification, 8.3 and A17.4.5.2.

use std::{fmt, ops::Range};

use crate::{Error, FinishedWork, Gid, QueuePairNumber, Result, SharedBytes};

/// The first 40 bytes of a receive that a datagram arrived in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RoutingHeader([u8; Self::LENGTH]);

impl RoutingHeader {
    /// How many bytes of a receive go to the header, whether or not there is one.
    pub const LENGTH: usize = 40;

    /// Where the IPv4 header stands.
    const IPV4: Range<usize> = 20..40;

    /// A header from its bytes; any bytes are one.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }

    /// Whether the datagram came over IPv4.
    ///
    /// Nothing says so. It did if the first bytes are no IPv6 header; if they look like one, the last twenty bytes
    /// decide: an IPv4 header with the right checksum is one. libibverbs guesses alike.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        let header = &self.0[Self::IPV4];
        if self.0[0] >> 4 != 6 {
            return header[0] >> 4 == 4;
        }
        let words = header.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        header[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    /// The GID of the port that sent the datagram; an IPv4 address is one as IPv6 maps it.
    #[must_use]
    pub fn source(&self) -> Gid {
        if self.is_ipv4() { self.ipv4_gid(32) } else { self.gid(8) }
    }

    /// The GID that the datagram went to: one of this side's port, or that of a multicast group.
    #[must_use]
    pub fn destination(&self) -> Gid {
        if self.is_ipv4() { self.ipv4_gid(36) } else { self.gid(24) }
    }

    /// The traffic class, or for IPv4 the type of service: DSCP in the upper six bits, congestion in the lower
    /// two.
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        if self.is_ipv4() { self.0[21] } else { self.0[0] << 4 | self.0[1] >> 4 }
    }

    /// The flow label, 20 bits; 0 for IPv4, which has none.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        if self.is_ipv4() {
            return 0;
        }
        u32::from_be_bytes([0, self.0[1] & 0xf, self.0[2], self.0[3]])
    }

    /// How many more routers the datagram could have passed.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        if self.is_ipv4() { self.0[28] } else { self.0[7] }
    }

    fn gid(&self, at: usize) -> Gid {
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&self.0[at..at + 16]);
        gid
    }

    fn ipv4_gid(&self, at: usize) -> Gid {
        let mut gid = Gid::default();
        gid.0[10..12].fill(0xff);
        gid.0[12..16].copy_from_slice(&self.0[at..at + 4]);
        gid
    }
}

impl fmt::Debug for RoutingHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutingHeader")
            .field("source", &self.source())
            .field("destination", &self.destination())
            .field("traffic_class", &self.traffic_class())
            .field("flow_label", &self.flow_label())
            .field("hop_limit", &self.hop_limit())
            .finish()
    }
}

/// A datagram that arrived: who sent it, and where in the receive its payload is.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ReceivedDatagram {
    /// The header, if it came with one; always on Ethernet.
    pub header: Option<RoutingHeader>,
    /// The queue pair that sent it.
    pub queue_pair: QueuePairNumber,
    /// Where the payload starts, from the first byte of the receive on.
    pub payload_offset: usize,
    /// How many bytes the payload has.
    pub payload_length: usize,
}

impl ReceivedDatagram {
    /// Which bytes of the receive are the payload.
    #[must_use]
    pub const fn payload(&self) -> Range<usize> {
        self.payload_offset..self.payload_offset + self.payload_length
    }
}

impl FinishedWork<'_> {
    /// The datagram that this receive took. `offset` is where the receive starts in `memory`.
    ///
    /// Copies the 40 bytes of the header.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the datagram does not lie inside of `memory`, [`Error::Malformed`] if it is shorter than its
    /// header.
    pub fn datagram(&self, memory: &SharedBytes<'_>, offset: usize) -> Result<ReceivedDatagram> {
        let arrived = self.byte_length() as usize;
        let Some(payload_length) = arrived.checked_sub(RoutingHeader::LENGTH) else {
            return Err(Error::Malformed {
                what: "a datagram",
                reason: format!(
                    "it has {arrived} bytes, and its routing header alone has 40; is this the completion of a datagram's \
                     receive?"
                ),
            });
        };
        let end = offset.saturating_add(arrived);
        if end > memory.len() {
            return Err(Error::OutOfBounds {
                what: "the memory of the receive",
                start: offset as u64,
                end: end as u64,
                length: memory.len() as u64,
            });
        }
        let mut header = [0; RoutingHeader::LENGTH];
        memory.read(offset, &mut header)?;
        Ok(ReceivedDatagram {
            header: self.has_routing_header().then_some(RoutingHeader(header)),
            queue_pair: self.source_queue_pair(),
            payload_offset: RoutingHeader::LENGTH,
            payload_length,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv6 header with traffic class 0xab, flow label 0xcdef1 and hop limit 63.
    fn ipv6() -> RoutingHeader {
        let mut bytes = [0; RoutingHeader::LENGTH];
        bytes[..8].copy_from_slice(&[0x6a, 0xbc, 0xde, 0xf1, 0, 8, 0x1b, 63]);
        bytes[8..24].copy_from_slice(&"fd00:99:1::1".parse::<Gid>().unwrap().0);
        bytes[24..40].copy_from_slice(&"fd00:99:1::2".parse::<Gid>().unwrap().0);
        RoutingHeader(bytes)
    }

    /// An IPv4 header with type of service 0x68 and time to live 64, whose checksum was worked out by hand.
    fn ipv4() -> RoutingHeader {
        let mut bytes = [0; RoutingHeader::LENGTH];
        bytes[20..40].copy_from_slice(&[
            0x45, 0x68, 0, 0x3c, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 99, 1, 1, 10, 99, 1, 2,
        ]);
        let sum: u32 = 0x4568 + 0x3c + 0x4000 + 0x4011 + 0x0a63 + 0x0101 + 0x0a63 + 0x0102;
        let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        bytes[30..32].copy_from_slice(&(!sum).to_be_bytes());
        RoutingHeader(bytes)
    }

    #[test]
    fn an_ipv6_header_has_its_fields_at_their_places() {
        let header = ipv6();
        assert!(!header.is_ipv4());
        assert_eq!(header.source(), "fd00:99:1::1".parse().unwrap());
        assert_eq!(header.destination(), "fd00:99:1::2".parse().unwrap());
        assert_eq!(header.traffic_class(), 0xab);
        assert_eq!(header.flow_label(), 0xcdef1);
        assert_eq!(header.hop_limit(), 63);
    }

    #[test]
    fn an_ipv4_header_stands_in_the_last_twenty_bytes() {
        let header = ipv4();
        assert!(header.is_ipv4());
        assert_eq!(header.source(), "::ffff:10.99.1.1".parse().unwrap());
        assert_eq!(header.destination(), "::ffff:10.99.1.2".parse().unwrap());
        assert_eq!(header.traffic_class(), 0x68);
        assert_eq!(header.flow_label(), 0);
        assert_eq!(header.hop_limit(), 64);
    }

    #[test]
    fn where_both_headers_could_be_meant_the_checksum_of_ipv4_decides() {
        let RoutingHeader(mut bytes) = ipv4();
        bytes[..20].fill(0x60);
        assert_eq!(RoutingHeader(bytes).source(), "::ffff:10.99.1.1".parse().unwrap());
        bytes[31] ^= 1;
        assert!(!RoutingHeader(bytes).is_ipv4());
        bytes[..20].fill(0);
        assert!(RoutingHeader(bytes).is_ipv4());
    }

    #[test]
    fn any_bytes_are_a_header() {
        for value in 0..=u8::MAX {
            let header = RoutingHeader::from_bytes([value; RoutingHeader::LENGTH]);
            assert!(!format!("{header:?}").is_empty());
        }
    }
}
