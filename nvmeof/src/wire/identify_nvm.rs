//! Identify data of a controller about the NVM command set: NVM Command Set Specification 1.1,
//! section 4.1.5.4.

use super::{
    fields::{Fields, put},
    identify::{identify_page, size_limit},
    nvm::Range,
};
use crate::Result;

/// Which limits a controller has for commands of the NVM command set that move no blocks, and that
/// the largest transfer therefore does not limit. Zero always means that there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdentifyNvm {
    /// VSL: the most that one Verify covers, as a power of two of the smallest page.
    pub verify_exponent: u8,
    /// WZSL: the most that one Write Zeroes covers, as a power of two of the smallest page.
    pub write_zeroes_exponent: u8,
    /// WUSL: the most that one Write Uncorrectable covers, as a power of two of the smallest page.
    pub write_uncorrectable_exponent: u8,
    /// DMRL: ranges of one Dataset Management.
    pub deallocate_ranges: u8,
    /// DMRSL: blocks of one range of a Dataset Management.
    pub deallocate_range_blocks: u32,
    /// DMSL: blocks of all ranges of one Dataset Management.
    pub deallocate_blocks: u64,
}

impl IdentifyNvm {
    /// What a controller that does not have the structure limits: nothing.
    pub const UNLIMITED: Self = Self {
        verify_exponent: 0,
        write_zeroes_exponent: 0,
        write_uncorrectable_exponent: 0,
        deallocate_ranges: 0,
        deallocate_range_blocks: 0,
        deallocate_blocks: 0,
    };

    /// Reads the data.
    ///
    /// # Errors
    ///
    /// [`Error::Short`](crate::Error::Short) with fewer than 4096 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, 4096, "identify controller data of the NVM command set")?;
        Ok(Self {
            verify_exponent: fields.u8(0),
            write_zeroes_exponent: fields.u8(1),
            write_uncorrectable_exponent: fields.u8(2),
            deallocate_ranges: fields.u8(3),
            deallocate_range_blocks: fields.u32(4),
            deallocate_blocks: fields.u64(8),
        })
    }

    /// The data as a target sends it, all else zero.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = identify_page();
        put(&mut bytes, 0, &[self.verify_exponent, self.write_zeroes_exponent]);
        put(&mut bytes, 2, &[self.write_uncorrectable_exponent, self.deallocate_ranges]);
        put(&mut bytes, 4, &self.deallocate_range_blocks.to_le_bytes());
        put(&mut bytes, 8, &self.deallocate_blocks.to_le_bytes());
        bytes
    }

    /// The most bytes that one Write Zeroes covers, if there is a limit beside the 65,536 blocks
    /// that a command can name. Exponents whose limit would not fit 64 bits limit nothing.
    #[must_use]
    pub fn max_write_zeroes_bytes(&self, min_page_size: u64) -> Option<u64> {
        size_limit(self.write_zeroes_exponent, min_page_size)
    }

    /// The most ranges of one Dataset Management: 1 to [`Range::MAX`].
    #[must_use]
    pub fn max_deallocate_ranges(&self) -> usize {
        match self.deallocate_ranges {
            0 => Range::MAX,
            most => usize::from(most),
        }
    }

    /// The most blocks of one range of a Dataset Management, at least 1.
    #[must_use]
    pub const fn max_deallocate_range_blocks(&self) -> u32 {
        match self.deallocate_range_blocks {
            0 => u32::MAX,
            most => most,
        }
    }

    /// The most blocks of all ranges of one Dataset Management, at least 1.
    #[must_use]
    pub const fn max_deallocate_blocks(&self) -> u64 {
        match self.deallocate_blocks {
            0 => u64::MAX,
            most => most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn limits_are_read_from_where_the_specification_has_them() {
        let mut bytes = vec![0; 4096];
        bytes[..16].copy_from_slice(&[1, 5, 3, 64, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        let nvm = IdentifyNvm::parse(&bytes).unwrap();
        assert_eq!((nvm.verify_exponent, nvm.write_uncorrectable_exponent), (1, 3));
        assert_eq!(nvm.max_write_zeroes_bytes(4096), Some(131_072));
        assert_eq!(nvm.max_deallocate_ranges(), 64);
        assert_eq!(nvm.max_deallocate_range_blocks(), 65_536);
        assert_eq!(nvm.max_deallocate_blocks(), 2 << 32);
    }

    #[test]
    fn zeros_limit_nothing() {
        let nvm = IdentifyNvm::parse(&[0; 4096]).unwrap();
        assert_eq!(nvm, IdentifyNvm::UNLIMITED);
        assert_eq!(nvm.max_write_zeroes_bytes(4096), None);
        assert_eq!(nvm.max_deallocate_ranges(), 256);
        assert_eq!(nvm.max_deallocate_range_blocks(), u32::MAX);
        assert_eq!(nvm.max_deallocate_blocks(), u64::MAX);
    }

    #[test]
    fn limits_from_anywhere_are_in_range_and_survive_the_round_trip() {
        let mut random = Random::new(21);
        for _ in 0..500 {
            let mut bytes = vec![0; 4096];
            random.fill(&mut bytes);
            let nvm = IdentifyNvm::parse(&bytes).unwrap();
            assert_eq!(IdentifyNvm::parse(&nvm.to_bytes()).unwrap(), nvm);
            assert!((1..=Range::MAX).contains(&nvm.max_deallocate_ranges()));
            assert!(nvm.max_deallocate_range_blocks() > 0 && nvm.max_deallocate_blocks() > 0);
            assert!(nvm.max_write_zeroes_bytes(4096 << 15) != Some(0));
        }
        IdentifyNvm::parse(&[0; 4095]).unwrap_err();
    }
}
