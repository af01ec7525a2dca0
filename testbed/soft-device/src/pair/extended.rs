//! Extended posting: `ibv_wr_start`, the operations, `ibv_wr_complete`.
#![expect(unsafe_code, reason = "the functions of an ibv_qp_ex, called from C")]

use std::{
    ffi::{c_int, c_void},
    ptr, slice,
};

use rdma_sys as c;

use super::{
    PairHandle, PairRef,
    local::Binding,
    work::{Payload, Request},
};
use crate::{
    errno::Outcome, fabric::fabric, owner_lock::Reentered, transfer::copy_host, verb::Verb,
};

/// The batch between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Debug)]
pub(super) struct Building {
    built: Vec<Built>,
    segments: Vec<c::ibv_sge>,
    inline: Vec<u8>,
    most: usize,
    refused: Outcome,
}

/// The bytes of an atomic write, which need no inline capacity.
const ATOMIC: usize = 8;

/// A request of the batch, and where its data ends in the lists of the batch.
#[derive(Debug)]
struct Built {
    request: Request,
    payload: Payload,
    segments_end: usize,
    inline_end: usize,
}

impl Building {
    /// Room for the most that a pair can be given, so that building allocates nothing.
    pub(super) fn new(cap: &c::ibv_qp_cap) -> Self {
        let length = |count: u32| usize::try_from(count).unwrap_or(0);
        let most = length(cap.max_send_wr);
        Self {
            built: Vec::with_capacity(most),
            segments: Vec::with_capacity(most * length(cap.max_send_sge)),
            inline: Vec::with_capacity(most * length(cap.max_inline_data).max(ATOMIC)),
            most,
            refused: Ok(()),
        }
    }

    fn clear(&mut self) {
        self.built.clear();
        self.segments.clear();
        self.inline.clear();
        self.refused = Ok(());
    }

    /// Begins a request; the data that follows is its.
    fn add(&mut self, request: Request) {
        if self.built.len() >= self.most {
            self.refused = Err(libc::ENOMEM);
        }
        if self.refused.is_ok() {
            self.built.push(Built {
                request,
                payload: Payload::Registered,
                segments_end: self.segments.len(),
                inline_end: self.inline.len(),
            });
        }
    }

    fn set_segments(&mut self, segments: &[c::ibv_sge]) {
        if segments.len() > self.segments.capacity() - self.segments.len() {
            self.refused = Err(libc::EINVAL);
        }
        if let (Ok(()), Some(last)) = (self.refused, self.built.last_mut()) {
            self.segments.extend_from_slice(segments);
            last.segments_end = self.segments.len();
        }
    }

    /// Copies inline data behind what there is.
    ///
    /// # Safety
    ///
    /// `length` bytes can be read at `address`.
    unsafe fn add_inline(&mut self, address: *const c_void, length: usize) {
        if length > self.inline.capacity() - self.inline.len() {
            self.refused = Err(libc::EINVAL);
        }
        if let (Ok(()), Some(last)) = (self.refused, self.built.last_mut()) {
            let start = self.inline.len();
            self.inline.resize(start + length, 0);
            let room = self.inline.as_mut_ptr().wrapping_add(start).expose_provenance();
            // SAFETY: the caller vouches for the source; the target was just added to the list.
            unsafe { copy_host(address.expose_provenance(), room, length) };
            last.payload = Payload::Inline;
            last.inline_end = self.inline.len();
        }
    }
}

