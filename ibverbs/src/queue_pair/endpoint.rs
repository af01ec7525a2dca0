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
        let Self { number, first_packet, lid, gid, .. } = *self;
        let mut bytes = [0; Self::LENGTH];
        Head { number, word: first_packet.get(), lid, gid }.write(&mut bytes);
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
        read("queue pair information", bytes, |Head { number, word, lid, gid }, [port, mtu]| {
            let (port, mtu) = (PortNumber::new(port)?, Mtu::from_code(mtu)?);
            Ok(Self { number, first_packet: PacketSequence::new(word)?, lid, gid, port, mtu })
        })
    }

    /// The way to it from a port of this side.
    #[must_use]
    pub fn address(&self, from: &LocalPort) -> Address {
        Address::new(from, self.gid, self.lid)
    }
}

/// What queue pairs of every kind tell first: number `u32`, another `u32`, lid `u16`, GID 16 bytes, network order.
pub(super) struct Head {
    pub(super) number: QueuePairNumber,
    pub(super) word: u32,
    pub(super) lid: u16,
    pub(super) gid: Gid,
}

impl Head {
    const LENGTH: usize = 26;

    /// Over the first bytes, which are at least as many.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        bytes[0..4].copy_from_slice(&self.number.get().to_be_bytes());
        bytes[4..8].copy_from_slice(&self.word.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_be_bytes());
        bytes[10..26].copy_from_slice(&self.gid.0);
    }

    fn read(bytes: &[u8; Self::LENGTH]) -> Result<Self> {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[10..26]);
        let lid = u16::from_be_bytes([bytes[8], bytes[9]]);
        Ok(Self { number: QueuePairNumber::new(word(0))?, word: word(4), lid, gid })
    }
}

/// Reads `what` a peer sent, a head and so many bytes more, of which `make` makes it.
pub(super) fn read<V, const MORE: usize>(
    what: &'static str,
    bytes: &[u8],
    make: impl FnOnce(Head, [u8; MORE]) -> Result<V>,
) -> Result<V> {
    let parts =
        bytes.split_first_chunk().and_then(|(head, more)| Some((head, more.try_into().ok()?)));
    let Some((head, more)) = parts else {
        return Err(Error::wrong_length(what, bytes.len(), Head::LENGTH + MORE));
    };
    let made = Head::read(head).and_then(|head| make(head, more));
    made.map_err(|error| Error::Malformed { what, reason: error.to_string() })
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
