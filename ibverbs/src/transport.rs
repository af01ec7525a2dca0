//! The transports as types: what one cannot do does not compile.
#![expect(unsafe_code, reason = "a trait that posting relies on")]

use crate::Operations;

/// A kind of queue pair.
///
/// # Safety
///
/// `TYPE` is the kind of queue pair that the methods of the implemented marker traits are right for:
/// [`Connected`] requests carry no destination, [`Datagram`] requests always do.
pub unsafe trait Transport: Send + Sync + 'static {
    /// The number of C, `IBV_QPT_*`.
    const TYPE: u32;
    /// In words.
    const NAME: &'static str;
    /// Every operation it can have.
    const OPERATIONS: Operations;
}

/// A transport whose queue pairs talk to one peer each.
pub trait Connected: Transport {}

/// A transport whose requests name their destination.
pub trait Datagram: Transport {}

/// A transport that writes to a peer's memory.
pub trait RemoteWrite: Transport {}

/// A transport that reads a peer's memory.
pub trait RemoteRead: Transport {}

/// A transport that does atomic operations on a peer's memory.
pub trait RemoteAtomic: Transport {}

/// Reliable connected: in order, acknowledged, every operation.
#[derive(Debug, Clone, Copy)]
pub enum Rc {}

// SAFETY: reliable connected queue pairs have one peer.
unsafe impl Transport for Rc {
    const TYPE: u32 = rdma_sys::IBV_QPT_RC;
    const NAME: &'static str = "reliable connected";
    const OPERATIONS: Operations = Operations::SEND
        .union(Operations::SEND_WITH_IMMEDIATE)
        .union(Operations::WRITE)
        .union(Operations::WRITE_WITH_IMMEDIATE)
        .union(Operations::READ)
        .union(Operations::COMPARE_AND_SWAP)
        .union(Operations::FETCH_AND_ADD);
}
impl Connected for Rc {}
impl RemoteWrite for Rc {}
impl RemoteRead for Rc {}
impl RemoteAtomic for Rc {}
