//! Asynchronous events: what a device tells besides completions.
//!
//! The laws of this module are those of completion channels: an event is acknowledged in the call that takes it, and
//! it names its object by number, since the object may be gone when it is read.
#![expect(unsafe_code, reason = "takes events and reads what they point to")]

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use crate::{
    CompletionQueueId, Context, PortNumber, QueuePairNumber, Result, SharedReceiveQueue,
    descriptor::{self, Deadline},
    error::verb,
};

/// Something that happened to a device, or to an object made from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// To what.
    pub source: EventSource,
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.source, self.kind, self.kind.advice())
    }
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventSource {
    /// The device as a whole.
    Device,
    /// A port.
    Port(PortNumber),
    /// A queue pair.
    QueuePair(QueuePairNumber),
    /// A completion queue.
    CompletionQueue(CompletionQueueId),
    /// A shared receive queue.
    SharedReceiveQueue(SharedReceiveQueueId),
    /// A work queue, by its number.
    WorkQueue(u32),
    /// A newer library knows.
    Unknown,
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => f.write_str("device"),
            Self::Port(port) => write!(f, "port {port}"),
            Self::QueuePair(number) => write!(f, "queue pair {number}"),
            Self::CompletionQueue(id) => write!(f, "completion queue {id}"),
            Self::SharedReceiveQueue(_) => f.write_str("shared receive queue"),
            Self::WorkQueue(number) => write!(f, "work queue {number}"),
            Self::Unknown => f.write_str("unknown object"),
        }
    }
}

/// Which shared receive queue an event is of. A queue made later can have the number of one that was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedReceiveQueueId(usize);

impl SharedReceiveQueueId {
    /// The number of a queue.
    #[must_use]
    pub fn of_raw(queue: *mut rdma_sys::ibv_srq) -> Self {
        Self(queue.addr())
    }
}

impl SharedReceiveQueue<'_> {
    /// The number by which events name this queue.
    #[must_use]
    pub fn id(&self) -> SharedReceiveQueueId {
        SharedReceiveQueueId::of_raw(self.as_raw())
    }
}

/// What happened. See `ibv_get_async_event(3)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsyncEventKind(pub u32);

macro_rules! kinds {
    ($($name:ident = $raw:ident, $text:literal, $advice:literal;)*) => {
        impl AsyncEventKind {
            $(
                #[doc = concat!("In C `", stringify!($raw), "`; prints as \"", $text, "\".")]
                pub const $name: Self = Self(rdma_sys::$raw);
            )*

            /// In words; a value of a newer library is a number.
            const fn text(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($text),)*
                    _ => None,
                }
            }

            /// What to do.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self {
                    $(Self::$name => $advice,)*
                    _ => "a newer rdma-core knows this event",
                }
            }
        }
    };
}

