//! Scatter lists: the guest-physical ranges behind registered memory, and copies between them.

use std::ops::Range;

use crate::bytes::index;
use crate::host::{DmaFault, GuestMemory};

/// Guest-physical ranges that together hold a run of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScatterList {
    pieces: Vec<Piece>,
    length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// Offset of the first byte in the run.
    start: u64,
    address: u64,
    length: u64,
}

impl ScatterList {
    pub(crate) const fn len(&self) -> u64 {
        self.length
    }

    /// Appends a range, merged with the one before if they touch.
    pub(crate) fn push(&mut self, address: u64, length: u64) {
        if length == 0 {
            return;
        }
        match self.pieces.last_mut() {
            Some(last) if last.address.wrapping_add(last.length) == address => {
                last.length += length;
            }
            _ => self.pieces.push(Piece { start: self.length, address, length }),
        }
        self.length += length;
    }

    pub(crate) fn read(
        &self,
        memory: &dyn GuestMemory,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), DmaFault> {
        for (part, address) in self.parts(offset, into.len())? {
            if let Some(bytes) = into.get_mut(part) {
                memory.read(address, bytes)?;
            }
        }
        Ok(())
    }

    pub(crate) fn write(
        &self,
        memory: &dyn GuestMemory,
        offset: u64,
        from: &[u8],
    ) -> Result<(), DmaFault> {
        for (part, address) in self.parts(offset, from.len())? {
            if let Some(bytes) = from.get(part) {
                memory.write(address, bytes)?;
            }
        }
        Ok(())
    }

    /// The ranges of `length` bytes from `offset` on, each with where it belongs in the buffer.
    fn parts(&self, offset: u64, length: usize) -> Result<Vec<(Range<usize>, u64)>, DmaFault> {
        let fault = DmaFault { address: offset, length };
        let end = offset.checked_add(length as u64).filter(|&end| end <= self.length);
        let end = end.ok_or(fault)?;
        let first = self.pieces.partition_point(|piece| piece.start + piece.length <= offset);
        let mut parts = Vec::new();
        for piece in self.pieces.iter().skip(first).take_while(|piece| piece.start < end) {
            let from = offset.max(piece.start);
            let to = end.min(piece.start + piece.length);
            let part = index(from - offset)..index(to - offset);
            parts.push((part, piece.address.wrapping_add(from - piece.start)));
        }
        Ok(parts)
    }
}

/// Where a copy went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyFault {
    Source,
    Target,
}

/// Bytes to copy from.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Memory(&'a dyn GuestMemory, &'a ScatterList),
}

impl Source<'_> {
    fn read(self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        match self {
            Self::Memory(memory, list) => list.read(memory, offset, into),
            Self::Bytes(bytes) => {
                let start = index(offset);
                let part = bytes.get(start..start.saturating_add(into.len()));
                let part = part.ok_or(DmaFault { address: offset, length: into.len() })?;
                into.copy_from_slice(part);
                Ok(())
            }
        }
    }
}

/// Copies the ranges `pieces` of `source`, in that order, to the same offsets of `target`, moved
/// up by `shift`.
pub(crate) fn copy(
    source: Source<'_>,
    memory: &dyn GuestMemory,
    target: &ScatterList,
    shift: u64,
    pieces: &[Range<u64>],
) -> Result<(), CopyFault> {
    let mut bounce = Vec::new();
    for piece in pieces {
        bounce.resize(index(piece.end - piece.start), 0);
        source.read(piece.start, &mut bounce).map_err(|_| CopyFault::Source)?;
        target.write(memory, piece.start + shift, &bounce).map_err(|_| CopyFault::Target)?;
    }
    Ok(())
}

/// Cuts `length` bytes into ranges of at most `size`.
pub(crate) fn cut(length: u64, size: u64) -> Vec<Range<u64>> {
    let size = size.max(1);
    (0..length.div_ceil(size)).map(|piece| piece * size..length.min((piece + 1) * size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_ranges_merge_and_reads_cross_pieces() {
        let mut list = ScatterList::default();
        list.push(0x1000, 0x1000);
        list.push(0x2000, 0x1000);
        list.push(0x9000, 0x10);
        list.push(0x5000, 0);
        assert_eq!(list.pieces.len(), 2);
        assert_eq!(list.len(), 0x2010);
        let parts = list.parts(0x1ff0, 0x18).expect("inside");
        assert_eq!(parts, [(0..0x10, 0x2ff0), (0x10..0x18, 0x9000)]);
        list.parts(0x2000, 0x11).expect_err("one byte too many");
        list.parts(u64::MAX, 2).expect_err("far outside");
    }

    #[test]
    fn a_cut_covers_every_byte_once() {
        assert_eq!(cut(10, 4), [0..4, 4..8, 8..10]);
        assert_eq!(cut(0, 4), []);
    }
}
