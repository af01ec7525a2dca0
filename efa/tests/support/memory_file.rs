//! Memory behind a descriptor: a file in memory, and a dma-buf of its pages.
#![expect(unsafe_code, reason = "calls into libc")]

use std::{
    ffi::{c_int, c_ulong},
    fs::File,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    ptr::{self, NonNull},
};

/// A file in memory whose pages a device can reach as a dma-buf.
pub(crate) struct MemoryFile {
    file: File,
    length: usize,
}

/// `_IOW('u', 0x42, struct udmabuf_create)` of `linux/udmabuf.h`.
const UDMABUF_CREATE: c_ulong = 0x4018_7542;

#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

impl MemoryFile {
    /// Zeroed memory; `length` is whole pages.
    pub(crate) fn new(length: usize) -> Self {
        // SAFETY: the name is a string that ends with a zero byte.
        let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING) };
        assert!(fd >= 0, "memfd_create failed");
        // SAFETY: just opened, and nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(length as u64).unwrap();
        // SAFETY: the descriptor is open; a dma-buf wants pages that cannot go away.
        let sealed = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert_eq!(sealed, 0, "F_ADD_SEALS failed");
        Self { file, length }
    }

    /// All its pages as a dma-buf.
    pub(crate) fn dma_buf(&self) -> OwnedFd {
        self.dma_buf_of(0, self.length as u64)
    }

    /// Some of its pages as a dma-buf.
    pub(crate) fn dma_buf_of(&self, offset: u64, size: u64) -> OwnedFd {
        let maker = File::options().read(true).write(true).open("/dev/udmabuf").unwrap();
        let memfd = u32::try_from(self.file.as_raw_fd()).unwrap();
        let wanted = UdmabufCreate { memfd, flags: 0, offset, size };
        // SAFETY: the ioctl reads this struct.
        let fd: c_int =
            unsafe { libc::ioctl(maker.as_raw_fd(), UDMABUF_CREATE, &raw const wanted) };
        assert!(fd >= 0, "UDMABUF_CREATE failed");
        // SAFETY: just made, and nobody else has it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    /// Maps all of it for the rest of the process.
    pub(crate) fn map(&self) -> NonNull<u8> {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.file.as_raw_fd());
        // SAFETY: a new mapping touches nothing that exists.
        let address = unsafe {
            libc::mmap(ptr::null_mut(), self.length, protection, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(address, libc::MAP_FAILED, "mmap failed");
        NonNull::new(address.cast()).unwrap()
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }
}
