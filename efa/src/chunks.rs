//! Cutting a transfer into pieces that the device can move.

use std::ops::Range;

use ibverbs::Error;

use crate::Result;

/// The pieces of a transfer, in order: all of them `size` bytes long but the last.
#[derive(Debug, Clone)]
pub(crate) struct Chunks {
    /// What is still to be cut.
    rest: Range<usize>,
    /// Not 0.
    size: usize,
}

impl Chunks {
    /// Cuts `range` of something `length` bytes long, into pieces of at most `size` bytes.
    pub(crate) fn new(
        what: &'static str,
        range: Range<usize>,
        length: usize,
        size: u32,
    ) -> Result<Self> {
        if range.start > range.end || range.end > length {
            let (start, end) = (range.start as u64, range.end as u64);
            return Err(Error::OutOfBounds { what, start, end, length: length as u64 }.into());
        }
        if size == 0 {
            return Err(Error::Invalid {
                what: "a transfer cannot be cut into pieces of 0 bytes".into(),
                remedy: "pass the `max_rdma_size` of a device that has RDMA, or less",
            }
            .into());
        }
        Ok(Self { rest: range, size: size as usize })
    }

    /// How many bytes are still to be cut.
    pub(crate) fn bytes(&self) -> usize {
        self.rest.len()
    }
}

impl Iterator for Chunks {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        if self.rest.is_empty() {
            return None;
        }
        let start = self.rest.start;
        // The sum cannot overflow where it is taken: the end is not nearer than `size` then.
        let end = if self.rest.len() > self.size { start + self.size } else { self.rest.end };
        self.rest.start = end;
        Some(start..end)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.rest.len().div_ceil(self.size);
        (count, Some(count))
    }
}

impl ExactSizeIterator for Chunks {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_in_order_without_gap_and_the_last_is_what_is_left() {
        let chunks = Chunks::new("it", 10..1010, 2000, 300).unwrap();
        assert_eq!(chunks.len(), 4);
        assert_eq!(chunks.collect::<Vec<_>>(), [10..310, 310..610, 610..910, 910..1010]);
    }

    #[test]
    fn a_transfer_that_fits_is_one_piece_and_an_empty_one_is_none() {
        assert_eq!(Chunks::new("it", 0..300, 300, 300).unwrap().next(), Some(0..300));
        assert_eq!(Chunks::new("it", 0..300, 300, 300).unwrap().len(), 1);
        assert_eq!(Chunks::new("it", 5..5, 300, 300).unwrap().len(), 0);
    }

    #[test]
    fn ranges_out_of_bounds_and_pieces_of_nothing_are_refused() {
        Chunks::new("it", 0..301, 300, 1).unwrap_err();
        Chunks::new("it", Range { start: 2, end: 1 }, 300, 1).unwrap_err();
        Chunks::new("it", 0..300, 300, 0).unwrap_err();
    }

    #[test]
    fn the_end_of_the_address_space_is_no_trap() {
        let mut chunks =
            Chunks::new("it", usize::MAX - 5..usize::MAX, usize::MAX, u32::MAX).unwrap();
        assert_eq!(chunks.next(), Some(usize::MAX - 5..usize::MAX));
        assert_eq!(chunks.next(), None);
    }
}
