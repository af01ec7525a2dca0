//! LBA formats: how large a block is, and what comes with it. NVM Command Set Specification 1.1,
//! section 4.1.5.

use super::fields::Fields;

/// One LBA format of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFormat {
    /// Bytes of metadata beside each block.
    pub metadata_bytes: u16,
    /// The block size as a power of two; 0 means that the format is not available.
    pub data_size_exponent: u8,
    /// Relative performance, 0 best to 3 degraded.
    pub relative_performance: u8,
}

impl BlockFormat {
    /// The size on the wire.
    pub const BYTES: usize = 4;

    pub(super) fn read(fields: Fields<'_>, at: usize) -> Self {
        Self {
            metadata_bytes: fields.u16(at),
            data_size_exponent: fields.u8(at + 2),
            relative_performance: fields.u8(at + 3) & 0x3,
        }
    }

    /// The format as it stands in the identify data.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let [low, high] = self.metadata_bytes.to_le_bytes();
        [low, high, self.data_size_exponent, self.relative_performance]
    }

    /// Bytes of a block, if the exponent is one that a device can have (512 bytes to 2 GiB).
    #[must_use]
    pub const fn block_bytes(self) -> Option<u32> {
        match self.data_size_exponent {
            exponent @ 9..=31 => Some(1 << exponent),
            _ => None,
        }
    }
}

/// What the end-to-end protection of a namespace is, from the DPS field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProtectionType(pub u8);

impl ProtectionType {
    /// No protection information.
    pub const NONE: Self = Self(0);
    /// Guard, application tag, and a reference tag that counts blocks.
    pub const TYPE_1: Self = Self(1);
    /// As type 1, with a reference tag that the host chooses.
    pub const TYPE_2: Self = Self(2);
    /// Guard and application tag; the reference tag is the host's.
    pub const TYPE_3: Self = Self(3);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sizes_that_exist_become_bytes() {
        let format = |data_size_exponent| BlockFormat {
            metadata_bytes: 0,
            data_size_exponent,
            relative_performance: 0,
        };
        assert_eq!(format(9).block_bytes(), Some(512));
        assert_eq!(format(12).block_bytes(), Some(4096));
        for absurd in [0, 1, 8, 32, 64, 255] {
            assert_eq!(format(absurd).block_bytes(), None);
        }
    }

    #[test]
    fn formats_survive_the_round_trip() {
        let bytes = [8, 0, 12, 2];
        assert_eq!(BlockFormat::read(Fields::all(&bytes), 0).to_bytes(), bytes);
    }
}
