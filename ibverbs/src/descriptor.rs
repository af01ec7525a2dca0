//! Waiting for file descriptors, and until when.
#![expect(unsafe_code, reason = "calls ppoll and fcntl")]

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    time::{Duration, Instant},
};

use crate::{Result, Verb};

/// When a wait ends at the latest; one that is too far away to be a time is never.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    pub(crate) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// What is left until then; `None` if that is for ever.
    pub(crate) fn remaining(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// Sleeps until the descriptor can be read, or until the deadline; `false` for the latter.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, deadline: Deadline) -> Result<bool> {
    let verb = Verb::new("ppoll");
    loop {
        let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let left = deadline.remaining().map(|left| libc::timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let left = left.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: one entry, a time that is null or valid, and no mask of signals; ppoll(2).
        let returned = unsafe { libc::ppoll(&raw mut entry, 1, left, ptr::null()) };
        match verb.count(returned) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(error) if error.errno() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes reading from the descriptor return `EAGAIN` where it would wait.
pub(crate) fn set_non_blocking(fd: BorrowedFd<'_>) -> Result<()> {
    let verb = Verb::new("fcntl");
    // SAFETY: the descriptor is open while it is borrowed; fcntl(2).
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    verb.count(flags)?;
    if flags & libc::O_NONBLOCK == 0 {
        let flags = flags | libc::O_NONBLOCK;
        // SAFETY: as above.
        verb.count(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{PipeWriter, Read, Write},
        os::fd::AsFd,
    };

    use super::*;

    #[test]
    fn a_wait_ends_when_there_is_something_to_read_or_at_its_deadline() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        assert!(!wait_readable(reader.as_fd(), Deadline::after(Duration::from_millis(2))).unwrap());
        PipeWriter::write_all(&mut writer, &[1]).unwrap();
        assert!(wait_readable(reader.as_fd(), Deadline::NEVER).unwrap());
        set_non_blocking(reader.as_fd()).unwrap();
        assert_eq!(reader.read(&mut [0; 2]).unwrap(), 1);
        let error = reader.read(&mut [0; 2]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_deadline_beyond_time_is_never() {
        assert!(Deadline::after(Duration::ZERO).has_passed());
        assert_eq!(Deadline::after(Duration::MAX).remaining(), None);
        assert!(!Deadline::NEVER.has_passed());
    }
}
