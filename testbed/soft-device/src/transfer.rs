//! Moving bytes, as a device does it: beside the processor and without asking it.
//!
//! Both sides may be read or written by the program at the same moment. No reference to them is ever
//! made; each word is read and written with volatile accesses.
#![expect(unsafe_code, reason = "reads and writes memory that callers registered")]

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    dma_engine,
    memory::{Piece, Place},
};

/// Copies the bytes of one list of pieces to another, up to the end of the shorter one.
///
/// # Safety
///
/// Every piece was checked against a live region, or is memory of the device, and the lock that was
/// held at the check is held still.
pub(crate) unsafe fn transfer(from: &[Piece], to: &[Piece]) {
    let (mut sources, mut targets) = (from.iter().copied(), to.iter().copied());
    let (mut source, mut target) = (sources.next(), targets.next());
    while let (Some(here), Some(there)) = (source, target) {
        let length = here.length.min(there.length);
        // SAFETY: both stretches have `length` bytes, and the caller vouches for the pieces.
        unsafe { copy(here.place, there.place, length) };
        source = rest(here, length).or_else(|| sources.next());
        target = rest(there, length).or_else(|| targets.next());
    }
}

/// What is left of a piece after `done` bytes.
fn rest(piece: Piece, done: usize) -> Option<Piece> {
    let length = piece.length - done;
    (length > 0).then(|| Piece { place: piece.place.at(done), length })
}

/// # Safety
///
/// As for [`transfer`], for `length` bytes on both sides.
unsafe fn copy(from: Place, to: Place, length: usize) {
    let (from, to) = match (from, to) {
        (Place::Host(from), Place::Host(to)) => (from, to),
        // SAFETY: the target has `length` bytes, by the contract above.
        (Place::Nowhere, Place::Host(to)) => return unsafe { clear(to, length) },
        (_, Place::Nowhere) => return,
        // SAFETY: the caller keeps the same promises.
        (from, to) => return unsafe { dma_engine::copy(from, to, length) },
    };
    let head = if from % 8 == to % 8 { (from.wrapping_neg() % 8).min(length) } else { length };
    let words = (length - head) / 8;
    let tail = head + words * 8;
    // SAFETY: the first bytes of both stretches.
    unsafe { copy_each::<u8>(from, to, head) };
    // SAFETY: after `head` bytes both addresses are multiples of 8, and so many words follow.
    unsafe { copy_each::<u64>(from + head, to + head, words) };
    // SAFETY: the last bytes of both stretches.
    unsafe { copy_each::<u8>(from + tail, to + tail, length - tail) };
}

/// Writes zeros.
///
/// # Safety
///
/// As for [`transfer`], for `length` bytes at `to`.
unsafe fn clear(to: usize, length: usize) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to);
    for index in 0..length {
        // SAFETY: inside the stretch, by the contract above.
        unsafe { to.wrapping_add(index).write_volatile(0) };
    }
}

/// # Safety
///
/// As for [`transfer`], for `count` aligned values of `T` on both sides.
unsafe fn copy_each<T>(from: usize, to: usize, count: usize) {
    let from = ptr::with_exposed_provenance::<T>(from);
    let to = ptr::with_exposed_provenance_mut::<T>(to);
    for index in 0..count {
        // SAFETY: inside the stretch, by the contract above.
        let value = unsafe { from.wrapping_add(index).read_volatile() };
        // SAFETY: inside the stretch, by the contract above.
        unsafe { to.wrapping_add(index).write_volatile(value) };
    }
}

/// Changes eight bytes in one step; what they were before, in the order of this machine. `None` if
/// the place cannot do that.
///
/// # Safety
///
/// As for [`transfer`], for eight bytes.
pub(crate) unsafe fn exchange(place: Place, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let Place::Host(address) = place else { return None };
    if address % 8 != 0 {
        return None;
    }
    // SAFETY: eight aligned bytes that stay there while the lock is held, by the contract above.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(address)) };
    Some(word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).unwrap_or_else(|old| old))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &mut [u8], cuts: &[usize]) -> Vec<Piece> {
        let mut start = bytes.as_mut_ptr().expose_provenance();
        cuts.iter()
            .map(|&length| {
                let piece = Piece { place: Place::Host(start), length };
                start += length;
                piece
            })
            .collect()
    }

    #[test]
    fn pieces_of_any_size_and_alignment_are_copied_whole() {
        for shift in 0..9 {
            let mut from: Vec<u8> = (0..100).collect();
            let mut to = [0u8; 120];
            let source = pieces(&mut from, &[1, 40, 7, 52]);
            let target = pieces(&mut to[shift..], &[33, 3, 64, 11]);
            // SAFETY: the pieces lie in live vectors that nothing else touches meanwhile.
            unsafe { transfer(&source, &target) };
            assert_eq!(to[shift..shift + 100], (0..100).collect::<Vec<u8>>());
            assert_eq!(to[shift + 100..], vec![0; 20 - shift]);
        }
    }
}
