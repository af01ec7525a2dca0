//! Queue pairs: where work requests are posted.
//!
//! A queue pair goes from reset over initialized and ready-to-receive to ready-to-send. Each state is a type: a queue pair
//! that is not connected has no method to post sends, and receives can be posted from initialized on.
//! The device can move a queue pair to its error state at any time; that shows in completions, not in
//! the type.
#![expect(unsafe_code, reason = "owns an ibv_qp")]

pub(crate) mod builder;
mod close;
pub(crate) mod connect;
pub(crate) mod endpoint;
pub(crate) mod owned;
pub(crate) mod post;
pub(crate) mod transition;

use std::{fmt, marker::PhantomData, ptr::NonNull};

use crate::{
    CompletionQueue, Error, PacketSequence, Parent, ProtectionDomain, QueuePairNumber, Result,
    Transport, error::verb,
};

/// Just made, or reset: it neither sends nor receives.
#[derive(Debug, Clone, Copy)]
pub enum Reset {}
/// Receives can be posted; nothing is sent or taken yet.
#[derive(Debug, Clone, Copy)]
pub enum Initialized {}
/// It takes what its peer sends.
#[derive(Debug, Clone, Copy)]
pub enum ReadyToReceive {}
/// It sends and receives.
#[derive(Debug, Clone, Copy)]
pub enum ReadyToSend {}

/// A state in which receives can be posted.
pub trait PostsReceives {}
impl PostsReceives for Initialized {}
impl PostsReceives for ReadyToReceive {}
impl PostsReceives for ReadyToSend {}

/// A pair of a send queue and a receive queue, of transport `T`, in state `S`.
///
/// Made by [`ProtectionDomain::queue_pair`]. `QueuePair<'static, Rc>` keeps its domain and its completion
/// queues alive itself and can be stored beside them.
///
/// Dropping it destroys it in the device, which ends its requests; those that were posted report nothing then.
/// Memory that they name may be dropped before or after.
pub struct QueuePair<'a, T, S = ReadyToSend> {
    handle: Handle<'a>,
    transport: PhantomData<(T, S)>,
}

/// What every queue pair is, whatever its transport and state.
pub(crate) struct Handle<'a> {
    /// From a creating verb on `domain`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_qp>,
    /// How requests reach the provider; its pointers are `raw` seen as an extended queue pair.
    path: post::Path,
    /// What the device gave, at least what was asked for.
    capabilities: Capabilities,
    /// The number of the first packet that it sends.
    first_packet: PacketSequence,
    domain: Parent<'a, ProtectionDomain<'a>>,
    /// Held so that they outlive the queue pair.
    queues: [Parent<'a, CompletionQueue<'a>>; 2],
}

/// How much a queue pair holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Requests of the send queue.
    pub send_requests: u32,
    /// Requests of the receive queue.
    pub receive_requests: u32,
    /// Segments of a request of the send queue.
    pub send_segments: u32,
    /// Segments of a request of the receive queue.
    pub receive_segments: u32,
    /// Inline bytes of a request.
    pub inline: u32,
}

/// How requests reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posting {
    /// Through `ibv_wr_*`: one call into the provider per request, no list to walk.
    Extended,
    /// Through `ibv_post_send`, which every device has.
    Classic,
}

impl<'a, T: Transport, S> QueuePair<'a, T, S> {
    /// # Safety
    ///
    /// `handle`'s queue pair is in state `S`, as far as this side has brought it, and of transport `T`.
    unsafe fn from_handle(handle: Handle<'a>) -> Self {
        Self { handle, transport: PhantomData }
    }

    /// Its number, which peers need.
    #[must_use]
    pub fn number(&self) -> QueuePairNumber {
        self.handle.number()
    }

    /// How much it holds.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.handle.capabilities
    }

    /// How its requests reach the device.
    #[must_use]
    pub fn posting(&self) -> Posting {
        match self.handle.path {
            post::Path::Classic => Posting::Classic,
            post::Path::Extended(_) | post::Path::ExtendedWithWrites(_) => Posting::Extended,
        }
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        &self.handle.domain
    }

    /// The queue where its sends complete.
    #[must_use]
    pub fn send_queue(&self) -> &CompletionQueue<'a> {
        &self.handle.queues[0]
    }

    /// The queue where its receives complete.
    #[must_use]
    pub fn receive_queue(&self) -> &CompletionQueue<'a> {
        &self.handle.queues[1]
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.handle.raw.as_ptr()
    }

    /// Its state and attributes, as the device has them. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the device is gone. See `ibv_query_qp(3)`.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QueuePairAttributes> {
        let (verb, query) = verb!(self.handle.library(), ibv_query_qp)?;
        let mut attributes = rdma_sys::ibv_qp_attr::default();
        let mut initial = rdma_sys::ibv_qp_init_attr::default();
        let everything = rdma_sys::IBV_QP_DEST_QPN
            | rdma_sys::IBV_QP_STATE
            | rdma_sys::IBV_QP_CAP
            | rdma_sys::IBV_QP_ACCESS_FLAGS
            | rdma_sys::IBV_QP_PATH_MTU;
        let mask = everything.cast_signed();
        // SAFETY: `raw` is live, and both structs are valid places.
        let returned = unsafe { query(self.as_raw(), &raw mut attributes, mask, &raw mut initial) };
        verb.status(returned)?;
        Ok(QueuePairAttributes { attributes, initial })
    }

    /// Moves it to its error state: everything posted completes as flushed. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`] if the device is gone.
    #[doc(alias = "ibv_modify_qp")]
    pub fn fail(&self) -> Result<()> {
        transition::to_error().apply(&self.handle)
    }

    /// Takes it back to reset, so that it can be connected anew. What was posted reports nothing any more,
    /// and its number of the first packet is a new one. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`] if the device refuses. The queue pair is dropped then.
    #[doc(alias = "ibv_modify_qp")]
    pub fn reset(mut self) -> Result<QueuePair<'a, T, Reset>> {
        transition::to_reset().apply(&self.handle)?;
        self.handle.first_packet = PacketSequence::random();
        // SAFETY: the device has just reset it.
        Ok(unsafe { QueuePair::from_handle(self.handle) })
    }
}

