//! Requests that name their destination.
//!
//! The address handle is borrowed until the request is posted. Providers copy what they need of it in that call
//! (the address itself, or the number that the device knows it by), so that no pointer to it is left
//! afterwards. What happens to a datagram that is still queued when its handle is dropped is told at
//! [`AddressHandle`].

use super::{Gather, Scatter, SendWr};
use crate::{
    AddressHandle, Datagram, QueueKey, QueuePairNumber, RemoteRead, RemoteSegment, RemoteWrite,
    Transport,
};

/// Where a datagram goes: an address handle, and which of the queue pairs behind it.
///
/// Usually made by [`DatagramInfo::destination`](crate::DatagramInfo::destination) of what the peer told of itself.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    address: &'a AddressHandle<'a>,
    queue_pair: QueuePairNumber,
    queue_key: QueueKey,
}

impl<'a> Destination<'a> {
    /// A queue pair at an address that accepts datagrams with this key.
    #[must_use]
    #[inline]
    pub const fn new(
        address: &'a AddressHandle<'a>,
        queue_pair: QueuePairNumber,
        queue_key: QueueKey,
    ) -> Self {
        Self { address, queue_pair, queue_key }
    }
}

impl<'a, T: Transport> SendWr<'a, T> {
    /// A message into the next receive of a queue pair; at most one packet long.
    ///
    /// # Examples
    ///
    /// A datagram without destination does not compile:
    ///
    /// ```compile_fail,E0277
    /// # use ibverbs::{Destination, Segment, SendWr, Ud};
    /// # fn f(bytes: Segment<'_>, to: Destination<'_>) {
    /// let datagram = SendWr::<Ud>::send(bytes);
    /// # }
    /// ```
    ///
    /// ```
    /// # use ibverbs::{Destination, Segment, SendWr, Ud};
    /// # fn f(bytes: Segment<'_>, to: Destination<'_>) {
    /// let datagram = SendWr::<Ud>::send_to(bytes, to);
    /// # }
    /// ```
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_SEND")]
    #[doc(alias = "ibv_wr_set_ud_addr")]
    pub fn send_to(from: impl Into<Gather<'a>>, to: Destination<'a>) -> Self
    where
        T: Datagram,
    {
        Self::new(rdma_sys::IBV_WR_SEND, from.into()).destination(to)
    }

    /// The same, and the completion of the receive carries `immediate` (host order).
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn send_with_imm_to(
        from: impl Into<Gather<'a>>,
        to: Destination<'a>,
        immediate: u32,
    ) -> Self
    where
        T: Datagram,
    {
        let wr = Self::new(rdma_sys::IBV_WR_SEND_WITH_IMM, from.into());
        wr.immediate(immediate).destination(to)
    }

    #[inline]
    fn destination(mut self, to: Destination<'a>) -> Self {
        self.raw.wr.ud = rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: to.address.as_raw(),
            remote_qpn: to.queue_pair.get(),
            remote_qkey: to.queue_key.0,
        };
        self.kind = self.kind.on(to.address.context_tag());
        self
    }

    /// Names the memory behind the destination, which C's classic requests have no place for: it is kept
    /// where a bind would be. Refuses the request if it moves more bytes than that memory has.
    #[inline]
    fn reaching(self, remote: &RemoteSegment, gather: Gather<'a>, to: Destination<'a>) -> Self {
        let mut wr = self.toward(*remote, gather);
        if wr.is_refused() {
            return wr;
        }
        let mut bind = rdma_sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1::default();
        (bind.rkey, bind.bind_info.addr) = (remote.key.0, remote.address);
        wr.raw.__bindgen_anon_2.bind_mw = bind;
        wr.destination(to)
    }

    /// Bytes into memory behind a queue pair; nobody there is told.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write_to(
        from: impl Into<Gather<'a>>,
        memory: &RemoteSegment,
        to: Destination<'a>,
    ) -> Self
    where
        T: RemoteWrite + Datagram,
    {
        let from = from.into();
        Self::new(rdma_sys::IBV_WR_RDMA_WRITE, from).reaching(memory, from, to)
    }

    /// The same; then one of the receives there completes with `immediate` (host order).
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn write_with_imm_to(
        from: impl Into<Gather<'a>>,
        memory: &RemoteSegment,
        to: Destination<'a>,
        immediate: u32,
    ) -> Self
    where
        T: RemoteWrite + Datagram,
    {
        let from = from.into();
        let wr = Self::new(rdma_sys::IBV_WR_RDMA_WRITE_WITH_IMM, from);
        wr.immediate(immediate).reaching(memory, from, to)
    }

    /// Bytes of memory behind a queue pair into this side's, as many as `into` has room for.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read_from(
        into: impl Into<Scatter<'a>>,
        memory: &RemoteSegment,
        at: Destination<'a>,
    ) -> Self
    where
        T: RemoteRead + Datagram,
    {
        let into = Gather::from(into.into());
        Self::new(rdma_sys::IBV_WR_RDMA_READ, into).reaching(memory, into, at)
    }
}
