//! Memory that a device may write at any time.
//!
//! The laws of this module:
//!
//! 1. There is no `&[u8]` and no `&mut [u8]` to such memory, not even for a moment: a reference promises the
//!    compiler that nobody else writes, and a device keeps no such promise.
//! 2. Bytes are copied in and out by relaxed atomic accesses, so that the CPU's own threads may do so
//!    side by side. A copy that races with a device's transfer gets a mixture of old and new bytes,
//!    which is what the wire gives too.
//! 3. Order comes from completions: what a device wrote before a completion was polled is seen after.
#![expect(unsafe_code, reason = "copies through raw pointers")]

use std::{
    fmt,
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
};

use crate::{Error, Plain, Result};

/// Bytes that the CPU, the device and its peers share. Reading and writing copies.
///
/// # Examples
///
/// ```
/// use ibverbs::SharedBytes;
///
/// /// A header of two words in front of a message, written and read in place.
/// fn turn_around(bytes: SharedBytes<'_>) -> ibverbs::Result<Vec<u8>> {
///     let length: u32 = bytes.get(4)?;
///     let mut message = vec![0; length as usize];
///     bytes.read(8, &mut message)?;
///     message.reverse();
///     bytes.set::<u32>(0, 1)?;
///     bytes.write(8, &message)?;
///     Ok(message)
/// }
/// ```
#[derive(Clone, Copy)]
pub struct SharedBytes<'m> {
    /// Allocated for `length` bytes during `'m`, and reached by raw pointers only.
    address: NonNull<u8>,
    length: usize,
    memory: PhantomData<&'m ()>,
}

const WORD: usize = size_of::<u64>();

impl<'m> SharedBytes<'m> {
    /// # Safety
    ///
    /// `address` is valid for reads and writes of `length` initialised bytes during `'m`, and no
    /// reference to them exists in that time.
    pub(crate) const unsafe fn new(address: NonNull<u8>, length: usize) -> Self {
        Self { address, length, memory: PhantomData }
    }

    /// A part that lies inside, cut to what is there.
    pub(crate) fn within(self, start: usize, length: usize) -> Self {
        let start = start.min(self.length);
        let length = length.min(self.length - start);
        // SAFETY: `start` is at most the length of the allocation.
        let address = unsafe { self.address.add(start) };
        Self { address, length, memory: PhantomData }
    }

    /// How many bytes there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes from `offset` on into `to`. Does not allocate.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if `to` reaches past the end.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let from = self.part(offset, to.len())?;
        let mut done = 0;
        while done < to.len() {
            // SAFETY: `done` is below the length that `part` checked.
            let at = unsafe { from.add(done) };
            if at.addr().is_multiple_of(WORD) && to.len() - done >= WORD {
                // SAFETY: aligned, eight bytes within the range, shared by atomics only (law 2).
                let word = unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed);
                to[done..done + WORD].copy_from_slice(&word.to_ne_bytes());
                done += WORD;
            } else {
                // SAFETY: one byte within the range, shared by atomics only (law 2).
                to[done] = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
                done += 1;
            }
        }
        Ok(())
    }

    /// Copies `from` to the bytes from `offset` on. Does not allocate.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if `from` reaches past the end.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let to = self.part(offset, from.len())?;
        let mut done = 0;
        while done < from.len() {
            // SAFETY: `done` is below the length that `part` checked.
            let at = unsafe { to.add(done) };
            match from[done..].first_chunk::<WORD>() {
                Some(word) if at.addr().is_multiple_of(WORD) => {
                    // SAFETY: aligned, eight bytes within the range, shared by atomics only (law 2).
                    let place = unsafe { AtomicU64::from_ptr(at.cast()) };
                    place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                    done += WORD;
                }
                _ => {
                    // SAFETY: one byte within the range, shared by atomics only (law 2).
                    unsafe { AtomicU8::from_ptr(at) }.store(from[done], Ordering::Relaxed);
                    done += 1;
                }
            }
        }
        Ok(())
    }

    /// Sets `length` bytes from `offset` on to `value`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if they reach past the end.
    pub fn fill(&self, offset: usize, length: usize, value: u8) -> Result<()> {
        let block = [value; 512];
        self.part(offset, length)?;
        let mut done = 0;
        while done < length {
            let step = block.len().min(length - done);
            self.write(offset + done, &block[..step])?;
            done += step;
        }
        Ok(())
    }

    /// The bytes from `offset` on as a value, in the machine's byte order.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the value reaches past the end.
    pub fn get<T: Plain>(&self, offset: usize) -> Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let place = ptr::slice_from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>());
        // SAFETY: the zeroed bytes of `value`, which nobody else knows.
        self.read(offset, unsafe { &mut *place })?;
        // SAFETY: any bytes are a `T`, by the contract of `Plain`.
        Ok(unsafe { value.assume_init() })
    }

    /// Stores a value in the machine's byte order at `offset`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the value reaches past the end.
    pub fn set<T: Plain>(&self, offset: usize, value: T) -> Result<()> {
        let bytes = ptr::slice_from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>());
        // SAFETY: a `T` has no padding, by the contract of `Plain`.
        self.write(offset, unsafe { &*bytes })
    }

    /// An eight-byte word at `offset`, to wait on or to count in. The machine's byte order.
    ///
    /// Atomic among CPUs; with respect to a device's atomics only where
    /// [`DeviceAttributes::atomics`](crate::DeviceAttributes::atomics) says `GLOBAL`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the word reaches past the end, [`Error::Invalid`] if its address is not
    /// a multiple of eight.
    pub fn word(&self, offset: usize) -> Result<&'m AtomicU64> {
        let at = self.part(offset, WORD)?;
        if !at.addr().is_multiple_of(WORD) {
            return Err(Error::Invalid {
                what: format!(
                    "a word at address {at:p}, which is not a multiple of 8, is not atomic"
                )
                .into(),
                remedy: "choose another offset, or register PageAligned memory",
            });
        }
        // SAFETY: aligned, within the memory that lives for `'m`, shared by atomics only (law 2).
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// A copy of all bytes. Allocates.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // Cannot fail: the vector has just this length.
        self.read(0, &mut bytes).map_or_else(|_| Vec::new(), |()| bytes)
    }

    /// The first byte. Whoever reads or writes through it keeps the laws of this module.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// The pointer to `length` bytes from `offset` on.
    fn part(&self, offset: usize, length: usize) -> Result<*mut u8> {
        let end = offset.checked_add(length).filter(|end| *end <= self.length);
        if end.is_none() {
            return Err(Error::OutOfBounds {
                what: "the memory",
                start: offset as u64,
                end: (offset as u64).saturating_add(length as u64),
                length: self.length as u64,
            });
        }
        // SAFETY: `offset` is at most the length of the allocation.
        Ok(unsafe { self.address.as_ptr().add(offset) })
    }
}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBytes").field("length", &self.length).finish_non_exhaustive()
    }
}

