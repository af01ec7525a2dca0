//! Requests of an extended reliable connection. Each names a shared receive queue of the peer's XRC domain: messages
//! take its receives, and the peer's keys count in its protection domain. InfiniBand specification, annex A14.

use super::{Gather, Scatter, SendWr};
use crate::{RemoteKey, RemoteSegment, Segment, SharedReceiveQueueNumber, XrcInitiator};

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
        key: RemoteKey,
    ) -> Self {
        let mut wr = Self::new(rdma_sys::IBV_WR_SEND_WITH_INV, from.into());
        wr.raw.__bindgen_anon_1.invalidate_rkey = key.0;
        wr.queue(queue)
    }

    /// Bytes into the peer's memory; the peer is not told.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write_into(
        from: impl Into<Gather<'a>>,
        to: &RemoteSegment,
        queue: SharedReceiveQueueNumber,
    ) -> Self {
        let from = from.into();
        Self::new(rdma_sys::IBV_WR_RDMA_WRITE, from).queue(queue).toward(*to, from)
    }

    /// Bytes of the peer's memory into this side's, as many as `into` has room for.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read_by(
        into: impl Into<Scatter<'a>>,
        from: &RemoteSegment,
        queue: SharedReceiveQueueNumber,
    ) -> Self {
        let into = Gather::from(into.into());
        Self::new(rdma_sys::IBV_WR_RDMA_READ, into).queue(queue).toward(*from, into)
    }

    /// As [`compare_and_swap`](SendWr::compare_and_swap) of a reliable connection.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_and_swap_by(
        into: Segment<'a>,
        word: &RemoteSegment,
        queue: SharedReceiveQueueNumber,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self::atomic(rdma_sys::IBV_WR_ATOMIC_CMP_AND_SWP, into, *word, (compare, swap)).queue(queue)
    }

    /// As [`fetch_and_add`](SendWr::fetch_and_add) of a reliable connection.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_and_add_by(
        into: Segment<'a>,
        word: &RemoteSegment,
        queue: SharedReceiveQueueNumber,
        add: u64,
    ) -> Self {
        Self::atomic(rdma_sys::IBV_WR_ATOMIC_FETCH_AND_ADD, into, *word, (add, 0)).queue(queue)
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
