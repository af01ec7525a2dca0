//! Memory shared with another process: the one place where this crate dereferences pointers.
//!
//! The laws of such memory. The other side may read and write it at any time, so no Rust
//! reference to it ever exists: bytes are copied in and out through raw pointers, and what was
//! copied out is checked and used, never read again. The memory stays mapped as long as its
//! [`Mapping`] lives.
#![expect(unsafe_code, reason = "maps and copies memory that another process shares")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering, fence};

use crate::error::last_os_error;

/// A mapped range of a file.
#[derive(Debug)]
pub(super) struct Mapping {
    /// From mmap; `length` bytes are mapped until drop.
    start: NonNull<u8>,
    length: usize,
    writable: bool,
}

// SAFETY: the pointer is to memory that is mapped for the whole process, not for one thread.
unsafe impl Send for Mapping {}
// SAFETY: all access through `&self` is by copies that claim no exclusivity, see the laws above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset` on.
    pub(super) fn new(file: &File, offset: u64, length: u64, writable: bool) -> io::Result<Self> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let length = usize::try_from(length).map_err(invalid)?;
        let offset = libc::off_t::try_from(offset).map_err(invalid)?;
        let protection =
            if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: mmap(2) with a null hint takes no memory away from anybody; it checks the rest.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { start, length, writable })
    }

    /// Copies bytes at `offset`; false if the range is not inside.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        let Some(from) = self.pointer(offset, into.len()) else { return false };
        // SAFETY: `pointer` checked that the source is mapped; the target is a live slice of that
        // length, which no mapping overlaps since nothing maps over Rust's own memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        true
    }

    /// Copies `from` to `offset`; false if the range is not inside or not writable.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.pointer(offset, from.len()).filter(|_| self.writable) else {
            return false;
        };
        // SAFETY: as in `read`, with the mapping writable.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }

    /// Stores one byte at `offset` after everything that was written before.
    pub(super) fn publish(&self, offset: usize, byte: u8) -> bool {
        let Some(to) = self.pointer(offset, 1).filter(|_| self.writable) else { return false };
        fence(Ordering::SeqCst);
        // SAFETY: `pointer` checked that the byte is mapped, and a byte is always aligned; the
        // guest accesses it with loads and stores of its own, as atomics allow.
        let flag = unsafe { AtomicU8::from_ptr(to.as_ptr()) };
        flag.store(byte, Ordering::Release);
        true
    }

    fn pointer(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        // SAFETY: `offset` is at most `length`, which is mapped from `start` on.
        Some(unsafe { self.start.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `length` are of a mapping that mmap made and only this unmaps.
        let code = unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
        if code != 0 {
            log::warn!("munmap: {}", last_os_error());
        }
    }
}

/// Memory without a name that can be handed to another process.
pub(super) fn anonymous_file(length: u64) -> io::Result<File> {
    // SAFETY: memfd_create(2) reads the name, a string with its final zero, and nothing else.
    let descriptor = unsafe { libc::memfd_create(c"efa-send-queues".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else has it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(length)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_file_share_bytes_and_check_their_ends() {
        let file = anonymous_file(8192).expect("memory");
        let writer = Mapping::new(&file, 0, 8192, true).expect("mapping");
        let reader = Mapping::new(&file, 4096, 4096, false).expect("mapping");
        assert!(writer.write(4096 + 10, b"shared"));
        assert!(writer.publish(4096 + 16, b'!'));
        let mut bytes = [0; 7];
        assert!(reader.read(10, &mut bytes));
        assert_eq!(&bytes, b"shared!");
        assert!(!reader.read(4090, &mut bytes));
        assert!(!reader.read(usize::MAX, &mut bytes));
        assert!(!reader.write(0, b"no"));
        assert!(!reader.publish(0, 0));
    }
}
