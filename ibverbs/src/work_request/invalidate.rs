//! Requests that take keys away.

use super::{Gather, SendWr};
use crate::{Connected, Receiving, RemoteInvalidate, RemoteKey, RemoteWrite, Transport};

impl<T: Transport> SendWr<'_, T> {
    /// Takes a key of this side away: of a memory window of type 2, which is unbound by it. Requests of
    /// peers that come with the key afterwards fail.
    ///
    /// [`QueuePair::unbind_window`](crate::QueuePair::unbind_window) does this for windows of either type.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn local_invalidate(key: RemoteKey) -> Self
    where
        T: RemoteWrite + Connected,
    {
        Self::without_memory(rdma_sys::IBV_WR_LOCAL_INV).key(key)
    }

    #[inline]
    fn key(mut self, key: RemoteKey) -> Self {
        self.raw.__bindgen_anon_1.invalidate_rkey = key.0;
        self
    }
}

impl<'a, T: Transport> SendWr<'a, T> {
    /// A message into the peer's next receive that takes the peer's `key` away: what a server sends when it
    /// is done with the memory that its client opened to it. The completion there
    /// [names the key](crate::FinishedWork::invalidated_key).
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn send_with_invalidate(from: impl Into<Gather<'a>>, key: RemoteKey) -> Self
    where
        T: RemoteInvalidate + Connected + Receiving,
    {
        Self::new(rdma_sys::IBV_WR_SEND_WITH_INV, from.into()).key(key)
    }
}