/// The operations that a kind of pair has.
pub(super) fn supported(kind: c::ibv_qp_type) -> u64 {
    let sends = c::IBV_QP_EX_WITH_SEND | c::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = c::IBV_QP_EX_WITH_RDMA_WRITE
        | c::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | c::IBV_QP_EX_WITH_SEND_WITH_INV
        | c::IBV_QP_EX_WITH_LOCAL_INV
        | c::IBV_QP_EX_WITH_BIND_MW;
    let reads = c::IBV_QP_EX_WITH_RDMA_READ
        | c::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | c::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | c::IBV_QP_EX_WITH_FLUSH
        | c::IBV_QP_EX_WITH_ATOMIC_WRITE;
    let operations = match kind {
        c::IBV_QPT_RC | c::IBV_QPT_XRC_SEND => sends | writes | reads,
        c::IBV_QPT_UC => sends | writes,
        c::IBV_QPT_UD => sends,
        c::IBV_QPT_RAW_PACKET => c::IBV_QP_EX_WITH_SEND,
        c::IBV_QPT_DRIVER => {
            sends
                | c::IBV_QP_EX_WITH_RDMA_WRITE
                | c::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
                | c::IBV_QP_EX_WITH_RDMA_READ
        }
        _ => 0,
    };
    operations.into()
}

/// The flag, `IBV_QP_EX_WITH_*`, of an operation that has a function here.
fn operation(opcode: c::ibv_wr_opcode) -> u64 {
    let flag = match opcode {
        c::IBV_WR_FLUSH => c::IBV_QP_EX_WITH_FLUSH,
        c::IBV_WR_ATOMIC_WRITE => c::IBV_QP_EX_WITH_ATOMIC_WRITE,
        // The others have the same order in both.
        _ => 1 << opcode,
    };
    flag.into()
}

