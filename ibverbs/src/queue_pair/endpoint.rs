//! What two queue pairs tell each other before they are connected.

use super::QueuePair;
use crate::{
    Address, Connected, Error, Gid, LocalPort, Mtu, PacketSequence, PortNumber, QueuePairNumber,
    Result, Transport,
};

/// Where a queue pair is reached: what its peer needs to connect to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpInfo {
    /// The queue pair's number.
    pub number: QueuePairNumber,
    /// The number of the first packet that it sends.
    pub first_packet: PacketSequence,
    /// Its port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Its port's GID.
    pub gid: Gid,
    /// Its port.
    pub port: PortNumber,
    /// Its port's MTU.
    pub mtu: Mtu,
}

impl QpInfo {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const LENGTH: usize = 28;

    pub(super) fn at(
        port: &LocalPort,
        number: QueuePairNumber,
        first_packet: PacketSequence,
    ) -> Self {
        Self {
            number,
            first_packet,
            lid: port.attributes.lid(),
            gid: port.gid.gid,
            port: port.port,
            mtu: port.attributes.active_mtu(),
        }
    }

    /// The bytes to send to the peer: number `u32`, first packet `u32`, lid `u16`, GID 16 bytes, port `u8`, MTU code
    /// `u8`, network order. The Python package `ibverbs` uses the same.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0..4].copy_from_slice(&self.number.get().to_be_bytes());
        bytes[4..8].copy_from_slice(&self.first_packet.get().to_be_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_be_bytes());
        bytes[10..26].copy_from_slice(&self.gid.0);
        bytes[26] = self.port.get();
        bytes[27] = self.mtu.code();
        bytes
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for any other length, a number that does not fit its 24 bits, port 0, and an MTU
    /// code that is none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "queue pair information";
        let Ok(bytes) = <&[u8; Self::LENGTH]>::try_from(bytes) else {
            return Err(Error::wrong_length(WHAT, bytes.len(), Self::LENGTH));
        };
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[10..26]);
        let numbers = || {
            Ok(Self {
                number: QueuePairNumber::new(word(0))?,
                first_packet: PacketSequence::new(word(4))?,
                lid: u16::from_be_bytes([bytes[8], bytes[9]]),
                gid,
                port: PortNumber::new(bytes[26])?,
                mtu: Mtu::from_code(bytes[27])?,
            })
        };
        let malformed = |error: Error| Error::Malformed { what: WHAT, reason: error.to_string() };
        numbers().map_err(malformed)
    }

    /// The way to it from a port of this side.
    #[must_use]
    pub fn address(&self, from: &LocalPort) -> Address {
        Address::new(from, self.gid, self.lid)
    }
}

impl<T: Transport, S> QueuePair<'_, T, S> {
    /// What the peer needs to connect to this queue pair when it uses `port`.
    #[must_use]
    pub fn endpoint(&self, port: &LocalPort) -> QpInfo
    where
        T: Connected,
    {
        QpInfo::at(port, self.number(), self.handle.first_packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> QpInfo {
        QpInfo {
            number: QueuePairNumber::new(0x0001_0203).unwrap(),
            first_packet: PacketSequence::new(0x0004_0506).unwrap(),
            lid: 0x0708,
            gid: "::ffff:10.99.1.1".parse().unwrap(),
            port: PortNumber::FIRST,
            mtu: Mtu::BYTES_1024,
        }
    }

    #[test]
    fn bytes_are_in_network_order_and_come_back() {
        let bytes = info().to_bytes();
        let mut expected = vec![0, 1, 2, 3, 0, 4, 5, 6, 7, 8];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 99, 1, 1]);
        expected.extend([1, 3]);
        assert_eq!(bytes.as_slice(), expected);
        assert_eq!(QpInfo::from_bytes(&bytes).unwrap(), info());
    }

    #[test]
    fn every_field_out_of_its_range_is_refused() {
        for (at, value) in [(0, 1), (4, 1), (26, 0), (27, 0), (27, 6)] {
            let mut bytes = info().to_bytes();
            bytes[at] = value;
            let error = QpInfo::from_bytes(&bytes).unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }), "{at}: {error}");
        }
    }

    #[test]
    fn every_other_length_is_refused() {
        for length in (0..64).filter(|length| *length != QpInfo::LENGTH) {
            QpInfo::from_bytes(&vec![1; length]).unwrap_err();
        }
    }

    #[test]
    fn whatever_parses_comes_back_as_the_same_bytes() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut parsed = 0;
        for _ in 0..20_000 {
            let mut bytes = [0u8; QpInfo::LENGTH];
            for byte in &mut bytes {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = state.to_be_bytes()[3];
            }
            (bytes[0], bytes[4], bytes[27]) = (0, 0, bytes[27] % 8);
            if let Ok(info) = QpInfo::from_bytes(&bytes) {
                parsed += 1;
                assert_eq!(info.to_bytes(), bytes);
            }
        }
        assert!(parsed > 1_000);
    }
}
