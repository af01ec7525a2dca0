//! Work requests: plain data that says what a queue pair should do.
//!
//! A request names only registered memory, bytes that are copied when it is posted, and memory that a peer
//! published. That is why posting is safe: whatever is dropped meanwhile, no device reaches memory that was
//! freed, because each region deregisters before it frees.
//!
//! What cannot be right (more bytes than the peer's part has, an atomic that is not eight bytes at a
//! multiple of eight) is noticed when the request is made and refused when it is posted, before
//! anything of its batch is.

mod connected;
mod datagram;
mod invalidate;
mod operations;
mod persistence;
mod shared_queue;

use std::{fmt, marker::PhantomData, ptr};

pub use self::{
    datagram::Destination,
    operations::Operations,
    persistence::{FlushScope, Placement},
};
use crate::{Error, RemoteSegment, Segment, Solicits, Transport, context::ContextTag};

/// Bytes that are copied into the request when it is posted, and may be reused right after.
///
/// At most as many as the queue pair was made for with
/// [`max_inline`](crate::QueuePairBuilder::max_inline).
#[derive(Debug, Clone, Copy)]
pub struct Inline<'a>(pub &'a [u8]);

/// What a request sends: one segment, several, or inline bytes. All of them convert into it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Gather<'a> {
    /// One part of registered memory.
    One(Segment<'a>),
    /// Several, one after the other; none sends an empty message.
    List(&'a [Segment<'a>]),
    /// Bytes that are copied.
    Inline(&'a [u8]),
}

impl<'a> From<Segment<'a>> for Gather<'a> {
    #[inline]
    fn from(segment: Segment<'a>) -> Self {
        Self::One(segment)
    }
}

impl<'a> From<&'a [Segment<'a>]> for Gather<'a> {
    #[inline]
    fn from(list: &'a [Segment<'a>]) -> Self {
        Self::List(list)
    }
}

impl<'a, const N: usize> From<&'a [Segment<'a>; N]> for Gather<'a> {
    #[inline]
    fn from(list: &'a [Segment<'a>; N]) -> Self {
        Self::List(list)
    }
}

impl<'a> From<Inline<'a>> for Gather<'a> {
    #[inline]
    fn from(Inline(bytes): Inline<'a>) -> Self {
        Self::Inline(bytes)
    }
}

/// Where what arrives is put: one segment or several, of regions with `LOCAL_WRITE`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Scatter<'a> {
    /// One part of registered memory.
    One(Segment<'a>),
    /// Several, filled one after the other.
    List(&'a [Segment<'a>]),
}

impl<'a> From<Segment<'a>> for Scatter<'a> {
    #[inline]
    fn from(segment: Segment<'a>) -> Self {
        Self::One(segment)
    }
}

impl<'a> From<&'a [Segment<'a>]> for Scatter<'a> {
    #[inline]
    fn from(list: &'a [Segment<'a>]) -> Self {
        Self::List(list)
    }
}

impl<'a, const N: usize> From<&'a [Segment<'a>; N]> for Scatter<'a> {
    #[inline]
    fn from(list: &'a [Segment<'a>; N]) -> Self {
        Self::List(list)
    }
}

impl<'a> From<Scatter<'a>> for Gather<'a> {
    #[inline]
    fn from(scatter: Scatter<'a>) -> Self {
        match scatter {
            Scatter::One(segment) => Self::One(segment),
            Scatter::List(list) => Self::List(list),
        }
    }
}

/// Where the segments of a request are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Bytes to copy, told by the request's own segment.
    Inline,
    /// In the request itself. Each queue has room for one: `check_segments` refuses to make another.
    One,
    /// In the caller's list, which `sg_list` points to.
    List,
    /// There are none: the request moves no memory of this side.
    Nothing,
    /// The request must not be posted.
    Refused,
}

/// Shape, operation, and for datagrams the context of the address handle, in one number, so that posting a common
/// request takes one comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind(u64);

