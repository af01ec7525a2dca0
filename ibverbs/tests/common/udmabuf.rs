//! Dma-bufs made of memory of the CPU, see the kernel's `include/uapi/linux/udmabuf.h`.
#![expect(unsafe_code, reason = "no safe function makes such files")]

use std::{
    fs::File,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

pub(crate) struct Udmabuf {
    pub(crate) dma_buf: File,
    pub(crate) memory: File,
}

#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `_IOW('u', 0x42, struct udmabuf_create)`.
const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;

pub(crate) fn create(length: u64) -> Option<Udmabuf> {
    let device = File::options().read(true).write(true).open("/dev/udmabuf").ok()?;
    let memory = memory_file(length);
    let fd = memory.as_raw_fd();
    // SAFETY: the descriptor is open; it is sealed against shrinking, as the driver wants it.
    let sealed = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    assert_eq!(sealed, 0);
    let request = Create { memfd: fd.cast_unsigned(), flags: 1, offset: 0, size: length };
    // SAFETY: the request is a struct of the layout that the driver reads.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const request) };
    assert!(made >= 0);
    // SAFETY: just made, and nobody else has it.
    let dma_buf = File::from(unsafe { OwnedFd::from_raw_fd(made) });
    Some(Udmabuf { dma_buf, memory })
}

/// Memory behind a file descriptor.
pub(crate) fn memory_file(length: u64) -> File {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"region".as_ptr(), flags) };
    assert!(fd >= 0);
    // SAFETY: just opened, and nobody else has it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(length).unwrap();
    file
}
