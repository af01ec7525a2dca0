//! The transports as types: what one cannot do does not compile.
//!
//! Functions that not every transport has say so in a `where` of their own and not at their `impl`: only then does the compiler
//! tell what a transport lacks in the words that stand at the traits here.
#![expect(unsafe_code, reason = "a trait that posting relies on")]

use crate::Operations;

/// A kind of queue pair.
///
/// # Safety
///
/// `TYPE` is the kind of queue pair that `ADDRESSING` and the implemented marker traits are right for.
/// `ADDRESSING` is [`Addressing::Datagram`] if and only if [`Datagram`] is implemented, and [`Connected`] is not then.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no transport of queue pairs",
    label = "not a transport",
    note = "the transports are `Rc`, `Uc`, `Ud`, `XrcInitiator` and `RawPacket`, and those of vendors such as `efa::Srd`"
)]
pub unsafe trait Transport: Send + Sync + 'static {
    /// The number of C, `IBV_QPT_*`.
    const TYPE: u32;
    /// In words.
    const NAME: &'static str;
    /// Every operation it can have.
    const OPERATIONS: Operations;
    /// How its requests say where they go.
    const ADDRESSING: Addressing = Addressing::Peer;
}

/// How the requests of a transport say where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// Not at all: to the peer that the queue pair is connected to, or, if it sends whole frames, to where a frame itself
    /// says.
    Peer,
    /// Each names an address handle, a queue pair and its queue key.
    Datagram,
    /// To the peer; each names one of its shared receive queues.
    SharedQueue,
}

/// A transport whose queue pairs talk to one peer each.
#[diagnostic::on_unimplemented(
    message = "`{Self}` queue pairs are not connected to a peer",
    label = "needs a connected transport: `Rc`, `Uc` or `XrcInitiator`",
    note = "each request of a datagram transport names a `Destination`: `send_to`, `send_with_imm_to`, and for `efa::Srd` `write_to`, `read_from` and so on; its queue pairs are made ready by `activate`, for `efa::Srd` by `prepare`"
)]
pub trait Connected: Transport {}

/// A transport whose requests name their destination.
#[diagnostic::on_unimplemented(
    message = "requests of `{Self}` queue pairs name no destination",
    label = "needs a datagram transport: `Ud` or `efa::Srd`",
    note = "connected queue pairs send to their one peer: `send`, `send_with_imm`, `write`, `write_with_imm`, `read`"
)]
pub trait Datagram: Transport {}

/// A transport whose queue pairs take messages: each has a receive queue, or a shared one in its place.
#[diagnostic::on_unimplemented(
    message = "`{Self}` queue pairs take no messages",
    label = "needs a transport with a receive queue",
    note = "an `XrcInitiator` only sends, and names a shared receive queue of its peer in each request: `send_into`, `write_into`, `read_by` and so on; what comes to this side goes to an `XrcReceiveQueue`"
)]
pub trait Receiving: Transport {}

/// A transport that writes to a peer's memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` queue pairs cannot write to remote memory",
    label = "needs `Rc`, `Uc`, `XrcInitiator` or `efa::Srd`",
    note = "send the bytes as a message instead, into a receive that the peer has posted"
)]
pub trait RemoteWrite: Transport {}

/// A transport that reads a peer's memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` queue pairs cannot read remote memory",
    label = "needs `Rc`, `XrcInitiator` or `efa::Srd`",
    note = "let the peer send the bytes instead, or write them where its transport can"
)]
pub trait RemoteRead: Transport {}

/// A transport that does atomic operations on a peer's memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` queue pairs have no atomic operations on remote memory",
    label = "needs `Rc` or `XrcInitiator`",
    note = "send a message instead, and let the peer change its memory itself"
)]
pub trait RemoteAtomic: Transport {}

/// A transport whose messages can take a key away from the peer's memory.
#[diagnostic::on_unimplemented(
    message = "messages of `{Self}` queue pairs cannot take a key of the peer away",
    label = "needs `Rc`, or `send_with_invalidate_into` of `XrcInitiator`",
    note = "tell the peer in a message, and let it take its key away itself: `SendWr::local_invalidate`"
)]
pub trait RemoteInvalidate: Transport {}

/// A transport that can flush writes to a peer's memory, and write single words of it atomically.
#[diagnostic::on_unimplemented(
    message = "`{Self}` queue pairs can neither flush remote memory nor write it atomically",
    label = "needs `Rc`",
    note = "a read behind the writes shows that they have arrived, not that they outlive a loss of power"
)]
pub trait RemoteFlush: Transport {}

