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
    dma::EngineFailed,
    fabric::Fabric,
    memory::{Piece, Place},
};

/// How many bytes go through memory of our own at a time, where an engine is on one side.
const BOUNCE: usize = 1 << 20;

impl Fabric {
    /// Copies the bytes of one list of pieces to another, up to the end of the shorter one.
    ///
    /// # Safety
    ///
    /// Every piece was checked against a live region, or is memory of the device, and the lock that
    /// was held at the check is held still.
    pub(crate) unsafe fn transfer(
        &mut self,
        from: &[Piece],
        to: &[Piece],
    ) -> Result<(), EngineFailed> {
        let (mut sources, mut targets) = (from.iter().copied(), to.iter().copied());
        let (mut source, mut target) = (sources.next(), targets.next());
        while let (Some(here), Some(there)) = (source, target) {
            let length = here.length.min(there.length);
            // SAFETY: both stretches have `length` bytes, and the caller vouches for the pieces.
            unsafe { self.copy(here.place, there.place, length) }?;
            source = rest(here, length).or_else(|| sources.next());
            target = rest(there, length).or_else(|| targets.next());
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`Fabric::transfer`], for `length` bytes on both sides.
    unsafe fn copy(&mut self, from: Place, to: Place, length: usize) -> Result<(), EngineFailed> {
        if let (
            Place::Engine { attachment: source, offset: start },
            Place::Engine { attachment: target, offset: place },
        ) = (from, to)
            && self.copy_attached((source, start), (target, place), length)?
        {
            return Ok(());
        }
        match (from, to) {
            (_, Place::Nowhere) => {}
            (Place::Host(from), Place::Host(to)) => {
                // SAFETY: by the contract above.
                unsafe { copy_host(from, to, length) };
            }
            (Place::Nowhere, Place::Host(to)) => {
                // SAFETY: by the contract above.
                unsafe { clear(to, length) };
            }
            _ => {
                let mut bounce = vec![0; length.min(BOUNCE)];
                let mut done = 0;
                while done < length {
                    let part = bounce.get_mut(..length.min(done + BOUNCE) - done);
                    let part = part.ok_or(EngineFailed)?;
                    // SAFETY: a part of the source stretch, by the contract above.
                    unsafe { self.fetch(from.at(done), part) }?;
                    // SAFETY: a part of the target stretch, by the contract above.
                    unsafe { self.store(to.at(done), part) }?;
                    done += part.len();
                }
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`Fabric::transfer`], for `bytes.len()` bytes at `from`.
    unsafe fn fetch(&mut self, from: Place, bytes: &mut [u8]) -> Result<(), EngineFailed> {
        match from {
            Place::Host(from) => {
                let to = bytes.as_mut_ptr().expose_provenance();
                // SAFETY: the target is `bytes`; the source by the contract above.
                unsafe { copy_host(from, to, bytes.len()) };
                Ok(())
            }
            Place::Nowhere => {
                bytes.fill(0);
                Ok(())
            }
            Place::Engine { attachment, offset } => {
                self.attachments.get_mut(attachment).ok_or(EngineFailed)?.read(offset, bytes)
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Fabric::transfer`], for `bytes.len()` bytes at `to`.
    unsafe fn store(&mut self, to: Place, bytes: &[u8]) -> Result<(), EngineFailed> {
        match to {
            Place::Host(to) => {
                let from = bytes.as_ptr().expose_provenance();
                // SAFETY: the source is `bytes`; the target by the contract above.
                unsafe { copy_host(from, to, bytes.len()) };
                Ok(())
            }
            Place::Nowhere => Ok(()),
            Place::Engine { attachment, offset } => {
                let later = self.holds_inbound(attachment);
                let there = self.attachments.get_mut(attachment).ok_or(EngineFailed)?;
                there.write(offset, bytes, later)
            }
        }
    }

    /// Changes eight bytes in one step; what they were before, in the order of this machine.
    ///
    /// # Safety
    ///
    /// As for [`Fabric::transfer`], for eight bytes.
    pub(crate) unsafe fn exchange(
        &mut self,
        place: Place,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, EngineFailed> {
        if let Place::Host(address) = place
            && address.is_multiple_of(8)
        {
            let word = ptr::with_exposed_provenance_mut(address);
            // SAFETY: eight aligned bytes that stay there while the lock is held, by the contract.
            let word = unsafe { AtomicU64::from_ptr(word) };
            let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
            return Ok(old.unwrap_or_else(|old| old));
        }
        let mut bytes = [0; 8];
        // SAFETY: by the contract above.
        unsafe { self.fetch(place, &mut bytes) }?;
        let old = u64::from_ne_bytes(bytes);
        if let Some(new) = change(old) {
            // SAFETY: by the contract above.
            unsafe { self.store(place, &new.to_ne_bytes()) }?;
        }
        Ok(old)
    }
}

/// What is left of a piece after `done` bytes.
fn rest(piece: Piece, done: usize) -> Option<Piece> {
    let length = piece.length - done;
    (length > 0).then(|| Piece { place: piece.place.at(done), length })
}

/// Copies bytes of the process.
///
/// # Safety
///
/// `length` bytes can be read at `from` and written at `to` until it returns, by whoever else they are
/// read or written meanwhile.
pub(crate) unsafe fn copy_host(from: usize, to: usize, length: usize) {
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
/// As for [`copy_host`], for `length` bytes at `to`.
unsafe fn clear(to: usize, length: usize) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to);
    for index in 0..length {
        // SAFETY: inside the stretch, by the contract above.
        unsafe { to.wrapping_add(index).write_volatile(0) };
    }
}

/// # Safety
///
/// As for [`copy_host`], for `count` aligned values of `T` on both sides.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::fabric;

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
            // SAFETY: the pieces lie in live memory that nothing else touches meanwhile.
            assert_eq!(unsafe { fabric().transfer(&source, &target) }, Ok(()));
            assert_eq!(to[shift..shift + 100], (0..100).collect::<Vec<u8>>());
            assert_eq!(to[shift + 100..], vec![0; 20 - shift]);
        }
    }
}
