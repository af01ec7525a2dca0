//! Requests to the peer of a connected queue pair.

use super::{Gather, NO_LOCAL_WORD, Scatter, SendWr, WORD};
use crate::{
    Connected, Receiving, RemoteAtomic, RemoteRead, RemoteSegment, RemoteWrite, Segment, Transport,
};

impl<'a, T: Transport> SendWr<'a, T> {
    /// A message into the peer's next receive.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send(from: impl Into<Gather<'a>>) -> Self
    where
        T: Connected + Receiving,
    {
        Self::new(rdma_sys::IBV_WR_SEND, from.into())
    }

    /// A message into the peer's next receive, whose completion carries `immediate` (host order).
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn send_with_imm(from: impl Into<Gather<'a>>, immediate: u32) -> Self
    where
        T: Connected + Receiving,
    {
        Self::new(rdma_sys::IBV_WR_SEND_WITH_IMM, from.into()).immediate(immediate)
    }

    /// Bytes into the peer's memory; the peer is not told.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write(from: impl Into<Gather<'a>>, to: &RemoteSegment) -> Self
    where
        T: RemoteWrite + Connected + Receiving,
    {
        let from = from.into();
        Self::new(rdma_sys::IBV_WR_RDMA_WRITE, from).toward(*to, from)
    }

    /// Bytes into the peer's memory; then one of the peer's receives completes with `immediate` (host
    /// order), without touching that receive's own memory.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn write_with_imm(from: impl Into<Gather<'a>>, to: &RemoteSegment, immediate: u32) -> Self
    where
        T: RemoteWrite + Connected + Receiving,
    {
        let from = from.into();
        let wr = Self::new(rdma_sys::IBV_WR_RDMA_WRITE_WITH_IMM, from);
        wr.immediate(immediate).toward(*to, from)
    }

    /// Bytes of the peer's memory into this side's, as many as `into` has room for.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read(into: impl Into<Scatter<'a>>, from: &RemoteSegment) -> Self
    where
        T: RemoteRead + Connected + Receiving,
    {
        let into = Gather::from(into.into());
        Self::new(rdma_sys::IBV_WR_RDMA_READ, into).toward(*from, into)
    }

    /// Replaces an eight-byte word of the peer by `swap` if it is `compare`; its old value goes `into` this
    /// side's memory, eight bytes, in host order.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_and_swap(
        into: Segment<'a>,
        word: &RemoteSegment,
        compare: u64,
        swap: u64,
    ) -> Self
    where
        T: RemoteAtomic + Connected + Receiving,
    {
        Self::atomic(rdma_sys::IBV_WR_ATOMIC_CMP_AND_SWP, into, *word, (compare, swap))
    }

    /// Adds to an eight-byte word of the peer, wrapping; its old value goes `into` this side's memory, eight
    /// bytes, in host order.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_and_add(into: Segment<'a>, word: &RemoteSegment, add: u64) -> Self
    where
        T: RemoteAtomic + Connected + Receiving,
    {
        Self::atomic(rdma_sys::IBV_WR_ATOMIC_FETCH_AND_ADD, into, *word, (add, 0))
    }

    #[inline]
    pub(super) fn atomic(
        opcode: u32,
        into: Segment<'a>,
        word: RemoteSegment,
        (compare_add, swap): (u64, u64),
    ) -> Self {
        let mut wr = Self::new(opcode, Gather::One(into));
        if u64::from(into.len()) != WORD {
            return wr.refuse(NO_LOCAL_WORD, into.len().into(), WORD);
        }
        if !word.is_a_word() {
            return wr.refuse_word(word);
        }
        wr.raw.wr.atomic = rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: word.address,
            compare_add,
            swap,
            rkey: word.key.0,
        };
        wr
    }
}
