//! Scatter gather list descriptors, section 4.3.2: where a command's data is.
//!
//! Over RDMA a command has one descriptor: a keyed block that the target reads or writes by
//! itself, or an offset to data that travels inside the capsule.

use super::fields::{Fields, put};
use crate::{Error, Result};

/// One 16-byte descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Descriptor {
    /// Memory the target reaches by address, without a key (type 0h, subtype 0h).
    Address {
        /// Where it begins.
        address: u64,
        /// Bytes.
        length: u32,
    },
    /// Data inside the command capsule (type 0h, subtype 1h).
    InCapsule {
        /// Bytes from the end of the entry and the controller's in-capsule data offset.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Registered memory (type 4h, subtype 0h); at most [`Descriptor::MAX_KEYED_LENGTH`] bytes.
    Keyed {
        /// Where it begins.
        address: u64,
        /// Bytes, of which the wire has 24 bits.
        length: u32,
        /// The remote key.
        key: u32,
    },
    /// As [`Descriptor::Keyed`], and the target invalidates the key with its answer (subtype Fh).
    KeyedInvalidate {
        /// Where it begins.
        address: u64,
        /// Bytes, of which the wire has 24 bits.
        length: u32,
        /// The remote key.
        key: u32,
    },
}

impl Descriptor {
    /// The descriptor of a command without data: a keyed block of no bytes.
    pub const NONE: Self = Self::Keyed { address: 0, length: 0, key: 0 };

    /// The longest block that a keyed descriptor can describe: 16 MiB less one byte.
    pub const MAX_KEYED_LENGTH: u32 = 0x00ff_ffff;

    /// Reads a descriptor.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for a type and subtype that a command over RDMA cannot have.
    pub fn from_bytes(bytes: [u8; 16]) -> Result<Self> {
        let fields = Fields::all(&bytes);
        let (address, length) = (fields.u64(0), fields.u32(8));
        let (keyed_length, key) = (length & Self::MAX_KEYED_LENGTH, fields.u32(11));
        match bytes[15] {
            0x00 => Ok(Self::Address { address, length }),
            0x01 => Ok(Self::InCapsule { offset: address, length }),
            0x40 => Ok(Self::Keyed { address, length: keyed_length, key }),
            0x4f => Ok(Self::KeyedInvalidate { address, length: keyed_length, key }),
            other => Err(Error::Malformed {
                structure: "SGL descriptor",
                field: "type and subtype",
                found: u64::from(other),
                rule: "is none of 00h, 01h, 40h and 4fh",
            }),
        }
    }

    /// The descriptor as it stands in a command. Of the length of a keyed one, 24 bits are used.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        match self {
            Self::Address { address, length } => {
                put(&mut bytes, 0, &address.to_le_bytes());
                put(&mut bytes, 8, &length.to_le_bytes());
            }
            Self::InCapsule { offset, length } => {
                put(&mut bytes, 0, &offset.to_le_bytes());
                put(&mut bytes, 8, &length.to_le_bytes());
                bytes[15] = 0x01;
            }
            Self::Keyed { address, length, key } => {
                put(&mut bytes, 0, &address.to_le_bytes());
                put(&mut bytes, 8, &length.to_le_bytes()[..3]);
                put(&mut bytes, 11, &key.to_le_bytes());
                bytes[15] = 0x40;
            }
            Self::KeyedInvalidate { address, length, key } => {
                bytes = Self::Keyed { address, length, key }.to_bytes();
                bytes[15] = 0x4f;
            }
        }
        bytes
    }

    /// How many bytes it describes.
    #[must_use]
    pub const fn length(self) -> u32 {
        match self {
            Self::Address { length, .. }
            | Self::InCapsule { length, .. }
            | Self::Keyed { length, .. }
            | Self::KeyedInvalidate { length, .. } => length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn keyed_descriptors_hold_twenty_four_bits_of_length() {
        let block = Descriptor::Keyed { address: 1, length: 0x0012_3456, key: 0xcafe_f00d };
        let bytes = [1, 0, 0, 0, 0, 0, 0, 0, 0x56, 0x34, 0x12, 0x0d, 0xf0, 0xfe, 0xca, 0x40];
        assert_eq!(block.to_bytes(), bytes);
        assert_eq!(Descriptor::from_bytes(bytes).unwrap(), block);
    }

    #[test]
    fn in_capsule_descriptors_are_offsets() {
        let block = Descriptor::InCapsule { offset: 0, length: 4096 };
        let bytes = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0x01];
        assert_eq!(block.to_bytes(), bytes);
        assert_eq!(Descriptor::from_bytes(bytes).unwrap(), block);
    }

    #[test]
    fn what_parses_is_written_back_as_it_was() {
        let mut random = Random::new(1);
        let mut parsed = 0;
        for _ in 0..20_000 {
            let mut bytes = random.array::<16>();
            if random.below(2) == 0 {
                bytes[15] = [0x00, 0x01, 0x40, 0x4f][random.below(4)];
                if bytes[15] < 0x40 {
                    bytes[12..15].fill(0);
                }
            }
            if let Ok(descriptor) = Descriptor::from_bytes(bytes) {
                parsed += 1;
                if bytes[15] >= 0x40 || bytes[12..15] == [0; 3] {
                    assert_eq!(descriptor.to_bytes(), bytes);
                }
            }
        }
        assert!(parsed > 10_000);
    }
}