// SAFETY: every access is atomic (law 2).
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedBytes<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(memory: &mut [u8]) -> SharedBytes<'_> {
        let length = memory.len();
        // SAFETY: borrowed mutably for as long as the result lives.
        unsafe { SharedBytes::new(NonNull::new(memory.as_mut_ptr()).unwrap(), length) }
    }

    #[test]
    fn copies_are_exact_at_every_offset_and_length() {
        let pattern: Vec<u8> = (0..64).collect();
        for offset in 0..20 {
            for length in 0..40 {
                let mut memory = [0xffu8; 64];
                let bytes = shared(&mut memory);
                bytes.write(offset, &pattern[..length]).unwrap();
                let mut back = vec![0; length];
                bytes.read(offset, &mut back).unwrap();
                assert_eq!(back, pattern[..length]);
                assert!(memory[..offset].iter().all(|byte| *byte == 0xff));
                assert!(memory[offset + length..].iter().all(|byte| *byte == 0xff));
            }
        }
    }

    #[test]
    fn ranges_past_the_end_are_refused_with_the_numbers() {
        let mut memory = [0u8; 16];
        let bytes = shared(&mut memory);
        assert!(bytes.write(9, &[0; 8]).unwrap_err().to_string().contains("9..17"));
        bytes.read(usize::MAX, &mut [0; 2]).unwrap_err();
        bytes.get::<u64>(9).unwrap_err();
        bytes.fill(0, 17, 0).unwrap_err();
    }

    #[test]
    fn values_keep_their_bytes() {
        let mut memory = [0u8; 64];
        let bytes = shared(&mut memory);
        bytes.set(3, 0x1234_5678_u32).unwrap();
        assert_eq!(bytes.get::<u32>(3).unwrap(), 0x1234_5678);
        bytes.set(8, [1.5f32, -2.0]).unwrap();
        assert_eq!(bytes.get::<[f32; 2]>(8).unwrap(), [1.5, -2.0]);
        bytes.fill(0, 64, 7).unwrap();
        assert_eq!(bytes.to_vec(), [7; 64]);
    }

    #[test]
    fn words_are_aligned_or_refused() {
        let mut memory = [0u64; 2];
        let address = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: borrowed for the rest of this test.
        let bytes = unsafe { SharedBytes::new(address, 16) };
        bytes.word(8).unwrap().store(5, Ordering::Relaxed);
        assert_eq!(bytes.get::<u64>(8).unwrap(), 5);
        bytes.word(4).unwrap_err();
        bytes.word(9).unwrap_err();
    }
}
