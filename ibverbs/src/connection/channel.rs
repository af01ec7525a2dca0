//! Event channels: where the connection manager reports.
#![expect(unsafe_code, reason = "owns an rdma_event_channel")]

use std::{
    ffi::c_int,
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Event, call, event};
use crate::{Error, Result, Verb, descriptor};

/// Where the events of [`Identifier`](super::Identifier)s arrive; one channel serves many.
///
/// An identifier keeps its channel alive, so that they can be dropped in any order. The channel is a file
/// descriptor: [`AsFd`] lets it be waited for beside others. It is readable while there are events, and must not
/// be read from.
pub struct EventChannel(pub(super) Arc<Channel>);

/// What the identifiers of a channel share.
pub(super) struct Channel {
    /// From `rdma_create_event_channel`; destroyed only by drop, which comes after the identifiers' drop.
    raw: NonNull<rdma_sys::rdma_event_channel>,
    library: &'static rdma_sys::Library,
    /// Held for each call on the channel or on an identifier of it: librdmacm changes identifiers while it
    /// fetches an event, without a lock of its own.
    lock: Mutex<()>,
}

impl EventChannel {
    /// Makes a channel. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Library`] if librdmacm is not installed; [`Error::Verb`] with `ENODEV` if there is no RDMA device or
    /// the kernel has no `rdma_ucm`. See `rdma_create_event_channel(3)`.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn create() -> Result<Self> {
        Self::of(rdma_sys::Library::system()?)
    }

    /// Makes a channel of a given library.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    #[doc(alias = "rdma_create_event_channel")]
    pub fn of(library: &'static rdma_sys::Library) -> Result<Self> {
        let (verb, create) = call!(library, rdma_create_event_channel)?;
        // SAFETY: it has no preconditions.
        let raw = verb.object(unsafe { create() })?;
        let channel = Self(Arc::new(Channel { raw, library, lock: Mutex::new(()) }));
        // Waiting is done with poll(2) and never inside of a call that holds the lock.
        descriptor::set_non_blocking(channel.as_fd())?;
        Ok(channel)
    }

    /// The next event, `None` if there is none now. Never waits; enters the kernel.
    ///
    /// The event is a copy: librdmacm's own is acknowledged before this returns, so that nothing waits for an
    /// event that was forgotten.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the channel is broken. See `rdma_get_cm_event(3)`.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn try_event(&self) -> Result<Option<Event>> {
        let (verb, get) = call!(self.0.library, rdma_get_cm_event)?;
        let (_, acknowledge) = call!(self.0.library, rdma_ack_cm_event)?;
        let held = self.0.lock();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is live and does not block, and nothing else is in librdmacm with it or its
        // identifiers, since the lock is held.
        let returned = unsafe { get(self.as_raw(), &raw mut raw) };
        match verb.status(returned) {
            Ok(()) => {}
            Err(error) if matches!(error.errno(), Some(libc::EAGAIN | libc::EINTR)) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let raw = NonNull::new(raw).ok_or_else(|| verb.unsupported())?;
        // SAFETY: librdmacm has just returned it, of an identifier of this channel, and it is not acknowledged.
        let event = unsafe { event::copy(raw, &self.0) };
        // SAFETY: as above; nothing reads it after this.
        let returned = unsafe { acknowledge(raw.as_ptr()) };
        drop(held);
        Verb::new("rdma_ack_cm_event").log_refusal(returned);
        Ok(Some(event))
    }

    /// The next event, waiting for it at most `timeout`, for ever with `None`. `None` if there was none in time.
    ///
    /// # Errors
    ///
    /// As for [`try_event`](Self::try_event).
    pub fn wait_event(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<Event>> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(event) = self.try_event()? {
                return Ok(Some(event));
            }
            if !self.wait(&deadline)? {
                return Ok(None);
            }
        }
    }

    /// Waits until there may be an event; `false` if the time is over.
    pub(super) fn wait(&self, deadline: &Deadline) -> Result<bool> {
        descriptor::wait_readable(self.as_fd(), deadline.end)
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::rdma_event_channel {
        self.0.raw.as_ptr()
    }

    /// The same channel once more.
    pub(super) fn again(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    fn raw_fd(&self) -> RawFd {
        self.0.raw_fd()
    }
}

impl Channel {
    /// Nothing else is in librdmacm with this channel or its identifiers while the guard lives.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        // A panic elsewhere leaves nothing half done: the lock protects C calls, each one whole.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn library(&self) -> &'static rdma_sys::Library {
        self.library
    }

    pub(super) fn as_raw(&self) -> *mut rdma_sys::rdma_event_channel {
        self.raw.as_ptr()
    }

    fn raw_fd(&self) -> RawFd {
        // SAFETY: `raw` is live, and its descriptor never changes.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Ok((_, destroy)) = call!(self.library, rdma_destroy_event_channel) {
            // SAFETY: `raw` is live, and nothing reads it after this: each identifier holds the channel, so
            // that they all are destroyed by now. One that was forgotten has kept the channel alive.
            unsafe { destroy(self.raw.as_ptr()) };
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.raw_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventChannel").field(&self.raw_fd()).finish()
    }
}

// SAFETY: each call on the C object is made with the lock held; the descriptor itself may be used by all.
unsafe impl Send for Channel {}
// SAFETY: as for `Send`.
unsafe impl Sync for Channel {}

/// What to do about a peer that has not answered in time.
pub(super) const PEER_IS_SILENT: &str =
    "see that the peer's machine is up and its program takes requests, or wait longer";

/// What to do if nobody has come in time.
pub(super) const NOBODY_CAME: &str =
    "start the peers, see that they use this address and port, or wait longer";

/// When waiting ends, and how long that was from the beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    after: Duration,
    end: descriptor::Deadline,
}

impl Deadline {
    /// So long from now on; for ever with `None`, or if the clock does not reach that far.
    pub(super) fn after(timeout: impl Into<Option<Duration>>) -> Self {
        let after = timeout.into().unwrap_or(Duration::MAX);
        Self { after, end: descriptor::Deadline::after(after) }
    }

    /// The time left in the form that the kernel's connection manager takes, in milliseconds: it knows no "for ever",
    /// and none at all would be over at once. A little less than there is, so that its report, which says more than that
    /// the time is over, comes first.
    pub(super) fn for_the_kernel(&self) -> c_int {
        let left = self.end.remaining().map_or(u128::MAX, |left| left.as_millis());
        c_int::try_from(left - left / 8).unwrap_or(c_int::MAX).max(1)
    }

    /// The error that says that it is over.
    pub(super) fn missed(&self, what: &'static str, remedy: &'static str) -> Error {
        Error::TimedOut { what, after: self.after, remedy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gets_a_little_less_time_than_there_is_but_some() {
        assert_eq!(Deadline::after(None).for_the_kernel(), c_int::MAX);
        assert_eq!(Deadline::after(Duration::MAX).for_the_kernel(), c_int::MAX);
        assert_eq!(Deadline::after(Duration::ZERO).for_the_kernel(), 1);
        assert!((1..=8750).contains(&Deadline::after(Duration::from_secs(10)).for_the_kernel()));
        let centuries = Duration::from_secs(1 << 40);
        assert_eq!(Deadline::after(centuries).for_the_kernel(), c_int::MAX);
    }
}
