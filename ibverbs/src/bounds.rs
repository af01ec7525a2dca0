//! Ranges that must lie inside something.

use std::ops::{Bound, Range, RangeBounds};

use crate::{Error, Result};

/// A number of bytes, of this side or of a peer; none by default.
pub(crate) trait Bytes: Copy + Default + Ord {
    fn and_one(self) -> Self;
    fn wide(self) -> u64;
}

impl Bytes for usize {
    #[inline]
    fn and_one(self) -> Self {
        self.saturating_add(1)
    }

    #[inline]
    fn wide(self) -> u64 {
        self as u64
    }
}

impl Bytes for u64 {
    #[inline]
    fn and_one(self) -> Self {
        self.saturating_add(1)
    }

    #[inline]
    fn wide(self) -> u64 {
        self
    }
}

/// A range of something that has `length` bytes.
#[inline]
pub(crate) fn inside<N: Bytes>(
    what: &'static str,
    range: impl RangeBounds<N>,
    length: N,
) -> Result<Range<N>> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.and_one(),
        Bound::Unbounded => N::default(),
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.and_one(),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => length,
    };
    if start <= end && end <= length {
        Ok(start..end)
    } else {
        let (start, end, length) = (start.wide(), end.wide(), length.wide());
        Err(Error::OutOfBounds { what, start, end, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_range_is_understood() {
        let of = |range: (Bound<usize>, Bound<usize>)| inside("it", range, 10).ok();
        assert_eq!(inside("it", .., 10_usize).unwrap(), 0..10);
        assert_eq!(inside("it", 4_usize.., 10).unwrap(), 4..10);
        assert_eq!(inside("it", ..=9_usize, 10).unwrap(), 0..10);
        assert_eq!(inside("it", 10_u64.., 10).unwrap(), 10..10);
        assert_eq!(of((Bound::Excluded(3), Bound::Included(5))), Some(4..6));
        assert_eq!(of((Bound::Included(0), Bound::Included(usize::MAX))), None);
        assert_eq!(of((Bound::Excluded(usize::MAX), Bound::Unbounded)), None);
    }

    #[test]
    fn what_does_not_lie_inside_is_refused() {
        inside("it", 0..11_usize, 10).unwrap_err();
        inside("it", 11_usize.., 10).unwrap_err();
        inside("it", 0..=10_u64, 10).unwrap_err();
        inside("it", Range { start: 2, end: 1_u64 }, 10).unwrap_err();
    }
}