impl Handle<'_> {
    fn number(&self) -> QueuePairNumber {
        // SAFETY: `raw` is live, and the number never changes.
        QueuePairNumber::from_device(unsafe { (*self.raw.as_ptr()).qp_num })
    }

    fn library(&self) -> &'static rdma_sys::Library {
        self.domain.context().library()
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = verb!(self.library(), ibv_destroy_qp) {
            // SAFETY: `raw` is live, and nothing reads it after this.
            verb.log_refusal(unsafe { destroy(self.raw.as_ptr()) });
        }
    }
}

impl<T: Transport, S> fmt::Debug for QueuePair<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("transport", &T::NAME)
            .field("number", &self.number())
            .field("posting", &self.posting())
            .field("capabilities", &self.handle.capabilities)
            .finish_non_exhaustive()
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for Handle<'_> {}
// SAFETY: as for `Send`; the fields beside the C object are constant while it is shared.
unsafe impl Sync for Handle<'_> {}

/// The state of a queue pair in the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueuePairState(pub u32);

impl QueuePairState {
    /// See [`Reset`].
    pub const RESET: Self = Self(rdma_sys::IBV_QPS_RESET);
    /// See [`Initialized`].
    pub const INITIALIZED: Self = Self(rdma_sys::IBV_QPS_INIT);
    /// See [`ReadyToReceive`].
    pub const READY_TO_RECEIVE: Self = Self(rdma_sys::IBV_QPS_RTR);
    /// See [`ReadyToSend`].
    pub const READY_TO_SEND: Self = Self(rdma_sys::IBV_QPS_RTS);
    /// The send queue is drained.
    pub const SEND_QUEUE_DRAINED: Self = Self(rdma_sys::IBV_QPS_SQD);
    /// A request of the send queue failed; receives go on.
    pub const SEND_QUEUE_ERROR: Self = Self(rdma_sys::IBV_QPS_SQE);
    /// Broken: every request completes as flushed.
    pub const ERROR: Self = Self(rdma_sys::IBV_QPS_ERR);

    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RESET => "reset",
            Self::INITIALIZED => "initialized",
            Self::READY_TO_RECEIVE => "ready to receive",
            Self::READY_TO_SEND => "ready to send",
            Self::SEND_QUEUE_DRAINED => "send queue drained",
            Self::SEND_QUEUE_ERROR => "send queue error",
            Self::ERROR => "error",
            _ => "unknown",
        }
    }
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the device says about a queue pair. See `ibv_query_qp(3)`.
#[derive(Debug, Clone, Copy)]
pub struct QueuePairAttributes {
    attributes: rdma_sys::ibv_qp_attr,
    initial: rdma_sys::ibv_qp_init_attr,
}

impl QueuePairAttributes {
    /// Its state.
    #[must_use]
    pub fn state(&self) -> QueuePairState {
        QueuePairState(self.attributes.qp_state)
    }

    /// The peer it is connected to.
    #[must_use]
    pub fn peer(&self) -> QueuePairNumber {
        QueuePairNumber::from_device(self.attributes.dest_qp_num)
    }

    /// What peers may ask of it.
    #[must_use]
    pub fn access(&self) -> crate::Access {
        crate::Access::from_bits_truncate(self.attributes.qp_access_flags)
    }

    /// All attributes, as C has them.
    #[must_use]
    pub fn as_raw(&self) -> &rdma_sys::ibv_qp_attr {
        &self.attributes
    }

    /// What it was made with, as C has it.
    #[must_use]
    pub fn initial_as_raw(&self) -> &rdma_sys::ibv_qp_init_attr {
        &self.initial
    }
}

impl Error {
    /// What `ibv_create_qp` was asked for that the device cannot give, if that is the cause.
    fn over_the_limits(domain: &ProtectionDomain<'_>, asked: &rdma_sys::ibv_qp_cap) -> Result<()> {
        let limits = domain.context().query_device()?;
        let check = |what, asked: u32, limit: u32| Self::check(what, asked.into(), 0, limit.into());
        check("send requests", asked.max_send_wr, limits.max_requests())?;
        check("receive requests", asked.max_recv_wr, limits.max_requests())?;
        check("segments of a send request", asked.max_send_sge, limits.max_segments())?;
        check("segments of a receive request", asked.max_recv_sge, limits.max_segments())
    }
}