kinds! {
    QUEUE_OVERRUN = IBV_EVENT_CQ_ERR, "completion queue overrun",
        "make the queue larger, or poll it more often; it and its queue pairs are lost";
    QUEUE_PAIR_FATAL = IBV_EVENT_QP_FATAL, "error of the queue pair",
        "it is in its error state; its completions say what failed";
    INVALID_REQUEST = IBV_EVENT_QP_REQ_ERR, "invalid request from the peer",
        "the peer sent what this queue pair does not take; it is in its error state";
    ACCESS_VIOLATION = IBV_EVENT_QP_ACCESS_ERR, "access violation by the peer",
        "the peer used a key, range or operation that it may not; the queue pair is in its error state";
    ESTABLISHED = IBV_EVENT_COMM_EST, "first packet from the peer",
        "the peer is connected; make this side ready to send";
    SEND_QUEUE_DRAINED = IBV_EVENT_SQ_DRAINED, "send queue drained",
        "all sends have finished";
    PATH_MIGRATED = IBV_EVENT_PATH_MIG, "connection moved to its other path",
        "load another alternate path";
    PATH_MIGRATION_FAILED = IBV_EVENT_PATH_MIG_ERR, "connection did not move to its other path",
        "check the alternate path";
    DEVICE_FATAL = IBV_EVENT_DEVICE_FATAL, "the device is gone",
        "it was removed or reset: nothing on it works any more; drop all objects, and open it again when it is back";
    PORT_ACTIVE = IBV_EVENT_PORT_ACTIVE, "active",
        "connections over it can be made";
    PORT_DOWN = IBV_EVENT_PORT_ERR, "down",
        "what is sent over it fails when the retries are used up, unless the link comes back";
    LID_CHANGED = IBV_EVENT_LID_CHANGE, "local identifier changed",
        "tell peers the new one, and connect again";
    PKEY_CHANGED = IBV_EVENT_PKEY_CHANGE, "partition keys changed",
        "look up the index of the key again";
    SUBNET_MANAGER_CHANGED = IBV_EVENT_SM_CHANGE, "subnet manager changed",
        "subscriptions may have to be made again";
    SHARED_RECEIVE_QUEUE_FATAL = IBV_EVENT_SRQ_ERR, "error of the shared receive queue",
        "it takes no more receives; drop its queue pairs and it";
    SHARED_RECEIVE_QUEUE_LIMIT = IBV_EVENT_SRQ_LIMIT_REACHED, "few receives are left",
        "post more, then set the limit again";
    LAST_RECEIVE_TAKEN = IBV_EVENT_QP_LAST_WQE_REACHED, "took its last shared receive",
        "poll its completions to the end, then it can be dropped";
    CLIENT_REREGISTER = IBV_EVENT_CLIENT_REREGISTER, "subnet manager wants clients to register again",
        "join multicast groups and subscribe again";
    GID_CHANGED = IBV_EVENT_GID_CHANGE, "GID table changed",
        "addresses of the interface changed; look up the GID index again before connecting";
    WORK_QUEUE_FATAL = IBV_EVENT_WQ_FATAL, "error of the work queue",
        "it is in its error state";
    SPEED_CHANGED = IBV_EVENT_DEVICE_SPEED_CHANGE, "speed changed",
        "query the port for the new one";
}

impl fmt::Display for AsyncEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "event {}", self.0),
        }
    }
}

impl fmt::Debug for AsyncEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Context {
    /// Waits for an event, takes it and acknowledges it. Enters the kernel.
    ///
    /// Each event is seen once, by one of those who ask. When the device is removed, [`AsyncEventKind::DEVICE_FATAL`]
    /// comes; from then on every call on it fails, mostly with `EIO`, completions may stay away, and what is left to do
    /// is dropping its objects, which always works.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the device is gone and its last event was taken. See
    /// `ibv_get_async_event(3)`.
    ///
    /// # Examples
    ///
    /// A thread of its own that tells until the device is gone:
    ///
    /// ```
    /// use ibverbs::{AsyncEventKind, Context};
    ///
    /// fn watch(context: &Context) -> ibverbs::Result<()> {
    ///     loop {
    ///         let event = context.next_event()?;
    ///         // What happened, to what, and what to do.
    ///         eprintln!("{event}");
    ///         if event.kind == AsyncEventKind::DEVICE_FATAL {
    ///             return Ok(());
    ///         }
    ///     }
    /// }
    /// ```
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn next_event(&self) -> Result<AsyncEvent> {
        loop {
            if let Some(event) = self.try_next_event()? {
                return Ok(event);
            }
            descriptor::wait_readable(self.as_fd(), Deadline::NEVER)?;
        }
    }