/// Fills all operations that such a pair can have, as the providers of some cards do. Those that were not asked for have
/// no room in its queue there, so that using one is a violation.
pub(super) fn fill(ex: &mut c::ibv_qp_ex, kind: c::ibv_qp_type) {
    let operations = supported(kind);
    let has = |flag: u32| operations & u64::from(flag) != 0;
    ex.wr_start = Some(wr_start);
    ex.wr_complete = Some(wr_complete);
    ex.wr_abort = Some(wr_abort);
    ex.wr_set_sge = Some(wr_set_sge);
    ex.wr_set_sge_list = Some(wr_set_sge_list);
    ex.wr_set_inline_data = Some(wr_set_inline_data);
    ex.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    let datagram = kind == c::IBV_QPT_UD || kind == c::IBV_QPT_DRIVER;
    ex.wr_set_ud_addr = datagram.then_some(wr_set_ud_addr);
    ex.wr_set_xrc_srqn = (kind == c::IBV_QPT_XRC_SEND).then_some(wr_set_xrc_srqn);
    ex.wr_send = has(c::IBV_QP_EX_WITH_SEND).then_some(wr_send);
    ex.wr_send_imm = has(c::IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm);
    ex.wr_send_inv = has(c::IBV_QP_EX_WITH_SEND_WITH_INV).then_some(wr_send_inv);
    ex.wr_rdma_write = has(c::IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write);
    ex.wr_rdma_write_imm = has(c::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm);
    ex.wr_rdma_read = has(c::IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read);
    ex.wr_atomic_cmp_swp = has(c::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(wr_atomic_cmp_swp);
    ex.wr_atomic_fetch_add =
        has(c::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_atomic_fetch_add);
    ex.wr_atomic_write = has(c::IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(wr_atomic_write);
    ex.wr_flush = has(c::IBV_QP_EX_WITH_FLUSH).then_some(wr_flush);
    ex.wr_local_inv = has(c::IBV_QP_EX_WITH_LOCAL_INV).then_some(wr_local_inv);
    ex.wr_bind_mw = has(c::IBV_QP_EX_WITH_BIND_MW).then_some(wr_bind_mw);
}

/// Runs `act` on the batch of a pair, if this thread has begun one.
///
/// # Safety
///
/// `qp` is a live extended pair of this library.
unsafe fn building(qp: *mut c::ibv_qp_ex, act: impl FnOnce(&mut Building)) {
    let handle: *mut PairHandle = qp.cast();
    // SAFETY: the pair is live, and the lock is made to be shared.
    if unsafe { &(*handle).lock }.is_mine() {
        // SAFETY: only the thread that has the lock touches the batch, and `act` does not come back.
        act(unsafe { &mut (*handle).building });
    } else {
        // SAFETY: the pair is live.
        let device = unsafe { PairRef::of(qp.cast()) }.device;
        fabric().violation(device, "an operation without ibv_wr_start".into());
    }
}

/// Begins a request of the batch with the number and flags that the caller set.
///
/// # Safety
///
/// As for [`building`].
unsafe fn add(qp: *mut c::ibv_qp_ex, request: Request) {
    // SAFETY: the pair is live, and no call changes this field.
    let asked = unsafe { (*qp.cast::<PairHandle>()).operations }.unwrap_or(0);
    if asked & operation(request.opcode) == 0 {
        // SAFETY: the pair is live.
        let device = unsafe { PairRef::of(qp.cast()) }.device;
        fabric().violation(device, "an operation that the queue pair was not made for".into());
    }
    // SAFETY: the pair is live, and the caller is the one who writes this field.
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: the pair is live, and the caller is the one who writes this field.
    let flags = unsafe { (*qp).wr_flags };
    // SAFETY: by the contract above.
    unsafe { building(qp, |batch| batch.add(Request { wr_id, flags, ..request })) };
}

/// See `ibv_wr_post(3)`: waits while another thread builds a batch.
unsafe extern "C" fn wr_start(qp: *mut c::ibv_qp_ex) {
    // SAFETY: the caller gives a live pair, and the lock is made to be shared.
    let lock = unsafe { &(*qp.cast::<PairHandle>()).lock };
    if let Err(Reentered) = lock.acquire() {
        // SAFETY: the caller gives a live pair.
        let device = unsafe { PairRef::of(qp.cast()) }.device;
        fabric().violation(device, "ibv_wr_start: twice without ibv_wr_complete".into());
    }
    // SAFETY: the caller gives a live pair.
    unsafe { building(qp, Building::clear) };
}

/// See `ibv_wr_post(3)`: 0 or the errno, and then nothing of the batch is posted.
unsafe extern "C" fn wr_complete(qp: *mut c::ibv_qp_ex) -> c_int {
    let handle: *mut PairHandle = qp.cast();
    // SAFETY: the caller gives a live pair.
    let pair = unsafe { PairRef::of(qp.cast()) };
    // SAFETY: the caller gives a live pair, and the lock is made to be shared.
    let lock = unsafe { &(*handle).lock };
    if !lock.is_mine() {
        fabric().violation(pair.device, "ibv_wr_complete: without ibv_wr_start".into());
        return libc::EINVAL;
    }
    // SAFETY: only the thread that has the lock touches the batch.
    let batch = unsafe { &mut (*handle).building };
    let posted = post(pair, batch);
    lock.release();
    posted.err().unwrap_or(0)
}

/// Posts a whole batch, or nothing of it.
fn post(pair: PairRef, batch: &Building) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(pair.device, Verb::ibv_wr_complete)?;
    batch.refused?;
    let start = fabric.pairs.get(pair.number).ok_or(libc::EINVAL)?.send.end();
    let (mut segment, mut byte) = (0, 0);
    for built in &batch.built {
        let inline = batch.inline.get(byte..built.inline_end).ok_or(libc::EINVAL)?;
        let whole = [c::ibv_sge {
            addr: u64::try_from(inline.as_ptr().expose_provenance()).map_err(|_| libc::EINVAL)?,
            length: u32::try_from(inline.len()).map_err(|_| libc::EINVAL)?,
            lkey: 0,
        }];
        let segments = match built.payload {
            Payload::Inline => &whole,
            Payload::Registered => {
                batch.segments.get(segment..built.segments_end).ok_or(libc::EINVAL)?
            }
        };
        // SAFETY: the only inline segment is a part of the batch, which is borrowed here.
        let queued =
            unsafe { fabric.queue_send(pair.number, built.request, segments, built.payload) };
        if queued.is_err() {
            if let Some(pair) = fabric.pairs.get_mut(pair.number) {
                pair.send.truncate(start);
            }
            return queued;
        }
        (segment, byte) = (built.segments_end, built.inline_end);
    }
    fabric.start(pair.number);
    Ok(())
}

/// See `ibv_wr_post(3)`.
unsafe extern "C" fn wr_abort(qp: *mut c::ibv_qp_ex) {
    // SAFETY: the caller gives a live pair.
    unsafe { building(qp, Building::clear) };
    // SAFETY: the caller gives a live pair, and the lock is made to be shared.
    unsafe { &(*qp.cast::<PairHandle>()).lock }.release();
}

/// See `ibv_wr_post(3)`.
unsafe extern "C" fn wr_set_sge(qp: *mut c::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let segment = c::ibv_sge { addr, length, lkey };
    // SAFETY: the caller gives a live pair.
    unsafe { building(qp, |batch| batch.set_segments(&[segment])) };
}

/// See `ibv_wr_post(3)`.
unsafe extern "C" fn wr_set_sge_list(qp: *mut c::ibv_qp_ex, count: usize, list: *const c::ibv_sge) {
    // SAFETY: the caller gives `count` entries.
    let list = unsafe { entries(list, count) };
    // SAFETY: the caller gives a live pair.
    unsafe { building(qp, |batch| batch.set_segments(list)) };
}

/// See `ibv_wr_post(3)`.
unsafe extern "C" fn wr_set_inline_data(qp: *mut c::ibv_qp_ex, addr: *mut c_void, length: usize) {
    let part = c::ibv_data_buf { addr, length };
    // SAFETY: the caller gives a live pair, and `length` bytes at `addr`.
    unsafe { wr_set_inline_data_list(qp, 1, ptr::from_ref(&part)) };
}

/// See `ibv_wr_post(3)`.
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut c::ibv_qp_ex,
    count: usize,
    list: *const c::ibv_data_buf,
) {
    // SAFETY: the caller gives `count` entries.
    let list = unsafe { entries(list, count) };
    let copy = |batch: &mut Building| {
        for part in list {
            // SAFETY: the caller gives the bytes of each part.
            unsafe { batch.add_inline(part.addr, part.length) };
        }
    };
    // SAFETY: the caller gives a live pair.
    unsafe { building(qp, copy) };
}

