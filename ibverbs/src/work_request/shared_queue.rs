//! Messages to a shared receive queue of the peer's XRC domain.

use super::{Gather, SendWr};
use crate::{RemoteSegment, SharedReceiveQueueNumber, XrcInitiator};

impl<'a> SendWr<'a, XrcInitiator> {
    /// A message into the next receive of a shared receive queue of the peer.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_SEND")]
    #[doc(alias = "ibv_wr_set_xrc_srqn")]
    pub fn send_into(from: impl Into<Gather<'a>>, queue: SharedReceiveQueueNumber) -> Self {
        Self::new(rdma_sys::IBV_WR_SEND, from.into()).queue(queue)
    }

    /// The same, and the completion of the receive carries `immediate` (host order).
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn send_with_imm_into(
        from: impl Into<Gather<'a>>,
        queue: SharedReceiveQueueNumber,
        immediate: u32,
    ) -> Self {
        let wr = Self::new(rdma_sys::IBV_WR_SEND_WITH_IMM, from.into());
        wr.immediate(immediate).queue(queue)
    }

    /// A message into the next receive of a shared receive queue of the peer that takes the peer's `key` away.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn send_with_invalidate_into(
        from: impl Into<Gather<'a>>,
        queue: SharedReceiveQueueNumber,
        key: crate::RemoteKey,
    ) -> Self {
        let mut wr = Self::new(rdma_sys::IBV_WR_SEND_WITH_INV, from.into());
        wr.raw.__bindgen_anon_1.invalidate_rkey = key.0;
        wr.queue(queue)
    }

    /// Bytes into the peer's memory; then a receive of one of its shared receive queues completes with
    /// `immediate` (host order).
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn write_with_imm_into(
        from: impl Into<Gather<'a>>,
        to: &RemoteSegment,
        queue: SharedReceiveQueueNumber,
        immediate: u32,
    ) -> Self {
        let from = from.into();
        let wr = Self::new(rdma_sys::IBV_WR_RDMA_WRITE_WITH_IMM, from);
        wr.immediate(immediate).queue(queue).toward(*to, from)
    }

    #[inline]
    fn queue(mut self, queue: SharedReceiveQueueNumber) -> Self {
        self.raw.qp_type.xrc.remote_srqn = queue.0;
        self
    }
}