    /// As [`next_event`](Self::next_event), but returns `None` where that would wait. Makes the descriptor of the
    /// events non-blocking.
    ///
    /// # Errors
    ///
    /// As for [`next_event`](Self::next_event).
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn try_next_event(&self) -> Result<Option<AsyncEvent>> {
        let (verb, get) = verb!(self.library(), ibv_get_async_event)?;
        let (_, acknowledge) = verb!(self.library(), ibv_ack_async_event)?;
        descriptor::set_non_blocking(self.as_fd())?;
        let mut event = rdma_sys::ibv_async_event::default();
        // SAFETY: the context is open, and `event` is a valid place.
        match verb.status(unsafe { get(self.as_raw(), &raw mut event) }) {
            Ok(()) => {}
            Err(error) if error.errno() == Some(libc::EAGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the event was just taken and is not yet acknowledged.
        let source = unsafe { source(&event) };
        // SAFETY: as above; it is acknowledged once.
        unsafe { acknowledge(&raw mut event) };
        Ok(Some(AsyncEvent { kind: AsyncEventKind(event.event_type), source }))
    }
}

/// Can be read when an [event](Context::next_event) is there, and must not be: an event that is taken so is never
/// acknowledged, and dropping its object waits for that for ever.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and the field is constant.
        let descriptor = unsafe { (*self.as_raw()).async_fd };
        // SAFETY: the descriptor is closed with this, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl AsRawFd for Context {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// What an event is about.
///
/// # Safety
///
/// The event was taken and is not acknowledged: destroying the object that it points to waits for that, see
/// `ibv_get_async_event(3)`.
unsafe fn source(event: &rdma_sys::ibv_async_event) -> EventSource {
    let element = &event.element;
    match AsyncEventKind(event.event_type) {
        AsyncEventKind::QUEUE_OVERRUN => {
            // SAFETY: the member of this event.
            let queue = unsafe { element.cq };
            // SAFETY: by this function's contract the queue is there; the field is constant.
            let id = unsafe { (*queue).cq_context }.addr();
            EventSource::CompletionQueue(CompletionQueueId::from_user_data(id))
        }
        AsyncEventKind::QUEUE_PAIR_FATAL
        | AsyncEventKind::INVALID_REQUEST
        | AsyncEventKind::ACCESS_VIOLATION
        | AsyncEventKind::ESTABLISHED
        | AsyncEventKind::SEND_QUEUE_DRAINED
        | AsyncEventKind::PATH_MIGRATED
        | AsyncEventKind::PATH_MIGRATION_FAILED
        | AsyncEventKind::LAST_RECEIVE_TAKEN => {
            // SAFETY: the member of these events.
            let pair = unsafe { element.qp };
            // SAFETY: by this function's contract the queue pair is there; the field is constant.
            EventSource::QueuePair(QueuePairNumber::from_device(unsafe { (*pair).qp_num }))
        }
        AsyncEventKind::SHARED_RECEIVE_QUEUE_FATAL | AsyncEventKind::SHARED_RECEIVE_QUEUE_LIMIT => {
            // SAFETY: the member of these events.
            EventSource::SharedReceiveQueue(SharedReceiveQueueId::of_raw(unsafe { element.srq }))
        }
        AsyncEventKind::WORK_QUEUE_FATAL => {
            // SAFETY: the member of this event.
            let queue = unsafe { element.wq };
            // SAFETY: by this function's contract the queue is there; the field is constant.
            EventSource::WorkQueue(unsafe { (*queue).wq_num })
        }
        AsyncEventKind::DEVICE_FATAL => EventSource::Device,
        AsyncEventKind::PORT_ACTIVE
        | AsyncEventKind::PORT_DOWN
        | AsyncEventKind::LID_CHANGED
        | AsyncEventKind::PKEY_CHANGED
        | AsyncEventKind::SUBNET_MANAGER_CHANGED
        | AsyncEventKind::CLIENT_REREGISTER
        | AsyncEventKind::GID_CHANGED
        | AsyncEventKind::SPEED_CHANGED => {
            // SAFETY: the member of these events.
            let port = unsafe { element.port_num };
            let port = u8::try_from(port).ok().and_then(|port| PortNumber::new(port).ok());
            port.map_or(EventSource::Device, EventSource::Port)
        }
        _ => EventSource::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_newer_library_is_a_value() {
        let event = rdma_sys::ibv_async_event { event_type: 4711, ..Default::default() };
        // SAFETY: events of this kind point to nothing that is followed.
        assert_eq!(unsafe { source(&event) }, EventSource::Unknown);
        assert_eq!(AsyncEventKind(4711).to_string(), "event 4711");
    }

    #[test]
    fn an_event_says_what_to_do() {
        let (kind, source) = (AsyncEventKind::DEVICE_FATAL, EventSource::Device);
        let text = AsyncEvent { kind, source }.to_string();
        assert!(text.starts_with("device: the device is gone; "), "{text}");
        assert!(text.contains("open it again"), "{text}");
    }
}