/// A list of C, which may be null if it is empty.
///
/// # Safety
///
/// `list` has `count` readable entries.
unsafe fn entries<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by the contract above.
    unsafe { slice::from_raw_parts(list, count) }
}

/// Makes the function of one operation.
macro_rules! operations {
    ($($name:ident($($parameter:ident: $type:ty),*) = $opcode:expr, { $($field:ident: $value:expr),* };)*) => {
        $(
            /// See `ibv_wr_post(3)`.
            unsafe extern "C" fn $name(qp: *mut c::ibv_qp_ex $(, $parameter: $type)*) {
                let request = Request { opcode: $opcode, $($field: $value,)* ..Request::default() };
                // SAFETY: the caller gives a live pair.
                unsafe { add(qp, request) };
            }
        )*
    };
}

operations! {
    wr_send() = c::IBV_WR_SEND, {};
    wr_send_imm(imm_data: c::__be32) = c::IBV_WR_SEND_WITH_IMM, { immediate: imm_data };
    wr_rdma_write(rkey: u32, remote_addr: u64) = c::IBV_WR_RDMA_WRITE, { rkey: rkey, remote_address: remote_addr };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: c::__be32) = c::IBV_WR_RDMA_WRITE_WITH_IMM, { rkey: rkey, remote_address: remote_addr, immediate: imm_data };
    wr_rdma_read(rkey: u32, remote_addr: u64) = c::IBV_WR_RDMA_READ, { rkey: rkey, remote_address: remote_addr };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) = c::IBV_WR_ATOMIC_CMP_AND_SWP, { rkey: rkey, remote_address: remote_addr, compare_add: compare, swap: swap };
    wr_send_inv(invalidate_rkey: u32) = c::IBV_WR_SEND_WITH_INV, { immediate: invalidate_rkey };
    wr_local_inv(invalidate_rkey: u32) = c::IBV_WR_LOCAL_INV, { immediate: invalidate_rkey };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) = c::IBV_WR_ATOMIC_FETCH_AND_ADD, { rkey: rkey, remote_address: remote_addr, compare_add: add };
}

