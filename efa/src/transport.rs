//! The transports of EFA as types.
#![expect(unsafe_code, reason = "implements a trait that posting relies on")]

use ibverbs::{
    Addressing, Datagram, Operations, Receiving, RemoteRead, RemoteWrite, Transport, Ud,
};

/// Scalable reliable datagram: reliable, without connections, **without order**, to any number of peers.
///
/// Requests name their destination, and there are sends (of at most one packet), writes and reads; where the
/// device lacks an operation, making the queue pair says so. What SRD does not have does not compile:
///
/// ```
/// # use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr}};
/// # fn f<'a>(bytes: Segment<'a>, memory: &RemoteSegment, peer: &'a Peer<'a>) {
/// let write = SendWr::<Srd>::write_to(bytes, memory, peer.destination());
/// # }
/// ```
///
/// a request without destination,
///
/// ```compile_fail,E0277
/// # use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr}};
/// # fn f<'a>(bytes: Segment<'a>, memory: &RemoteSegment, peer: &'a Peer<'a>) {
/// let write = SendWr::<Srd>::write(bytes, memory);
/// # }
/// ```
///
/// an atomic,
///
/// ```compile_fail,E0277
/// # use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr}};
/// # fn f<'a>(bytes: Segment<'a>, memory: &RemoteSegment, peer: &'a Peer<'a>) {
/// let add = SendWr::<Srd>::fetch_and_add(bytes, memory, 1);
/// # }
/// ```
///
/// and a request that waits for those before it, or solicits an event.
///
/// ```compile_fail,E0277
/// # use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr}};
/// # fn f<'a>(bytes: Segment<'a>, memory: &RemoteSegment, peer: &'a Peer<'a>) {
/// let write = SendWr::<Srd>::write_to(bytes, memory, peer.destination()).fenced();
/// # }
/// ```
///
/// EFA refuses requests that are not signaled, so that every queue pair of this crate signals all, and a request
/// needs no [`signaled`](ibverbs::SendWr::signaled).
#[derive(Debug, Clone, Copy)]
pub enum Srd {}

// SAFETY: requests of this kind of queue pair name their destination, and it is not connected.
unsafe impl Transport for Srd {
    const TYPE: u32 = rdma_sys::IBV_QPT_DRIVER;
    const NAME: &'static str = "scalable reliable datagram";
    const OPERATIONS: Operations = Operations::SEND
        .union(Operations::SEND_WITH_IMMEDIATE)
        .union(Operations::WRITE)
        .union(Operations::WRITE_WITH_IMMEDIATE)
        .union(Operations::READ);
    const ADDRESSING: Addressing = Addressing::Datagram;
}
impl Datagram for Srd {}
impl Receiving for Srd {}
impl RemoteWrite for Srd {}
impl RemoteRead for Srd {}

/// A transport that EFA has: [`Srd`], and [`Ud`].
#[diagnostic::on_unimplemented(
    message = "EFA has no `{Self}` queue pairs",
    label = "needs `Srd` or `Ud`",
    note = "SRD is as reliable as `Rc`, and needs no connection"
)]
pub trait EfaTransport: Datagram + Receiving + sealed::Sealed {}
impl EfaTransport for Srd {}
impl EfaTransport for Ud {}

mod sealed {
    #[expect(unnameable_types, reason = "nobody else can implement what they cannot name")]
    pub trait Sealed {}
    impl Sealed for super::Srd {}
    impl Sealed for ibverbs::Ud {}
}
