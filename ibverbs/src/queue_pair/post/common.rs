//! The most common requests of each transport, of which runs are filled in place.

use std::slice;

use rdma_sys::ibv_send_wr;

use super::extended::{Extended, MESSAGES, WRITES};
use crate::{Operations, SendWr, work_request::Kind};

/// Common requests of a transport, which are told by one comparison and filled in place.
///
/// Only for a queue pair of that transport that was made for [`OPERATIONS`](Self::OPERATIONS), so that its table has
/// their entries, and for requests of these kinds on its context, so that it has their address handles.
pub(super) trait Common {
    /// One piece of inline bytes.
    const INLINE: Kind;
    /// One segment.
    const ONE: Kind;
    /// One segment, with an immediate.
    const WITH_IMM: Kind;
    /// What a queue pair has to be made for.
    const OPERATIONS: Operations;

    /// Begins a request without an immediate.
    fn begin(poster: Extended, wr: &ibv_send_wr);

    /// Begins a request with an immediate.
    fn begin_with_imm(poster: Extended, wr: &ibv_send_wr);
}

/// Writes, which connected transports have.
pub(super) enum Writes {}

impl Common for Writes {
    const INLINE: Kind = Kind::WRITE_INLINE;
    const ONE: Kind = Kind::WRITE;
    const WITH_IMM: Kind = Kind::WRITE_WITH_IMM;
    const OPERATIONS: Operations = WRITES;

    #[inline(always)]
    fn begin(poster: Extended, wr: &ibv_send_wr) {
        poster.write(wr);
    }

    #[inline(always)]
    fn begin_with_imm(poster: Extended, wr: &ibv_send_wr) {
        poster.write_with_imm(wr);
    }
}

/// Messages, which connected transports have.
pub(super) enum Messages {}

impl Common for Messages {
    const INLINE: Kind = Kind::SEND_INLINE;
    const ONE: Kind = Kind::SEND;
    const WITH_IMM: Kind = Kind::SEND_WITH_IMM;
    const OPERATIONS: Operations = MESSAGES;

    #[inline(always)]
    fn begin(poster: Extended, wr: &ibv_send_wr) {
        poster.send(wr);
    }

    #[inline(always)]
    fn begin_with_imm(poster: Extended, wr: &ibv_send_wr) {
        poster.send_with_imm(wr);
    }
}

/// Messages to a destination, which datagram transports have.
pub(super) enum Datagrams {}

impl Common for Datagrams {
    const INLINE: Kind = Kind::SEND_INLINE;
    const ONE: Kind = Kind::SEND;
    const WITH_IMM: Kind = Kind::SEND_WITH_IMM;
    const OPERATIONS: Operations = MESSAGES;

    #[inline(always)]
    fn begin(poster: Extended, wr: &ibv_send_wr) {
        poster.send_to(wr);
    }

    #[inline(always)]
    fn begin_with_imm(poster: Extended, wr: &ibv_send_wr) {
        poster.send_with_imm_to(wr);
    }
}

/// Writes to memory behind a destination, which datagram transports of vendors have.
pub(super) enum DistantWrites {}

impl Common for DistantWrites {
    const INLINE: Kind = Kind::WRITE_INLINE;
    const ONE: Kind = Kind::WRITE;
    const WITH_IMM: Kind = Kind::WRITE_WITH_IMM;
    const OPERATIONS: Operations = WRITES;

    #[inline(always)]
    fn begin(poster: Extended, wr: &ibv_send_wr) {
        poster.write_to(wr);
    }

    #[inline(always)]
    fn begin_with_imm(poster: Extended, wr: &ibv_send_wr) {
        poster.write_with_imm_to(wr);
    }
}

/// Fills requests with one segment.
#[inline(always)]
pub(super) fn one<C: Common, T>(poster: Extended) -> impl Fn(&SendWr<'_, T>) -> bool {
    move |wr| {
        C::begin(poster, &wr.raw);
        poster.segment(&wr.own);
        true
    }
}

/// Fills requests with one segment and an immediate.
#[inline(always)]
pub(super) fn one_with_imm<C: Common, T>(poster: Extended) -> impl Fn(&SendWr<'_, T>) -> bool {
    move |wr| {
        C::begin_with_imm(poster, &wr.raw);
        poster.segment(&wr.own);
        true
    }
}

/// Fills requests with inline bytes, of which there may be `most`.
#[inline(always)]
pub(super) fn inline<C: Common, T>(poster: Extended, most: u32) -> impl Fn(&SendWr<'_, T>) -> bool {
    move |wr| {
        let fits = wr.own.length <= most;
        if fits {
            C::begin(poster, &wr.raw);
            poster.inline(&wr.own);
        }
        fits
    }
}

/// Fills a request and those after it that are of the same kind; returns the first that is not, or as an
/// error the one that `fill` refused.
#[inline(always)]
pub(super) fn fill_run<'b, 'a, T>(
    first: &'b SendWr<'a, T>,
    rest: &mut slice::Iter<'b, SendWr<'a, T>>,
    fill: impl Fn(&SendWr<'a, T>) -> bool,
) -> Result<Option<&'b SendWr<'a, T>>, &'b SendWr<'a, T>> {
    if !fill(first) {
        return Err(first);
    }
    let kind = first.kind;
    for wr in rest {
        if wr.kind != kind {
            return Ok(Some(wr));
        }
        if !fill(wr) {
            return Err(wr);
        }
    }
    Ok(None)
}
