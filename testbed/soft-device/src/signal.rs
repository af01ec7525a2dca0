//! A file descriptor that is readable while events are queued.
#![expect(unsafe_code, reason = "calls the C library on its own descriptors")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::errno::{Outcome, errno};

/// A counting semaphore behind a file descriptor, as a user of `poll(2)` sees an event queue.
#[derive(Debug)]
pub(crate) struct Signal(OwnedFd);

impl Signal {
    pub(crate) fn new() -> Outcome<Self> {
        // SAFETY: the call has no preconditions.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(errno());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Counts one event up.
    pub(crate) fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer has as many bytes as are given.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Counts one event down if there is one; never waits.
    ///
    /// A kernel that cannot read without waiting leaves the descriptor readable: its reader then
    /// finds an empty queue and waits again.
    pub(crate) fn lower(&self) {
        let mut count = [0u8; 8];
        let part = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: one part is given, and its bytes live through the call.
        unsafe { libc::preadv2(self.fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
    }
}

/// Takes one event from a descriptor, waiting for it unless the descriptor was made non-blocking.
pub(crate) fn wait(fd: RawFd) -> Outcome {
    let mut count = [0u8; 8];
    // SAFETY: the buffer has as many bytes as are given.
    let read = unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
    if read < 0 { Err(errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowering_takes_back_what_was_raised_and_never_waits() {
        let signal = Signal::new().unwrap();
        signal.lower();
        signal.raise();
        signal.raise();
        signal.lower();
        assert_eq!(wait(signal.fd()), Ok(()));
        let mut poll = libc::pollfd { fd: signal.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is given, and it lives through the call.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 0) }, 0);
    }
}