/// See `ibv_wr_post(3)`: the eight bytes are copied at once.
unsafe extern "C" fn wr_atomic_write(
    qp: *mut c::ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    value: *const c_void,
) {
    let opcode = c::IBV_WR_ATOMIC_WRITE;
    let request = Request { opcode, rkey, remote_address: remote_addr, ..Request::default() };
    // SAFETY: the caller gives a live pair.
    unsafe { add(qp, request) };
    // SAFETY: the caller gives a live pair, and eight bytes.
    unsafe { wr_set_inline_data(qp, value.cast_mut(), 8) };
}

/// See `ibv_wr_post(3)`.
unsafe extern "C" fn wr_flush(
    qp: *mut c::ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    length: usize,
    kind: u8,
    level: u8,
) {
    let request = Request {
        opcode: c::IBV_WR_FLUSH,
        rkey,
        remote_address: remote_addr,
        compare_add: u64::try_from(length).unwrap_or(u64::MAX),
        swap: u64::from(kind) | u64::from(level) << 8,
        ..Request::default()
    };
    // SAFETY: the caller gives a live pair.
    unsafe { add(qp, request) };
}

/// See `ibv_wr_post(3)`.
unsafe extern "C" fn wr_bind_mw(
    qp: *mut c::ibv_qp_ex,
    mw: *mut c::ibv_mw,
    rkey: u32,
    info: *const c::ibv_mw_bind_info,
) {
    // SAFETY: the caller gives a readable struct.
    let info = unsafe { &*info };
    // SAFETY: the caller gives a live window, and a live region or null.
    let binding = Some(unsafe { Binding::new(mw, rkey, info) });
    let request = Request { opcode: c::IBV_WR_BIND_MW, binding, ..Request::default() };
    // SAFETY: the caller gives a live pair.
    unsafe { add(qp, request) };
}

/// See `ibv_wr_post(3)`.
unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut c::ibv_qp_ex,
    ah: *mut c::ibv_ah,
    qpn: u32,
    qkey: u32,
) {
    // SAFETY: the caller gives a live address handle.
    let vector = unsafe { fabric().vector(ah) };
    let set = |batch: &mut Building| {
        if let Some(last) = batch.built.last_mut() {
            last.request = Request { vector, qpn, qkey, ..last.request };
        }
    };
    // SAFETY: the caller gives a live pair.
    unsafe { building(qp, set) };
}

/// See `ibv_wr_post(3)`.
unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut c::ibv_qp_ex, srqn: u32) {
    let set = |batch: &mut Building| {
        if let Some(last) = batch.built.last_mut() {
            last.request.srqn = srqn;
        }
    };
    // SAFETY: the caller gives a live pair.
    unsafe { building(qp, set) };
}

/// See `efadv_wr_set_processing_hints(3)`: hints change nothing here.
pub(super) unsafe extern "C" fn wr_set_processing_hints(_qp: *mut c::efadv_qp, _hints: u32) {}

/// See `efadv_create_qp_ex(3)`: null for a pair that is not of EFA.
pub(crate) unsafe extern "C" fn efadv_qp_from_ibv_qp_ex(qp: *mut c::ibv_qp_ex) -> *mut c::efadv_qp {
    let handle: *mut PairHandle = qp.cast();
    // SAFETY: the caller gives a live pair, and no call changes this field.
    if unsafe { (*qp).qp_base.qp_type } != c::IBV_QPT_DRIVER {
        return ptr::null_mut();
    }
    // SAFETY: the place is inside the handle of a live pair; nothing is read.
    unsafe { &raw mut (*handle).efa }
}

/// See `ibv_create_qp_ex(3)`: null for a pair that was made without operations.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut c::ibv_qp) -> *mut c::ibv_qp_ex {
    // SAFETY: the caller gives a live pair, and no call changes this field.
    if unsafe { (*qp.cast::<PairHandle>()).operations }.is_some() {
        qp.cast()
    } else {
        ptr::null_mut()
    }
}
