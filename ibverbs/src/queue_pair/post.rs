//! Posting: one API over `ibv_wr_*` and `ibv_post_send`.
//!
//! Nothing here allocates, takes a lock of ours, or runs the caller's code while the provider's lock is held: a batch
//! is plain data, and starting, filling and completing it is one call. An empty batch is no call at all.

use std::{ffi::c_int, fmt, io, ptr, ptr::NonNull, slice};

use rdma_sys::{ibv_qp_ex, ibv_send_wr};

use super::{Handle, PostsReceives, QueuePair};
use crate::{
    Error, Operations, RecvWr, SendWr, Transport, Verb,
    work_request::{Kind, Shape},
};

/// A batch that was not posted as a whole. The requests are still the caller's, as they were.
///
/// One pointer, so that the way of success carries no room for it.
#[derive(Debug)]
pub struct PostError(Box<Failure>);

#[derive(Debug)]
struct Failure {
    posted: usize,
    refused: Option<usize>,
    source: Error,
}

impl PostError {
    #[cold]
    fn before(index: usize, source: Error) -> Self {
        Self(Box::new(Failure { posted: 0, refused: Some(index), source }))
    }

    /// How many requests, from the first on, were posted: those will complete.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.0.posted
    }

    /// The first request that was not posted; `None` where the device refuses a batch without saying which.
    #[must_use]
    pub fn refused(&self) -> Option<usize> {
        self.0.refused
    }

    /// Why.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.source
    }

    /// The errno of the refused verb, if one was called. `ENOMEM` means that the queue is full.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.0.source.errno()
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.refused {
            Some(index) => write!(f, "request {index} of the batch was refused")?,
            None => f.write_str("the batch was refused as a whole")?,
        }
        write!(f, " ({} before it were posted)", self.0.posted)
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.source)
    }
}

impl<T: Transport> QueuePair<'_, T> {
    /// Posts requests to the send queue, in order, behind one doorbell.
    ///
    /// Does not wait, does not allocate, and enters the kernel only where the provider does (software
    /// devices). The batch can be used again afterwards.
    ///
    /// # Errors
    ///
    /// [`PostError`] with the first bad request. A request that cannot be right (too many segments or inline bytes
    /// for this queue pair, more bytes than the remote part has) is refused before any is posted. `ENOMEM` means that
    /// the queue is full: poll completions first. See `ibv_post_send(3)`, `ibv_wr_post(3)`.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_wr_complete")]
    #[inline(always)]
    pub fn post_send(&self, batch: &mut [SendWr<'_, T>]) -> Result<(), PostError> {
        match self.handle.path {
            Path::ExtendedWithWrites(extended) => self.handle.post_with_writes(extended, batch),
            Path::Extended(extended) => self.handle.post_extended(extended, batch),
            Path::Classic => self.handle.post_classic(batch),
        }
    }
}

