//! Buffers whose every byte can be checked at the other end.

use crate::{Error, Result};

/// Makes `length` bytes that depend on `seed` and on their place.
///
/// Blocks that were swapped, shifted, cut off, or left from a transfer with another seed are found
/// by [`check_pattern`]. The same seed gives the same bytes on every machine, and a shorter pattern
/// is the beginning of a longer one.
#[must_use]
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    bytes(seed).take(length).collect()
}

/// Checks that `found` is `pattern(seed, found.len())`; does not allocate.
///
/// # Errors
///
/// [`Error::Pattern`] with the offset of the first wrong byte and the number of wrong bytes.
pub fn check_pattern(seed: u64, found: &[u8]) -> Result<()> {
    let mut differences =
        bytes(seed).zip(found).enumerate().filter(|(_, (expected, found))| expected != *found);
    let Some((offset, (expected, &byte))) = differences.next() else { return Ok(()) };
    let wrong = 1 + differences.count();
    Err(Error::Pattern { offset, length: found.len(), expected, found: byte, wrong })
}

fn bytes(seed: u64) -> impl Iterator<Item = u8> {
    (0_u64..).flat_map(move |index| word(seed, index).to_le_bytes())
}

/// A well mixed word for each place: the finisher of the splitmix64 generator.
fn word(seed: u64, index: u64) -> u64 {
    let mut word = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_passes_its_own_check_at_every_length() {
        for length in 0..70 {
            check_pattern(7, &pattern(7, length)).unwrap();
        }
    }

    #[test]
    fn a_shorter_pattern_is_the_beginning_of_a_longer_one() {
        assert_eq!(pattern(3, 13), pattern(3, 4096)[..13]);
    }

    #[test]
    fn the_first_wrong_byte_is_named_and_all_are_counted() {
        let mut buffer = pattern(1, 100);
        buffer[41] ^= 0xFF;
        buffer[99] ^= 0x01;
        let error = check_pattern(1, &buffer).unwrap_err();
        assert!(
            matches!(error, Error::Pattern { offset: 41, length: 100, wrong: 2, .. }),
            "{error}"
        );
    }

    #[test]
    fn zeros_other_seeds_and_shifted_blocks_are_found() {
        assert!(check_pattern(1, &[0; 64]).is_err());
        assert!(check_pattern(1, &pattern(2, 64)).is_err());
        assert!(check_pattern(1, &pattern(1, 4096)[1024..2048]).is_err());
    }
}
