//! Posting: one API over `ibv_wr_*` and `ibv_post_send`.
//!
//! Nothing here allocates, takes a lock of ours, or runs the caller's code while the provider's lock is held: a batch
//! is plain data, and starting, filling and completing it is one call. An empty batch is no call at all.

use std::{ffi::c_int, io, ptr, ptr::NonNull};

use rdma_sys::{ibv_qp_ex, ibv_send_wr};

use super::{Handle, PostsReceives, QueuePair};
use crate::{Error, Operations, RecvWr, SendWr, Transport, Verb, work_request::Shape};

/// A batch that was not posted as a whole. The requests are still the caller's, as they were.
#[derive(Debug, thiserror::Error)]
#[error("{} ({posted} before it were posted)", match refused {
    Some(index) => format!("request {index} of the batch was refused"),
    None => "the batch was refused as a whole".to_owned(),
})]
#[non_exhaustive]
pub struct PostError {
    /// How many requests, from the first on, were posted: those will complete.
    pub posted: usize,
    /// The first request that was not; `None` where the device refuses a batch without saying which.
    pub refused: Option<usize>,
    /// Why.
    #[source]
    pub source: Error,
}

impl PostError {
    #[cold]
    fn before(index: usize, source: Error) -> Self {
        Self { posted: 0, refused: Some(index), source }
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
    #[inline]
    pub fn post_send(&self, batch: &mut [SendWr<'_, T>]) -> Result<(), PostError> {
        match self.handle.extended {
            Some(extended) => self.handle.post_extended(extended, batch),
            None => self.handle.post_classic(batch),
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
    for (index, wr) in batch.iter_mut().enumerate().rev() {
        if wr.shape == Shape::One {
            wr.raw.sg_list = &raw mut wr.own;
        } else if u32::try_from(wr.raw.num_sge).is_ok_and(|count| count > most_segments) {
            return Err(PostError::before(index, too_many_segments(wr.raw.num_sge, most_segments)));
        }
        wr.raw.next = next;
        next = &raw mut wr.raw;
    }
    Ok(next)
}

impl Handle<'_> {
    #[inline]
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

    #[inline]
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
        for (index, wr) in batch.iter().enumerate() {
            if let Err(error) = self.fill(&poster, wr) {
                poster.abort();
                return Err(PostError::before(index, error));
            }
        }
        match poster.complete() {
            0 => Ok(()),
            returned => Err(refused_whole(returned)),
        }
    }

    /// Hands one request to the provider.
    #[inline]
    fn fill<T: Transport>(&self, poster: &Extended, wr: &SendWr<'_, T>) -> Result<(), Error> {
        match wr.shape {
            Shape::One => {
                poster.operation(&wr.raw)?;
                poster.segment(&wr.own);
            }
            Shape::Inline if wr.own.length <= self.capabilities.inline => {
                poster.operation(&wr.raw)?;
                poster.inline(&wr.own);
            }
            Shape::List if wr.raw.num_sge.cast_unsigned() <= self.capabilities.send_segments => {
                poster.operation(&wr.raw)?;
                poster.list(&wr.raw);
            }
            _ => return Err(self.refusal(wr)),
        }
        Ok(())
    }

    /// Why a request is over what this queue pair was made for, or was refused when it was made.
    #[cold]
    fn refusal<T>(&self, wr: &SendWr<'_, T>) -> Error {
        match wr.shape {
            Shape::Inline => Error::OutOfRange {
                what: "inline bytes",
                asked: wr.own.length.into(),
                minimum: 0,
                maximum: self.capabilities.inline.into(),
            },
            Shape::List => too_many_segments(wr.raw.num_sge, self.capabilities.send_segments),
            Shape::One | Shape::Refused => wr.refusal(),
        }
    }
}

/// The provider's function for an operation; returns from the caller if there is none.
macro_rules! entry {
    ($qp:ident.$operation:ident) => {
        // SAFETY: the queue pair is live; this copies an entry of its table.
        match unsafe { (*$qp).$operation } {
            Some(function) => function,
            None => return Err(not_made_for()),
        }
    };
}

/// The `ibv_wr_*` functions of a queue pair, each called with its lock held.
struct Extended(*mut ibv_qp_ex);

impl Extended {
    #[inline]
    fn start(&self) {
        // SAFETY: every extended queue pair has this entry; `has_all` saw it.
        unsafe { rdma_sys::ibv_wr_start(self.0) };
    }

    #[inline]
    fn complete(&self) -> c_int {
        // SAFETY: as for `start`, which came before.
        unsafe { rdma_sys::ibv_wr_complete(self.0) }
    }

    #[cold]
    fn abort(&self) {
        // SAFETY: as for `start`, which came before.
        unsafe { rdma_sys::ibv_wr_abort(self.0) };
    }

    /// Begins a request: its number, flags and operation.
    #[inline]
    fn operation(&self, wr: &ibv_send_wr) -> Result<(), Error> {
        let qp = self.0;
        // SAFETY: the queue pair is live, and its lock, which `start` took, is held.
        unsafe { (*qp).wr_id = wr.wr_id };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = wr.send_flags };
        match wr.opcode {
            rdma_sys::IBV_WR_SEND => {
                let send = entry!(qp.wr_send);
                // SAFETY: the provider's function for this operation, between start and complete.
                unsafe { send(qp) };
            }
            rdma_sys::IBV_WR_SEND_WITH_IMM => {
                let send = entry!(qp.wr_send_imm);
                // SAFETY: as above.
                unsafe { send(qp, immediate(wr)) };
            }
            rdma_sys::IBV_WR_RDMA_WRITE => {
                let (write, to) = (entry!(qp.wr_rdma_write), rdma(wr));
                // SAFETY: as above.
                unsafe { write(qp, to.rkey, to.remote_addr) };
            }
            rdma_sys::IBV_WR_RDMA_WRITE_WITH_IMM => {
                let (write, to) = (entry!(qp.wr_rdma_write_imm), rdma(wr));
                // SAFETY: as above.
                unsafe { write(qp, to.rkey, to.remote_addr, immediate(wr)) };
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
            _ => return Err(not_made_for()),
        }
        Ok(())
    }

    #[inline]
    fn segment(&self, segment: &rdma_sys::ibv_sge) {
        // SAFETY: every extended queue pair has this entry; a request was begun.
        unsafe { rdma_sys::ibv_wr_set_sge(self.0, segment.lkey, segment.addr, segment.length) };
    }

    #[inline]
    fn list(&self, wr: &ibv_send_wr) {
        let count = wr.num_sge.cast_unsigned() as usize;
        // SAFETY: as for `segment`; the request borrows its list of `count` segments.
        unsafe { rdma_sys::ibv_wr_set_sge_list(self.0, count, wr.sg_list) };
    }

    #[inline]
    fn inline(&self, bytes: &rdma_sys::ibv_sge) {
        let address = ptr::with_exposed_provenance_mut(usize::try_from(bytes.addr).unwrap_or(0));
        // SAFETY: as for `segment`; the request borrows its bytes, which are copied in this call.
        unsafe { rdma_sys::ibv_wr_set_inline_data(self.0, address, bytes.length as usize) };
    }
}

/// Whether a queue pair has the entries that every one needs, and those of the operations asked for.
pub(crate) fn has_all(qp: NonNull<ibv_qp_ex>, operations: Operations) -> bool {
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

#[cold]
fn not_made_for() -> Error {
    Error::Invalid {
        what: "the queue pair was not made for this operation",
        remedy: "name it in `QueuePairBuilder::operations`",
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
    PostError { posted: index.unwrap_or(0), refused: index, source }
}

/// `ibv_wr_complete` posts all or nothing, `ibv_wr_post(3)`.
#[cold]
fn refused_whole(returned: c_int) -> PostError {
    let verb = Verb::new("ibv_wr_complete");
    PostError { refused: None, ..refused(verb, returned, 0, 1, 1) }
}
