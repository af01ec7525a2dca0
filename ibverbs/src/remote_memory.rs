//! Memory of a peer: the handle it publishes, and parts of it.

use std::ops::{Range, RangeBounds};

use crate::{Error, RemoteKey, Result, bounds};

/// A registered region of a peer: what one-sided requests name.
///
/// Made by [`Region::remote`](crate::Region::remote) on the side that owns the memory, and from bytes on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// `address + length` does not overflow.
    address: u64,
    length: u64,
    key: RemoteKey,
}

impl RemoteMemory {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const LENGTH: usize = 20;

    pub(crate) const fn of_region(address: u64, length: u64, key: RemoteKey) -> Self {
        Self { address, length, key }
    }

    /// Memory that a peer described in a format of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the range ends past the end of the address space.
    pub fn new(address: u64, length: u64, key: RemoteKey) -> Result<Self> {
        if address.checked_add(length).is_none() {
            return Err(Error::Malformed {
                what: "remote memory",
                reason: format!(
                    "its {length} bytes from address {address:#x} on end past the address space"
                ),
            });
        }
        Ok(Self { address, length, key })
    }

    /// The bytes to publish: address `u64`, length `u64`, key `u32`, network order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.key.0.to_be_bytes());
        bytes
    }

    /// Reads what a peer published with [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for any other length, and for a range that ends past the address space.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Ok(bytes) = <&[u8; Self::LENGTH]>::try_from(bytes) else {
            return Err(Error::wrong_length("remote memory", bytes.len(), Self::LENGTH));
        };
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, l4, l5, l6, l7, k0, k1, k2, k3] =
            *bytes;
        Self::new(
            u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            u64::from_be_bytes([l0, l1, l2, l3, l4, l5, l6, l7]),
            RemoteKey(u32::from_be_bytes([k0, k1, k2, k3])),
        )
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Whether it covers no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What the peer's device calls the first byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The peer's key.
    #[must_use]
    pub const fn key(&self) -> RemoteKey {
        self.key
    }

    /// Everything from `offset` to the end.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if `offset` is past the end.
    pub fn at(&self, offset: u64) -> Result<RemoteSegment> {
        self.part(offset..self.length.max(offset))
    }

    /// A part of it. Costs a bounds check.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the range does not lie inside.
    #[inline]
    pub fn part(&self, range: impl RangeBounds<u64>) -> Result<RemoteSegment> {
        let Range { start, end } = bounds::inside("the remote memory", range, self.length)?;
        Ok(RemoteSegment { address: self.address + start, length: end - start, key: self.key })
    }
}

/// A part of a peer's memory. A request that moves more bytes than it has is refused before it is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSegment {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) key: RemoteKey,
}

impl RemoteSegment {
    /// Whether an atomic can work at its start: on eight bytes, at an address that is a multiple of as many.
    #[inline]
    pub(crate) const fn is_a_word(&self) -> bool {
        self.length >= 8 && self.address.is_multiple_of(8)
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Whether it covers no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What the peer's device calls the first byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The peer's key.
    #[must_use]
    pub const fn key(&self) -> RemoteKey {
        self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: RemoteMemory =
        RemoteMemory::of_region(0x1122_3344_5566_7788, 4096, RemoteKey(0x99aa_bbcc));

    #[test]
    fn bytes_are_in_network_order_and_come_back() {
        let bytes = MEMORY.to_bytes();
        assert_eq!(
            bytes,
            [
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 0, 0, 0, 0x10, 0, 0x99,
                0xaa, 0xbb, 0xcc
            ]
        );
        assert_eq!(RemoteMemory::from_bytes(&bytes).unwrap(), MEMORY);
    }

    #[test]
    fn other_lengths_and_ranges_that_wrap_are_refused() {
        for length in 0..64 {
            let result = RemoteMemory::from_bytes(&vec![0; length]);
            assert_eq!(result.is_ok(), length == RemoteMemory::LENGTH, "{length}");
        }
        RemoteMemory::from_bytes(&[0xff; 20]).unwrap_err();
        RemoteMemory::new(u64::MAX, 1, RemoteKey(0)).unwrap_err();
    }

    #[test]
    fn parts_lie_inside() {
        assert_eq!(MEMORY.part(16..48).unwrap().address(), MEMORY.address() + 16);
        assert_eq!(MEMORY.at(4096).unwrap().len(), 0);
        MEMORY.at(4097).unwrap_err();
        assert_eq!(MEMORY.part(4000..).unwrap().len(), 96);
        assert_eq!(MEMORY.part(..).unwrap().len(), 4096);
        MEMORY.part(0..4097).unwrap_err();
        let backwards = Range { start: 2, end: 1 };
        MEMORY.part(backwards).unwrap_err();
    }
}