/// A transport of InfiniBand, whose requests can wake a peer that waits for solicited completions only, and can wait
/// for the reads before them. Transports of vendors may have neither.
#[diagnostic::on_unimplemented(
    message = "requests of `{Self}` queue pairs can be neither solicited nor fenced",
    label = "needs a transport of InfiniBand",
    note = "await the completions of what must come before, and let the peer wait for any completion"
)]
pub trait Solicits: Transport {}
impl Solicits for Rc {}
impl Solicits for Uc {}
impl Solicits for Ud {}
impl Solicits for XrcInitiator {}

/// Messages and writes, with and without immediate: what every connected transport has.
const MESSAGES_AND_WRITES: Operations = Operations::SEND
    .union(Operations::SEND_WITH_IMMEDIATE)
    .union(Operations::WRITE)
    .union(Operations::WRITE_WITH_IMMEDIATE)
    .union(Operations::LOCAL_INVALIDATE)
    .union(Operations::BIND_WINDOW);

/// What reliable transports have besides.
const RELIABLE: Operations = MESSAGES_AND_WRITES
    .union(Operations::READ)
    .union(Operations::COMPARE_AND_SWAP)
    .union(Operations::FETCH_AND_ADD)
    .union(Operations::SEND_WITH_INVALIDATE)
    .union(Operations::FLUSH)
    .union(Operations::ATOMIC_WRITE);

/// Reliable connected: in order, acknowledged, every operation.
#[derive(Debug, Clone, Copy)]
pub enum Rc {}

// SAFETY: reliable connected queue pairs have one peer.
unsafe impl Transport for Rc {
    const TYPE: u32 = rdma_sys::IBV_QPT_RC;
    const NAME: &'static str = "reliable connected";
    const OPERATIONS: Operations = RELIABLE;
}
impl Connected for Rc {}
impl Receiving for Rc {}
impl RemoteWrite for Rc {}
impl RemoteRead for Rc {}
impl RemoteAtomic for Rc {}
impl RemoteInvalidate for Rc {}
impl RemoteFlush for Rc {}

/// Unreliable connected: in order, not acknowledged. A message or write that loses a packet is dropped as a
/// whole, and nobody is told.
#[derive(Debug, Clone, Copy)]
pub enum Uc {}

// SAFETY: unreliable connected queue pairs have one peer.
unsafe impl Transport for Uc {
    const TYPE: u32 = rdma_sys::IBV_QPT_UC;
    const NAME: &'static str = "unreliable connected";
    const OPERATIONS: Operations = MESSAGES_AND_WRITES;
}
impl Connected for Uc {}
impl Receiving for Uc {}
impl RemoteWrite for Uc {}

/// Unreliable datagram: messages of at most one packet to any queue pair of this kind, or to a multicast
/// group. Neither delivery nor order is promised.
#[derive(Debug, Clone, Copy)]
pub enum Ud {}

// SAFETY: datagrams name their destination, and are not connected.
unsafe impl Transport for Ud {
    const TYPE: u32 = rdma_sys::IBV_QPT_UD;
    const NAME: &'static str = "unreliable datagram";
    const OPERATIONS: Operations = Operations::SEND.union(Operations::SEND_WITH_IMMEDIATE);
    const ADDRESSING: Addressing = Addressing::Datagram;
}
impl Datagram for Ud {}
impl Receiving for Ud {}

/// The sending end of an extended reliable connection: its messages go to any shared receive queue of the
/// peer's [`XrcDomain`](crate::XrcDomain).
///
/// The receiving end is an [`XrcTarget`](crate::XrcTarget).
#[derive(Debug, Clone, Copy)]
pub enum XrcInitiator {}

// SAFETY: an initiator has one peer, and no receive queue; its messages name a shared one.
unsafe impl Transport for XrcInitiator {
    const TYPE: u32 = rdma_sys::IBV_QPT_XRC_SEND;
    const NAME: &'static str = "extended reliable connected, initiator";
    const OPERATIONS: Operations = RELIABLE;
    const ADDRESSING: Addressing = Addressing::SharedQueue;
}
impl Connected for XrcInitiator {}
impl RemoteWrite for XrcInitiator {}
impl RemoteRead for XrcInitiator {}
impl RemoteAtomic for XrcInitiator {}
