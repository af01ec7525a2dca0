//! Requests about how far writes have come: flush, and the atomic write that follows one.
//!
//! C has them in `ibv_wr_*` only: a queue pair that posts classically refuses them. Name
//! [`Operations::FLUSH`](super::Operations::FLUSH) and [`Operations::ATOMIC_WRITE`](super::Operations::ATOMIC_WRITE) when making the
//! queue pair.

use super::SendWr;
use crate::{Connected, RemoteFlush, RemoteSegment, Transport};

bitflags::bitflags! {
    /// How far flushed bytes must have come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Placement: u32 {
        /// Everyone on the peer's machine sees them.
        const GLOBAL = rdma_sys::IBV_FLUSH_GLOBAL;
        /// They survive a loss of power.
        const PERSISTENT = rdma_sys::IBV_FLUSH_PERSISTENT;
    }
}

/// What a flush is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushScope {
    /// The range that it names.
    Range,
    /// The whole region of the range.
    Region,
}

impl<T: Transport> SendWr<'_, T> {
    /// Completes when the earlier writes of this queue pair to `memory` have come as far as `placement` says.
    ///
    /// The region, and the peer's queue pair, need
    /// [`Access::FLUSH_GLOBAL`](crate::Access::FLUSH_GLOBAL) or [`Access::FLUSH_PERSISTENT`](crate::Access::FLUSH_PERSISTENT).
    #[must_use]
    #[inline]
    #[doc(alias = "ibv_wr_flush")]
    #[doc(alias = "IBV_WR_FLUSH")]
    pub fn flush(memory: &RemoteSegment, placement: Placement, scope: FlushScope) -> Self
    where
        T: RemoteFlush + Connected,
    {
        let mut wr = Self::without_memory(rdma_sys::IBV_WR_FLUSH);
        wr.raw.wr.rdma.remote_addr = memory.address;
        wr.raw.wr.rdma.rkey = memory.key.0;
        // The own segment is free, since the request has no memory of this side.
        wr.own.addr = memory.length;
        wr.own.length = placement.bits();
        wr.own.lkey = match scope {
            FlushScope::Range => rdma_sys::IBV_FLUSH_RANGE,
            FlushScope::Region => rdma_sys::IBV_FLUSH_MR,
        };
        wr
    }

    /// Writes an eight-byte word of the peer at once, after all earlier flushes have finished; `value` goes
    /// out in host order.
    #[must_use]
    #[inline]
    #[doc(alias = "ibv_wr_atomic_write")]
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    pub fn atomic_write(word: &RemoteSegment, value: u64) -> Self
    where
        T: RemoteFlush + Connected,
    {
        let mut wr = Self::without_memory(rdma_sys::IBV_WR_ATOMIC_WRITE);
        if !word.is_a_word() {
            return wr.refuse_word(*word);
        }
        wr.raw.wr.rdma.remote_addr = word.address;
        wr.raw.wr.rdma.rkey = word.key.0;
        wr.own.addr = value;
        wr
    }
}
