//! Posting: one API over `ibv_wr_*` and `ibv_post_send`.
//!
//! Nothing here allocates, takes a lock of ours, or runs the caller's code while the provider's lock is held: a batch
//! is plain data, and starting, filling and completing it is one call. An empty batch is no call at all.

mod common;
mod error;
mod extended;
mod vendor;

use std::{borrow::Cow, ffi::c_int, ops::RangeInclusive, ptr, ptr::NonNull};

use rdma_sys::{ibv_qp_ex, ibv_send_wr};

pub use self::error::PostError;
pub(super) use self::extended::Path;
use self::{
    common::{
        Common, Datagrams, DistantWrites, Messages, Writes, fill_run, inline, one, one_with_imm,
    },
    error::refused_whole,
    extended::{Extended, context_of_address, extended_only, operation},
};
pub(crate) use self::{error::refused, extended::atomic_operands};
use super::{Capabilities, Handle, PostsReceives, QueuePair, state::PostsSends};
use crate::{
    Addressing, Error, Operations, Receiving, RecvWr, SendWr, Transport, Verb,
    work_request::{Kind, Shape},
};

impl<T: Transport, S> QueuePair<'_, T, S> {
    /// Posts requests to the send queue, in order, behind one doorbell.
    ///
    /// Does not wait, does not allocate, and enters the kernel only where the provider does (software
    /// devices). The batch can be used again afterwards.
    ///
    /// # Errors
    ///
    /// [`PostError`] with the first bad request. A request that cannot be right (too many segments or inline bytes
    /// for this queue pair, more bytes than the remote part has, an address handle of another context) is refused before
    /// any is posted. `ENOMEM` means that
    /// the queue is full: poll completions first. See `ibv_post_send(3)`, `ibv_wr_post(3)`.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_wr_complete")]
    #[inline(always)]
    pub fn post_send(&self, batch: &mut [SendWr<'_, T>]) -> Result<(), PostError>
    where
        S: PostsSends,
    {
        match self.handle.path {
            Path::ExtendedInPlace(extended) if T::ADDRESSING == Addressing::Peer => {
                self.handle.post_common::<Writes, Messages, T>(extended, batch)
            }
            Path::ExtendedInPlace(extended)
                if T::ADDRESSING == Addressing::Datagram
                    && T::OPERATIONS.contains(Operations::WRITE) =>
            {
                self.handle.post_common::<DistantWrites, Datagrams, T>(extended, batch)
            }
            Path::ExtendedInPlace(extended) if T::ADDRESSING == Addressing::Datagram => {
                self.handle.post_common::<Datagrams, Datagrams, T>(extended, batch)
            }
            _ => self.handle.post_otherwise(batch),
        }
    }

    /// Posts requests to the receive queue, in order. Costs as [`post_send`](QueuePair::post_send).
    ///
    /// # Errors
    ///
    /// [`PostError`] with the first bad request. `ENOMEM` means that the queue is full. A queue pair with a
    /// [`SharedReceiveQueue`](crate::SharedReceiveQueue) refuses all with [`Error::Invalid`]. See `ibv_post_recv(3)`.
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn post_receive(&self, batch: &mut [RecvWr<'_>]) -> Result<(), PostError>
    where
        T: Receiving,
        S: PostsReceives,
    {
        if self.handle.shared.is_some() {
            return Err(PostError::alone(Error::receives_are_shared()));
        }
        let Capabilities { receive_segments, least_receive_segments, .. } =
            self.handle.capabilities;
        let first = link_receives(batch, least_receive_segments..=receive_segments)?;
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: `raw` is live; the list ends with a null, lives in `batch`, and names registered memory.
        let returned = unsafe { rdma_sys::ibv_post_recv(self.as_raw(), first, &raw mut bad) };
        if returned == 0 {
            return Ok(());
        }
        let stride = size_of::<RecvWr<'_>>();
        Err(refused(Verb::new("ibv_post_recv"), returned, bad.addr(), first.addr(), stride))
    }
}

/// Links a batch of receives; returns the first, null if there is none.
#[inline(always)]
pub(crate) fn link_receives(
    batch: &mut [RecvWr<'_>],
    segments: RangeInclusive<u32>,
) -> Result<*mut rdma_sys::ibv_recv_wr, PostError> {
    let mut next = ptr::null_mut();
    let start = batch.as_ptr().addr();
    for wr in batch.iter_mut().rev() {
        if wr.shape == Shape::One {
            wr.raw.sg_list = &raw mut wr.own;
        } else if !segments.contains(&wr.raw.num_sge.cast_unsigned()) {
            let index = (ptr::from_ref(wr).addr() - start) / size_of_val(wr);
            let error = wrong_segments(wr.raw.num_sge, segments);
            return Err(PostError::before(index, None, error));
        }
        wr.raw.next = next;
        next = &raw mut wr.raw;
    }
    Ok(next)
}

impl Handle<'_> {
    /// The kind of a request of this queue pair: for datagrams, one to an address handle of its context.
    #[inline(always)]
    fn own<T: Transport>(&self, kind: Kind) -> Kind {
        if T::ADDRESSING == Addressing::Datagram { kind.on(self.context) } else { kind }
    }

    /// Whether a request names an address handle of another context, whose provider may be another one.
    #[inline(always)]
    fn is_foreign<T: Transport>(&self, wr: &SendWr<'_, T>) -> bool {
        T::ADDRESSING == Addressing::Datagram
            && wr.shape != Shape::Refused
            && context_of_address(&wr.raw) != self.domain.context().as_raw()
    }

    #[inline(never)]
    fn post_classic<T: Transport>(&self, batch: &mut [SendWr<'_, T>]) -> Result<(), PostError> {
        let mut next: *mut ibv_send_wr = ptr::null_mut();
        for (index, wr) in batch.iter_mut().enumerate().rev() {
            if self.is_foreign(wr) {
                return Err(PostError::before(index, None, FOREIGN_ADDRESS));
            }
            match wr.shape {
                Shape::One => wr.raw.sg_list = &raw mut wr.own,
                Shape::Inline if wr.own.length <= self.capabilities.inline => {
                    wr.raw.sg_list = &raw mut wr.own;
                }
                Shape::List
                    if wr.raw.num_sge.cast_unsigned() <= self.capabilities.send_segments => {}
                Shape::Nothing if !extended_only(&wr.raw) => {}
                _ => return Err(PostError::before(index, None, self.refusal(wr))),
            }
            wr.raw.next = next;
            next = &raw mut wr.raw;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: `raw` is live; the list ends with a null and lives in `batch`. It names registered memory,
        // which its region deregisters before freeing, and inline bytes, which are copied in this call.
        let returned = unsafe { rdma_sys::ibv_post_send(self.raw.as_ptr(), next, &raw mut bad) };
        if returned == 0 {
            return Ok(());
        }
        let stride = size_of::<SendWr<'_, T>>();
        Err(refused(Verb::new("ibv_post_send"), returned, bad.addr(), next.addr(), stride))
    }

    /// Every way of posting but the most common one.
    #[inline(never)]
    fn post_otherwise<T: Transport>(&self, batch: &mut [SendWr<'_, T>]) -> Result<(), PostError> {
        match self.path {
            Path::MessagesInPlace(extended) => self.post_messages(extended, batch),
            Path::Extended(extended) | Path::ExtendedInPlace(extended) => {
                self.post_extended(extended, batch)
            }
            Path::ExtendedButLists(extended) => self.post_extended_but_lists(extended, batch),
            Path::Classic => self.post_classic(batch),
        }
    }

    /// The loop for queue pairs that have the operations that `C` names, and may have those of `D`. Runs of both are
    /// filled in place, those of the former at the cost of one comparison each; each other request is one call away.
    #[inline(always)]
    fn post_common<C: Common, D: Common, T: Transport>(
        &self,
        extended: NonNull<ibv_qp_ex>,
        batch: &mut [SendWr<'_, T>],
    ) -> Result<(), PostError> {
        let mut rest = batch.iter();
        let Some(mut wr) = rest.next() else {
            return Ok(());
        };
        let poster = Extended(extended.as_ptr());
        poster.start();
        loop {
            let next = if wr.kind == self.own::<T>(C::INLINE) {
                fill_run(wr, &mut rest, inline::<C, T>(poster, self.capabilities.inline))
            } else if wr.kind == self.own::<T>(C::ONE) {
                fill_run(wr, &mut rest, one::<C, T>(poster))
            } else if wr.kind == self.own::<T>(C::WITH_IMM) {
                fill_run(wr, &mut rest, one_with_imm::<C, T>(poster))
            } else if rest.len() == 0 {
                if self.fill_other::<D, T>(poster, wr) { Ok(None) } else { Err(wr) }
            } else {
                match self.fill_others::<D, T>(poster, wr, rest.as_slice()) {
                    0 => Err(wr),
                    count => Ok(rest.nth(count - 1)),
                }
            };
            match next {
                Ok(Some(next)) => wr = next,
                Ok(None) => break,
                Err(wr) => return Err(self.give_up(poster, batch, wr, rest.len())),
            }
        }
        match poster.complete() {
            0 => Ok(()),
            returned => Err(refused_whole(returned)),
        }
    }

    /// Fills a request that `C` names, or another, alone; `false` if it must not be posted.
    #[inline(always)]
    fn fill_other<C: Common, T: Transport>(&self, poster: Extended, wr: &SendWr<'_, T>) -> bool {
        if !self.operations.contains(C::OPERATIONS) {
            self.fill(poster, wr)
        } else if wr.kind == self.own::<T>(C::ONE) {
            one::<C, T>(poster)(wr)
        } else if wr.kind == self.own::<T>(C::WITH_IMM) {
            one_with_imm::<C, T>(poster)(wr)
        } else {
            self.fill(poster, wr)
        }
    }

    /// Fills a run of the requests that `C` names, or one other request; returns how many, 0 if the first must not
    /// be posted.
    #[inline(always)]
    fn fill_others<C: Common, T: Transport>(
        &self,
        poster: Extended,
        wr: &SendWr<'_, T>,
        behind: &[SendWr<'_, T>],
    ) -> usize {
        let mut rest = behind.iter();
        let end = if !self.operations.contains(C::OPERATIONS) {
            return self.fill(poster, wr).into();
        } else if wr.kind == self.own::<T>(C::ONE) {
            fill_run(wr, &mut rest, one::<C, T>(poster))
        } else if wr.kind == self.own::<T>(C::WITH_IMM) {
            fill_run(wr, &mut rest, one_with_imm::<C, T>(poster))
        } else if wr.kind == self.own::<T>(C::INLINE) {
            fill_run(wr, &mut rest, inline::<C, T>(poster, self.capabilities.inline))
        } else {
            return self.fill(poster, wr).into();
        };
        match end {
            Ok(None) => behind.len() + 1,
            Ok(Some(next)) | Err(next) => place_behind(wr, next),
        }
    }

    /// For connected queue pairs that have messages and no writes.
    #[inline(never)]
    fn post_messages<T: Transport>(
        &self,
        extended: NonNull<ibv_qp_ex>,
        batch: &mut [SendWr<'_, T>],
    ) -> Result<(), PostError> {
        self.post_common::<Messages, Messages, T>(extended, batch)
    }

    #[inline(never)]
    fn post_extended<T: Transport>(
        &self,
        extended: NonNull<ibv_qp_ex>,
        batch: &mut [SendWr<'_, T>],
    ) -> Result<(), PostError> {
        if batch.is_empty() {
            return Ok(());
        }
        let poster = Extended(extended.as_ptr());
        poster.start();
        let mut rest = batch.iter();
        while let Some(wr) = rest.next() {
            if !self.fill(poster, wr) {
                return Err(self.give_up(poster, batch, wr, rest.len()));
            }
        }
        match poster.complete() {
            0 => Ok(()),
            returned => Err(refused_whole(returned)),
        }
    }

    /// For a provider that miscounts lists of segments when they come through `ibv_wr_*`, but not through
    /// `ibv_post_send`, which takes requests of the same queue pair.
    #[inline(never)]
    fn post_extended_but_lists<T: Transport>(
        &self,
        extended: NonNull<ibv_qp_ex>,
        batch: &mut [SendWr<'_, T>],
    ) -> Result<(), PostError> {
        if batch.iter().any(|wr| wr.shape == Shape::List && wr.raw.num_sge > 1) {
            self.post_classic(batch)
        } else {
            self.post_extended(extended, batch)
        }
    }

    /// Hands any request to the provider; `false` if it must not be posted.
    #[inline(never)]
    fn fill<T: Transport>(&self, poster: Extended, wr: &SendWr<'_, T>) -> bool {
        if self.is_foreign(wr) {
            return false;
        }
        match wr.shape {
            Shape::One if poster.operation(wr, self.operations) => poster.segment(&wr.own),
            Shape::Inline
                if wr.own.length <= self.capabilities.inline
                    && poster.operation(wr, self.operations) =>
            {
                poster.inline(&wr.own);
            }
            Shape::List
                if wr.raw.num_sge.cast_unsigned() <= self.capabilities.send_segments
                    && poster.operation(wr, self.operations) =>
            {
                poster.list(&wr.raw);
            }
            Shape::Nothing => return poster.operation(wr, self.operations),
            _ => return false,
        }
        true
    }

    /// Drops a batch that was begun, because of a request with `behind` more after it.
    #[cold]
    #[inline(never)]
    fn give_up<T: Transport>(
        &self,
        poster: Extended,
        batch: &[SendWr<'_, T>],
        wr: &SendWr<'_, T>,
        behind: usize,
    ) -> PostError {
        poster.abort();
        let index = batch.first().map_or(0, |first| place_behind(first, wr));
        PostError::before(index, Some(index + 1 + behind), self.refusal(wr))
    }

    /// Why a request is over what this queue pair was made for, or was refused when it was made.
    #[cold]
    fn refusal<T: Transport>(&self, wr: &SendWr<'_, T>) -> Error {
        let (inline, segments) = (self.capabilities.inline, self.capabilities.send_segments);
        match wr.shape {
            Shape::Refused => wr.refusal(),
            Shape::Inline if wr.own.length > inline => Error::DoesNotFit {
                bytes: wr.own.length.into(),
                room: inline.into(),
                place: "inline data that the queue pair was made for",
                remedy: "make it with a larger `QueuePairBuilder::max_inline`, or name registered memory",
            },
            Shape::List if wr.raw.num_sge.cast_unsigned() > segments => {
                wrong_number_of_segments(wr.raw.num_sge, 0..=segments, MORE_SEGMENTS)
            }
            _ if self.is_foreign(wr) => FOREIGN_ADDRESS,
            _ if matches!(self.path, Path::Classic) => Error::Invalid {
                what: format!("{} cannot go through `ibv_post_send`", operation(&wr.raw)).into(),
                remedy: "name it in `QueuePairBuilder::operations`, and make the queue pair with `Posting::Extended`",
            },
            _ => Error::Invalid {
                what: format!("the queue pair was not made for {}", operation(&wr.raw)).into(),
                remedy: "name it in `QueuePairBuilder::operations`",
            },
        }
    }
}

/// How many places a request of a batch is behind another.
#[inline]
fn place_behind<T>(first: &SendWr<'_, T>, wr: &SendWr<'_, T>) -> usize {
    (ptr::from_ref(wr).addr() - ptr::from_ref(first).addr()) / size_of_val(wr)
}

const FOREIGN_ADDRESS: Error = Error::Invalid {
    what: Cow::Borrowed("an address handle and the queue pair are of different contexts"),
    remedy: "make both from one `Context`",
};

/// What to do about more segments than a queue pair was made for.
pub(super) const MORE_SEGMENTS: &str =
    "make the queue pair with a larger `QueuePairBuilder::max_send_segments`";

#[cold]
fn wrong_segments(asked: c_int, segments: RangeInclusive<u32>) -> Error {
    if asked == 0 {
        return Error::Invalid {
            what: "a receive without memory, which this device would drop".into(),
            remedy: "name a byte of registered memory; a write with immediate does not touch it",
        };
    }
    let remedy = "split the receive, or make its queue with room for more segments";
    wrong_number_of_segments(asked, segments, remedy)
}

#[cold]
fn wrong_number_of_segments(
    asked: c_int,
    segments: RangeInclusive<u32>,
    remedy: &'static str,
) -> Error {
    Error::OutOfRange {
        what: "the number of segments",
        asked: u64::from(asked.cast_unsigned()),
        minimum: (*segments.start()).into(),
        maximum: (*segments.end()).into(),
        remedy: Some(remedy),
    }
}
