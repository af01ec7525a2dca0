//! What two queue pairs tell each other before they talk.

use ibverbs::{Gid, LocalPort, QueueKey, QueuePair, QueuePairNumber, Transport};

use crate::Result;

/// Where a queue pair is reached: all that anybody needs to send to it, or to be sent to by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Its port's GID.
    pub gid: Gid,
    /// Its number.
    pub number: QueuePairNumber,
    /// The key that it accepts.
    pub queue_key: QueueKey,
}

impl EndpointInfo {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const LENGTH: usize = 24;

    /// What peers need to reach a queue pair over a port of this side. `queue_key` is the one that the queue pair was
    /// prepared with.
    #[must_use]
    pub fn new<T: Transport, S>(
        pair: &QueuePair<'_, T, S>,
        port: &LocalPort,
        queue_key: QueueKey,
    ) -> Self {
        Self { gid: port.gid.gid, number: pair.number(), queue_key }
    }

    /// The bytes to send to the peer: GID 16 bytes, number `u32`, queue key `u32`, network order. The Python
    /// package `efa` uses the same.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0..16].copy_from_slice(&self.gid.0);
        bytes[16..20].copy_from_slice(&self.number.get().to_be_bytes());
        bytes[20..24].copy_from_slice(&self.queue_key.0.to_be_bytes());
        bytes
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`](ibverbs::Error::Malformed) for any other length, and for a number that does not fit its 24 bits.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let malformed = |reason| ibverbs::Error::Malformed { what: "endpoint information", reason };
        let Ok(bytes) = <&[u8; Self::LENGTH]>::try_from(bytes) else {
            let reason = format!("{} bytes, expected {}", bytes.len(), Self::LENGTH);
            return Err(malformed(reason).into());
        };
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[0..16]);
        let number =
            QueuePairNumber::new(word(16)).map_err(|error| malformed(error.to_string()))?;
        Ok(Self { gid, number, queue_key: QueueKey(word(20)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> EndpointInfo {
        EndpointInfo {
            gid: "fe80::1:2:3:4".parse().unwrap(),
            number: QueuePairNumber::new(0x0001_0203).unwrap(),
            queue_key: QueueKey(0x1122_3344),
        }
    }

    #[test]
    fn bytes_are_in_network_order_and_come_back() {
        let bytes = info().to_bytes();
        let mut expected = vec![0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 3, 0, 4];
        expected.extend([0, 1, 2, 3, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(bytes.as_slice(), expected);
        assert_eq!(EndpointInfo::from_bytes(&bytes).unwrap(), info());
    }

    #[test]
    fn every_other_length_is_refused() {
        for length in (0..64).filter(|length| *length != EndpointInfo::LENGTH) {
            let error = EndpointInfo::from_bytes(&vec![0; length]).unwrap_err();
            assert!(error.to_string().contains("expected 24"), "{error}");
        }
    }

    #[test]
    fn a_number_of_more_than_24_bits_is_refused() {
        let mut bytes = info().to_bytes();
        bytes[16] = 1;
        let error = EndpointInfo::from_bytes(&bytes).unwrap_err();
        assert!(error.to_string().contains("queue pair number"), "{error}");
    }

    #[test]
    fn whatever_parses_comes_back_as_the_same_bytes() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut parsed = 0;
        for _ in 0..20_000 {
            let mut bytes = [0u8; EndpointInfo::LENGTH];
            for byte in &mut bytes {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = state.to_be_bytes()[3];
            }
            bytes[16] %= 2;
            if let Ok(info) = EndpointInfo::from_bytes(&bytes) {
                parsed += 1;
                assert_eq!(info.to_bytes(), bytes);
            }
        }
        assert!(parsed > 1_000);
    }
}