impl Kind {
    /// A write of one segment.
    pub(crate) const WRITE: Self = Self::new(Shape::One, rdma_sys::IBV_WR_RDMA_WRITE);
    /// A write with immediate of one segment.
    pub(crate) const WRITE_WITH_IMM: Self =
        Self::new(Shape::One, rdma_sys::IBV_WR_RDMA_WRITE_WITH_IMM);
    /// A write of inline bytes.
    pub(crate) const WRITE_INLINE: Self = Self::new(Shape::Inline, rdma_sys::IBV_WR_RDMA_WRITE);
    /// A message of one segment.
    pub(crate) const SEND: Self = Self::new(Shape::One, rdma_sys::IBV_WR_SEND);
    /// A message of inline bytes.
    pub(crate) const SEND_INLINE: Self = Self::new(Shape::Inline, rdma_sys::IBV_WR_SEND);
    /// A message with immediate of one segment.
    pub(crate) const SEND_WITH_IMM: Self = Self::new(Shape::One, rdma_sys::IBV_WR_SEND_WITH_IMM);

    const fn new(shape: Shape, opcode: u32) -> Self {
        Self((shape as u64) << 8 | (opcode & 0xff) as u64)
    }

    /// The same to an address handle of this context.
    #[inline(always)]
    pub(crate) fn on(self, context: ContextTag) -> Self {
        Self(self.0 | u64::from(context.0) << 32)
    }
}

/// Why a request must not be posted, kept in the opcode of one that is refused.
const TOO_LONG: u32 = u32::MAX;
const TOO_MANY: u32 = u32::MAX - 1;
const NO_LOCAL_WORD: u32 = u32::MAX - 2;
const NO_REMOTE_WORD: u32 = u32::MAX - 3;

/// What a request reaches at the peer.
const REMOTE_SEGMENT: &str = "the remote segment";

/// How many bytes an atomic works on, at a multiple of as many.
const WORD: u64 = 8;

/// A request to a send queue. Twenty words on the stack; making one allocates nothing.
///
/// The type says for which transport it is, and each constructor exists only where the transport has the
/// operation. By default a request is not signaled: it reports only if it fails.
///
/// # Examples
///
/// ```
/// use ibverbs::{PostError, QueuePair, Rc, RemoteSegment, Segment, SendWr};
///
/// /// Writes, then says so: one doorbell, one completion.
/// fn publish(
///     pair: &QueuePair<'_, Rc>,
///     bytes: Segment<'_>,
///     place: &RemoteSegment,
///     word: Segment<'_>,
/// ) -> Result<(), PostError> {
///     let write = SendWr::write(bytes, place);
///     let tell = SendWr::send(word).id(1).signaled();
///     pair.post_send(&mut [write, tell])
/// }
/// ```
#[repr(C)]
pub struct SendWr<'a, T> {
    /// `next` is written when posting, and `sg_list` unless the shape is `List`.
    pub(crate) raw: rdma_sys::ibv_send_wr,
    /// The only segment, unless the shape is `List`.
    pub(crate) own: rdma_sys::ibv_sge,
    pub(crate) shape: Shape,
    pub(crate) kind: Kind,
    memory: PhantomData<&'a ()>,
    transport: PhantomData<T>,
}

impl<'a, T: Transport> SendWr<'a, T> {
    #[inline]
    pub(crate) fn new(opcode: u32, gather: Gather<'a>) -> Self {
        let mut raw = rdma_sys::ibv_send_wr { opcode, num_sge: 1, ..Default::default() };
        let (own, shape) = match gather {
            Gather::One(segment) => (segment.to_raw(), Shape::One),
            Gather::List(list) => {
                raw.sg_list = list.as_ptr().cast::<rdma_sys::ibv_sge>().cast_mut();
                raw.num_sge = i32::try_from(list.len()).unwrap_or(i32::MAX);
                (rdma_sys::ibv_sge::default(), Shape::List)
            }
            Gather::Inline(bytes) => {
                raw.send_flags = rdma_sys::IBV_SEND_INLINE;
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let addr = bytes.as_ptr().expose_provenance() as u64;
                (rdma_sys::ibv_sge { addr, length, lkey: 0 }, Shape::Inline)
            }
        };
        let kind = Kind::new(shape, opcode);
        let wr = Self { raw, own, shape, kind, memory: PhantomData, transport: PhantomData };
        if wr.raw.num_sge == i32::MAX { wr.refuse(TOO_MANY, 0, 0) } else { wr }
    }