impl<T: Transport, S: PostsReceives> QueuePair<'_, T, S> {
    /// Posts requests to the receive queue, in order. Costs as [`post_send`](QueuePair::post_send).
    ///
    /// # Errors
    ///
    /// [`PostError`] with the first bad request. `ENOMEM` means that the queue is full. See `ibv_post_recv(3)`.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_receive(&self, batch: &mut [RecvWr<'_>]) -> Result<(), PostError> {
        let most = self.handle.capabilities.receive_segments;
        let first = link_receives(batch, most)?;
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
#[inline]
pub(crate) fn link_receives(
    batch: &mut [RecvWr<'_>],
    most_segments: u32,
) -> Result<*mut rdma_sys::ibv_recv_wr, PostError> {
    let mut next = ptr::null_mut();
    let start = batch.as_ptr().addr();
    for wr in batch.iter_mut().rev() {
        if wr.shape == Shape::One {
            wr.raw.sg_list = &raw mut wr.own;
        } else if wr.raw.num_sge.cast_unsigned() > most_segments {
            let index = (ptr::from_ref(wr).addr() - start) / size_of_val(wr);
            return Err(PostError::before(index, too_many_segments(wr.raw.num_sge, most_segments)));
        }
        wr.raw.next = next;
        next = &raw mut wr.raw;
    }
    Ok(next)
}

impl Handle<'_> {
    #[inline(never)]
    fn post_classic<T: Transport>(&self, batch: &mut [SendWr<'_, T>]) -> Result<(), PostError> {
        let mut next: *mut ibv_send_wr = ptr::null_mut();
        for (index, wr) in batch.iter_mut().enumerate().rev() {
            match wr.shape {
                Shape::One => wr.raw.sg_list = &raw mut wr.own,
                Shape::Inline if wr.own.length <= self.capabilities.inline => {
                    wr.raw.sg_list = &raw mut wr.own;
                }
                Shape::List
                    if wr.raw.num_sge.cast_unsigned() <= self.capabilities.send_segments => {}
                _ => return Err(PostError::before(index, self.refusal(wr))),
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

    /// The loop for queue pairs that have both kinds of write. Runs of the most common requests are filled
    /// in place, at the cost of one comparison each; all others are one call away.
    #[inline(always)]
    fn post_with_writes<T: Transport>(
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
            let next = match wr.kind {
                Kind::WRITE_INLINE => fill_run(wr, &mut rest, |wr| {
                    let fits = wr.own.length <= self.capabilities.inline;
                    if fits {
                        poster.write(&wr.raw);
                        poster.inline(&wr.own);
                    }
                    fits
                }),
                Kind::WRITE => fill_run(wr, &mut rest, |wr| {
                    poster.write(&wr.raw);
                    poster.segment(&wr.own);
                    true
                }),
                Kind::WRITE_WITH_IMM => fill_run(wr, &mut rest, |wr| {
                    poster.write_with_imm(&wr.raw);
                    poster.segment(&wr.own);
                    true
                }),
                _ if self.fill(poster, wr) => Ok(rest.next()),
                _ => Err(wr),
            };
            match next {
                Ok(Some(next)) => wr = next,
                Ok(None) => break,
                Err(wr) => return Err(self.give_up(poster, batch, wr)),
            }
        }
        match poster.complete() {
            0 => Ok(()),
            returned => Err(refused_whole(returned)),
        }
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
        for wr in batch.iter() {
            if !self.fill(poster, wr) {
                return Err(self.give_up(poster, batch, wr));
            }
        }
        match poster.complete() {
            0 => Ok(()),
            returned => Err(refused_whole(returned)),
        }
    }

    /// Hands any request to the provider; `false` if it must not be posted.
    #[inline(never)]
    fn fill<T>(&self, poster: Extended, wr: &SendWr<'_, T>) -> bool {
        match wr.shape {
            Shape::One if poster.operation(&wr.raw) => poster.segment(&wr.own),
            Shape::Inline
                if wr.own.length <= self.capabilities.inline && poster.operation(&wr.raw) =>
            {
                poster.inline(&wr.own);
            }
            Shape::List
                if wr.raw.num_sge.cast_unsigned() <= self.capabilities.send_segments
                    && poster.operation(&wr.raw) =>
            {
                poster.list(&wr.raw);
            }
            _ => return false,
        }
        true
    }

    /// Drops a batch that was begun.
    #[cold]
    #[inline(never)]
    fn give_up<T>(
        &self,
        poster: Extended,
        batch: &[SendWr<'_, T>],
        wr: &SendWr<'_, T>,
    ) -> PostError {
        poster.abort();
        let index = (ptr::from_ref(wr).addr() - batch.as_ptr().addr()) / size_of_val(wr);
        PostError::before(index, self.refusal(wr))
    }

    /// Why a request is over what this queue pair was made for, or was refused when it was made.
    #[cold]
    fn refusal<T>(&self, wr: &SendWr<'_, T>) -> Error {
        let (inline, segments) = (self.capabilities.inline, self.capabilities.send_segments);
        match wr.shape {
            Shape::Refused => wr.refusal(),
            Shape::Inline if wr.own.length > inline => Error::OutOfRange {
                what: "inline bytes",
                asked: wr.own.length.into(),
                minimum: 0,
                maximum: inline.into(),
            },
            Shape::List if wr.raw.num_sge.cast_unsigned() > segments => {
                too_many_segments(wr.raw.num_sge, segments)
            }
            _ => Error::Invalid {
                what: "the queue pair was not made for this operation",
                remedy: "name it in `QueuePairBuilder::operations`",
            },
        }
    }
}

/// Fills a request and those after it that are of the same kind; returns the first that is not, or as an
/// error the one that `fill` refused.
#[inline(always)]
fn fill_run<'b, 'a, T>(
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

/// The provider's function for an operation; returns `false` from the caller if there is none.
macro_rules! entry {
    ($qp:ident.$operation:ident) => {
        // SAFETY: the queue pair is live; this copies an entry of its table.
        match unsafe { (*$qp).$operation } {
            Some(function) => function,
            None => return false,
        }
    };
}

/// The `ibv_wr_*` functions of a queue pair, each called with its lock held.
#[derive(Clone, Copy)]
struct Extended(*mut ibv_qp_ex);

impl Extended {
    #[inline]
    fn start(self) {
        // SAFETY: every extended queue pair has this entry; `has_all` saw it.
        unsafe { rdma_sys::ibv_wr_start(self.0) };
    }

    #[inline]
    fn complete(self) -> c_int {
        // SAFETY: as for `start`, which came before.
        unsafe { rdma_sys::ibv_wr_complete(self.0) }
    }

    #[cold]
    fn abort(self) {
        // SAFETY: as for `start`, which came before.
        unsafe { rdma_sys::ibv_wr_abort(self.0) };
    }

    /// Gives a request its number and flags.
    #[inline(always)]
    fn begin(self, wr: &ibv_send_wr) {
        let qp = self.0;
        // SAFETY: the queue pair is live, and its lock, which `start` took, is held.
        unsafe { (*qp).wr_id = wr.wr_id };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = wr.send_flags };
    }

    /// Only for a queue pair whose path is `ExtendedWithWrites`.
    #[inline(always)]
    fn write(self, wr: &ibv_send_wr) {
        self.begin(wr);
        let to = rdma(wr);
        // SAFETY: the path says that the table has this entry; between start and complete.
        unsafe { rdma_sys::ibv_wr_rdma_write(self.0, to.rkey, to.remote_addr) };
    }

    /// Only for a queue pair whose path is `ExtendedWithWrites`.
    #[inline(always)]
    fn write_with_imm(self, wr: &ibv_send_wr) {
        self.begin(wr);
        let (to, immediate) = (rdma(wr), immediate(wr));
        // SAFETY: as for `write`.
        unsafe { rdma_sys::ibv_wr_rdma_write_imm(self.0, to.rkey, to.remote_addr, immediate) };
    }

    /// Begins a request of any operation; `false` if the provider does not have it.
    fn operation(self, wr: &ibv_send_wr) -> bool {
        let qp = self.0;
        self.begin(wr);
        match wr.opcode {
            rdma_sys::IBV_WR_RDMA_WRITE => {
                let (write, to) = (entry!(qp.wr_rdma_write), rdma(wr));
                // SAFETY: the provider's function for this operation, between start and complete.
                unsafe { write(qp, to.rkey, to.remote_addr) };
            }
            rdma_sys::IBV_WR_RDMA_WRITE_WITH_IMM => {
                let (write, to) = (entry!(qp.wr_rdma_write_imm), rdma(wr));
                // SAFETY: as above.
                unsafe { write(qp, to.rkey, to.remote_addr, immediate(wr)) };
            }
            rdma_sys::IBV_WR_SEND => {
                let send = entry!(qp.wr_send);
                // SAFETY: as above.
                unsafe { send(qp) };
            }
            rdma_sys::IBV_WR_SEND_WITH_IMM => {
                let send = entry!(qp.wr_send_imm);
                // SAFETY: as above.
                unsafe { send(qp, immediate(wr)) };
            }
            rdma_sys::IBV_WR_RDMA_READ => {
                let (read, from) = (entry!(qp.wr_rdma_read), rdma(wr));
                // SAFETY: as above.
                unsafe { read(qp, from.rkey, from.remote_addr) };
            }
            rdma_sys::IBV_WR_ATOMIC_CMP_AND_SWP => {
                let (swap, word) = (entry!(qp.wr_atomic_cmp_swp), atomic(wr));
                // SAFETY: as above.
                unsafe { swap(qp, word.rkey, word.remote_addr, word.compare_add, word.swap) };
            }
            rdma_sys::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let (add, word) = (entry!(qp.wr_atomic_fetch_add), atomic(wr));
                // SAFETY: as above.
                unsafe { add(qp, word.rkey, word.remote_addr, word.compare_add) };
            }
            _ => return false,
        }
        true
    }

    #[inline(always)]
    fn segment(self, segment: &rdma_sys::ibv_sge) {
        // SAFETY: every extended queue pair has this entry; a request was begun.
        unsafe { rdma_sys::ibv_wr_set_sge(self.0, segment.lkey, segment.addr, segment.length) };
    }

    #[inline(always)]
    fn list(self, wr: &ibv_send_wr) {
        let count = wr.num_sge.cast_unsigned() as usize;
        // SAFETY: as for `segment`; the request borrows its list of `count` segments.
        unsafe { rdma_sys::ibv_wr_set_sge_list(self.0, count, wr.sg_list) };
    }

    #[inline(always)]
    fn inline(self, bytes: &rdma_sys::ibv_sge) {
        let address = ptr::with_exposed_provenance_mut(usize::try_from(bytes.addr).unwrap_or(0));
        // SAFETY: as for `segment`; the request borrows its bytes, which are copied in this call.
        unsafe { rdma_sys::ibv_wr_set_inline_data(self.0, address, bytes.length as usize) };
    }
}

/// How requests of one queue pair reach the provider.
#[derive(Debug, Clone, Copy)]
pub(super) enum Path {
    /// Through `ibv_post_send`.
    Classic,
    /// Through `ibv_wr_*`, whose table has the entries that every request needs.
    Extended(NonNull<ibv_qp_ex>),
    /// The same, and the table has the entries for both kinds of write.
    ExtendedWithWrites(NonNull<ibv_qp_ex>),
}

impl Path {
    /// The path of a queue pair that was made for `operations`, if its table has them.
    pub(super) fn extended(qp: NonNull<ibv_qp_ex>, operations: Operations) -> Option<Self> {
        let writes = Operations::WRITE | Operations::WRITE_WITH_IMMEDIATE;
        if !has_all(qp, operations) {
            None
        } else if has_all(qp, writes) {
            Some(Self::ExtendedWithWrites(qp))
        } else {
            Some(Self::Extended(qp))
        }
    }
}

/// Whether a queue pair has the entries that every one needs, and those of the operations asked for.
fn has_all(qp: NonNull<ibv_qp_ex>, operations: Operations) -> bool {
    // SAFETY: a live extended queue pair, whose table does not change after creation.
    let table = unsafe { qp.as_ref() };
    let always = table.wr_start.is_some()
        && table.wr_complete.is_some()
        && table.wr_abort.is_some()
        && table.wr_set_sge.is_some()
        && table.wr_set_sge_list.is_some()
        && table.wr_set_inline_data.is_some();
    let each = [
        (Operations::SEND, table.wr_send.is_some()),
        (Operations::SEND_WITH_IMMEDIATE, table.wr_send_imm.is_some()),
        (Operations::WRITE, table.wr_rdma_write.is_some()),
        (Operations::WRITE_WITH_IMMEDIATE, table.wr_rdma_write_imm.is_some()),
        (Operations::READ, table.wr_rdma_read.is_some()),
        (Operations::COMPARE_AND_SWAP, table.wr_atomic_cmp_swp.is_some()),
        (Operations::FETCH_AND_ADD, table.wr_atomic_fetch_add.is_some()),
    ];
    always && each.iter().all(|(operation, there)| *there || !operations.contains(*operation))
}

#[inline]
fn immediate(wr: &ibv_send_wr) -> u32 {
    // SAFETY: both members are a u32, and the struct is zeroed before it is filled.
    unsafe { wr.__bindgen_anon_1.imm_data }
}

#[inline]
fn rdma(wr: &ibv_send_wr) -> rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    // SAFETY: every member is plain numbers, and the struct is zeroed before it is filled.
    unsafe { wr.wr.rdma }
}

#[inline]
fn atomic(wr: &ibv_send_wr) -> rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    // SAFETY: every member is plain numbers, and the struct is zeroed before it is filled.
    unsafe { wr.wr.atomic }
}

/// The two operands of an atomic, where a refused request keeps its numbers.
pub(crate) fn atomic_operands(wr: &ibv_send_wr) -> (u64, u64) {
    let word = atomic(wr);
    (word.compare_add, word.swap)
}

#[cold]
fn too_many_segments(asked: c_int, maximum: u32) -> Error {
    Error::OutOfRange {
        what: "segments of a request",
        asked: u64::from(asked.cast_unsigned()),
        minimum: 0,
        maximum: maximum.into(),
    }
}

/// A classic call stops at the first bad request and points to it.
#[cold]
pub(crate) fn refused(
    verb: Verb,
    returned: c_int,
    bad: usize,
    first: usize,
    stride: usize,
) -> PostError {
    let index = bad.checked_sub(first).map(|distance| distance / stride);
    let source = match verb.status(returned) {
        Err(source) => source,
        Ok(()) => verb.error(io::Error::from_raw_os_error(libc::EIO)),
    };
    PostError(Box::new(Failure { posted: index.unwrap_or(0), refused: index, source }))
}

/// `ibv_wr_complete` posts all or nothing, `ibv_wr_post(3)`.
#[cold]
fn refused_whole(returned: c_int) -> PostError {
    // No address lies before the first, so that no request is named.
    refused(Verb::new("ibv_wr_complete"), returned, 0, 1, 1)
}
