//! Queue pairs: where work requests are posted.
//!
//! A queue pair goes from reset over initialized and ready-to-receive to ready-to-send. Each state is a type: a queue pair
//! that is not connected has no method to post sends, and receives can be posted from initialized on.
//! The device can move a queue pair to its error state at any time; that shows in completions, not in
//! the type. The type says how far this side has brought it: it keeps the order of calls right, and memory
//! safety does not rest on it.
#![expect(unsafe_code, reason = "owns an ibv_qp")]

pub(crate) mod attributes;
pub(crate) mod builder;
pub(crate) mod change;
mod close;
pub(crate) mod connect;
pub(crate) mod datagram;
pub(crate) mod drain;
pub(crate) mod endpoint;
pub(crate) mod extras;
pub(crate) mod halves;
pub(crate) mod owned;
pub(crate) mod post;
pub(crate) mod raw_packet;
mod rules;
pub(crate) mod state;
pub(crate) mod transition;
pub(crate) mod xrc_target;

use std::{fmt, marker::PhantomData, ptr::NonNull};

use self::state::{PostsReceives, QueuePairState, ReadyToSend, Reset};
use crate::{
    CompletionQueue, Error, Operations, PacketSequence, Parent, ProtectionDomain, QueuePairNumber,
    Result, SharedReceiveQueue, Transport,
    context::ContextTag,
    error::{DEVICE_LIMIT, verb},
};

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
    /// What it was made for. With the extended path it has the entries of all of them, and nothing else is posted.
    operations: Operations,
    /// What the device gave, at least what was asked for.
    capabilities: Capabilities,
    /// The number of the first packet that it sends.
    first_packet: PacketSequence,
    /// That of `domain`.
    context: ContextTag,
    domain: Parent<'a, ProtectionDomain<'a>>,
    /// Held so that they outlive the queue pair.
    queues: [Parent<'a, CompletionQueue<'a>>; 2],
    /// Where its receives come from, if not from its own queue; held as the completion queues are.
    shared: Option<Parent<'a, SharedReceiveQueue<'a>>>,
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
    /// Segments that a request of the receive queue has at least: 0 unless it was made with
    /// [`min_receive_segments`](crate::QueuePairBuilder::min_receive_segments).
    pub least_receive_segments: u32,
    /// Inline bytes of a request.
    pub inline: u32,
    /// Bytes of the headers of [`SegmentedFrames`](crate::SegmentedFrames).
    pub segmented_header: u16,
}

impl Capabilities {
    fn from_raw(raw: rdma_sys::ibv_qp_cap) -> Self {
        Self {
            send_requests: raw.max_send_wr,
            receive_requests: raw.max_recv_wr,
            send_segments: raw.max_send_sge,
            receive_segments: raw.max_recv_sge,
            least_receive_segments: 0,
            inline: raw.max_inline_data,
            segmented_header: 0,
        }
    }
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
    /// `handle`'s queue pair is of transport `T`.
    unsafe fn from_handle(handle: Handle<'a>) -> Self {
        Self { handle, transport: PhantomData }
    }

    /// The same queue pair, which this side has brought to state `N`.
    fn in_state<N>(self) -> QueuePair<'a, T, N> {
        QueuePair { handle: self.handle, transport: PhantomData }
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
            _ => Posting::Extended,
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

    /// The queue that its receives come from, if it was made with one.
    #[must_use]
    pub fn shared_receive_queue(&self) -> Option<&SharedReceiveQueue<'a>> {
        self.handle.shared.as_deref()
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.handle.raw.as_ptr()
    }

    /// Moves it to its error state: everything posted completes as flushed. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`] if the device is gone.
    #[doc(alias = "ibv_modify_qp")]
    pub fn fail(&self) -> Result<()> {
        self.handle.apply(transition::to_error())
    }

    /// Takes it back to reset, so that it can be connected anew. What was posted reports nothing any more,
    /// and its number of the first packet is a new one. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`] if the device refuses. The queue pair is dropped then.
    #[doc(alias = "ibv_modify_qp")]
    pub fn reset(mut self) -> Result<QueuePair<'a, T, Reset>> {
        self.handle.apply(transition::to_reset())?;
        self.handle.first_packet = PacketSequence::random();
        Ok(self.in_state())
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

    fn apply(&self, change: transition::Transition) -> Result<()> {
        // SAFETY: `raw` is live, and of the library of its domain.
        unsafe { change.apply(self.raw.as_ptr(), self.library()) }
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

impl Error {
    /// What `ibv_create_qp` was asked for that the device cannot give, if that is the cause.
    fn over_the_limits(domain: &ProtectionDomain<'_>, asked: &rdma_sys::ibv_qp_cap) -> Result<()> {
        let limits = domain.context().query_device()?;
        let check = |what, asked: u32, limit: u32| {
            Self::check_or(what, asked.into(), 0..=limit.into(), DEVICE_LIMIT)
        };
        check("the number of send requests", asked.max_send_wr, limits.max_requests())?;
        check("the number of receive requests", asked.max_recv_wr, limits.max_requests())?;
        check("the number of segments of a send", asked.max_send_sge, limits.max_segments())?;
        check("the number of segments of a receive", asked.max_recv_sge, limits.max_segments())
    }
}