    /// A request that moves no memory of this side.
    #[inline]
    pub(crate) fn without_memory(opcode: u32) -> Self {
        let mut wr = Self::new(opcode, Gather::List(&[]));
        (wr.shape, wr.kind) = (Shape::Nothing, Kind::new(Shape::Nothing, opcode));
        wr
    }

    /// Names the peer's memory; refuses the request if it moves more bytes than that has.
    #[inline]
    pub(crate) fn toward(mut self, remote: RemoteSegment, gather: Gather<'a>) -> Self {
        let length = match gather {
            Gather::One(segment) => u64::from(segment.len()),
            Gather::List(list) => list.iter().map(|segment| u64::from(segment.len())).sum(),
            Gather::Inline(bytes) => bytes.len() as u64,
        };
        if length > remote.length {
            return self.refuse(TOO_LONG, length, remote.length);
        }
        self.raw.wr.rdma.remote_addr = remote.address;
        self.raw.wr.rdma.rkey = remote.key.0;
        self
    }

    #[inline]
    fn is_refused(&self) -> bool {
        self.shape == Shape::Refused
    }

    /// The same request, which will be refused when it is posted, with the two numbers that say why.
    #[cold]
    fn refuse(mut self, reason: u32, asked: u64, room: u64) -> Self {
        self.shape = Shape::Refused;
        self.kind = Kind::new(Shape::Refused, 0);
        self.raw.opcode = reason;
        self.raw.wr.atomic.compare_add = asked;
        self.raw.wr.atomic.swap = room;
        self
    }

    /// Refuses an atomic on what [is no word](RemoteSegment::is_a_word).
    #[cold]
    fn refuse_word(self, word: RemoteSegment) -> Self {
        self.refuse(NO_REMOTE_WORD, word.address, word.length)
    }

    /// The number that its completion carries.
    #[must_use]
    #[inline]
    #[doc(alias = "wr_id")]
    pub fn id(mut self, id: u64) -> Self {
        self.raw.wr_id = id;
        self
    }

    /// Reports its success too. A send queue whose requests are never signaled fills up: signal at least
    /// one in every round of it.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_SEND_SIGNALED")]
    pub fn signaled(self) -> Self {
        self.flag(rdma_sys::IBV_SEND_SIGNALED)
    }

    #[inline]
    pub(crate) fn flag(mut self, flag: u32) -> Self {
        self.raw.send_flags |= flag;
        self
    }

    #[inline]
    fn immediate(mut self, immediate: u32) -> Self {
        self.raw.__bindgen_anon_1.imm_data = immediate.to_be();
        self
    }
}

impl<T: Transport> SendWr<'_, T> {
    /// Wakes a peer that waits for solicited completions only.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub fn solicited(self) -> Self
    where
        T: Solicits,
    {
        self.flag(rdma_sys::IBV_SEND_SOLICITED)
    }

    /// Starts only after the reads and atomics before it have finished.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_SEND_FENCE")]
    pub fn fenced(self) -> Self
    where
        T: Solicits,
    {
        self.flag(rdma_sys::IBV_SEND_FENCE)
    }
}

impl<'a, T> SendWr<'a, T> {
    /// Puts `segment` in the place of `stand_in`, if that is what the request is about.
    pub(crate) fn replace(mut self, stand_in: Segment<'a>, segment: Segment<'a>) -> Self {
        let (own, stand_in) = (self.own, stand_in.to_raw());
        let same =
            (own.addr, own.length, own.lkey) == (stand_in.addr, stand_in.length, stand_in.lkey);
        if self.shape == Shape::One && same {
            self.own = segment.to_raw();
        }
        self
    }

    /// Why this request must not be posted; call it only for one that is refused.
    #[cold]
    pub(crate) fn refusal(&self) -> Error {
        let (asked, room) = crate::queue_pair::post::atomic_operands(&self.raw);
        match self.raw.opcode {
            TOO_MANY => Error::Invalid {
                what: "more segments than any request can have".into(),
                remedy: "split the request",
            },
            NO_LOCAL_WORD => Error::Invalid {
                what: format!("an atomic brings {WORD} bytes, and its local segment has {asked}").into(),
                remedy: "name a local segment of 8 bytes",
            },
            NO_REMOTE_WORD if room < WORD => Error::DoesNotFit {
                bytes: WORD,
                room,
                place: REMOTE_SEGMENT,
                remedy: "an atomic works on a whole word: name 8 bytes of the peer's memory",
            },
            NO_REMOTE_WORD => Error::Invalid {
                what: format!(
                    "an atomic works at multiples of {WORD}, and its remote segment starts at address {asked:#x}"
                )
                .into(),
                remedy: "name another offset of the peer's memory",
            },
            _ => Error::DoesNotFit {
                bytes: asked,
                room,
                place: REMOTE_SEGMENT,
                remedy: "shorten the local segment, or name a longer part of the peer's memory",
            },
        }
    }
}

impl<T> fmt::Debug for SendWr<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendWr")
            .field("id", &self.raw.wr_id)
            .field("opcode", &self.raw.opcode)
            .field("segments", &self.raw.num_sge)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

/// A request to a receive queue: where the next message goes.
#[repr(C)]
pub struct RecvWr<'a> {
    /// `next` is written when posting, and `sg_list` unless the shape is `List`.
    pub(crate) raw: rdma_sys::ibv_recv_wr,
    pub(crate) own: rdma_sys::ibv_sge,
    pub(crate) shape: Shape,
    memory: PhantomData<&'a ()>,
}

impl<'a> RecvWr<'a> {
    /// A receive without memory: a credit for one write with immediate, or for an empty message.
    #[must_use]
    #[inline]
    pub fn new(id: u64) -> Self {
        Self::into_segments(id, Scatter::List(&[]))
    }

    /// A receive into one segment, or into several one after the other.
    #[must_use]
    #[inline]
    pub fn to(id: u64, memory: impl Into<Scatter<'a>>) -> Self {
        Self::into_segments(id, memory.into())
    }

    #[inline]
    fn into_segments(id: u64, memory: Scatter<'a>) -> Self {
        let next = ptr::null_mut();
        let (own, shape, sg_list, num_sge) = match memory {
            Scatter::One(segment) => (segment.to_raw(), Shape::One, ptr::null_mut(), 1),
            Scatter::List(list) => (
                rdma_sys::ibv_sge::default(),
                Shape::List,
                list.as_ptr().cast::<rdma_sys::ibv_sge>().cast_mut(),
                i32::try_from(list.len()).unwrap_or(i32::MAX),
            ),
        };
        let raw = rdma_sys::ibv_recv_wr { wr_id: id, next, sg_list, num_sge };
        Self { raw, own, shape, memory: PhantomData }
    }
}

impl fmt::Debug for RecvWr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvWr")
            .field("id", &self.raw.wr_id)
            .field("segments", &self.raw.num_sge)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rc;

    #[test]
    fn each_setter_sets_its_own_flag() {
        let send = || SendWr::<Rc>::send(&[][..]);
        for (request, flags) in [
            (send(), 0),
            (send().signaled(), rdma_sys::IBV_SEND_SIGNALED),
            (send().solicited(), rdma_sys::IBV_SEND_SOLICITED),
            (send().fenced(), rdma_sys::IBV_SEND_FENCE),
            (SendWr::send(Inline(&[])), rdma_sys::IBV_SEND_INLINE),
            (
                SendWr::send(Inline(&[])).fenced().signaled(),
                rdma_sys::IBV_SEND_INLINE | rdma_sys::IBV_SEND_FENCE | rdma_sys::IBV_SEND_SIGNALED,
            ),
        ] {
            assert_eq!(request.raw.send_flags, flags, "{request:?}");
        }
    }
}
