//! `ibv_post_send` and `ibv_post_recv`.
#![expect(unsafe_code, reason = "verbs, called from C")]

use std::{ffi::c_int, ptr, slice};

use rdma_sys as c;

use super::{
    PairHandle, PairRef,
    local::Binding,
    work::{Payload, Request},
};
use crate::{
    address::Vector,
    errno::Outcome,
    ethernet::segmentation::are_headers,
    fabric::{Fabric, fabric},
    handle::Handle,
    owner_lock::Reentered,
    verb::Verb,
};

/// See `ibv_post_send(3)`: 0 or the errno, and then the first request that was not posted.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut c::ibv_qp,
    first: *mut c::ibv_send_wr,
    bad: *mut *mut c::ibv_send_wr,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let pair = unsafe { PairRef::of(qp) };
    // SAFETY: the caller gives a live pair, and the lock is made to be shared.
    let lock = unsafe { &(*qp.cast::<PairHandle>()).lock };
    // SAFETY: the caller gives a live pair, and no call changes this field.
    let kind = unsafe { (*qp).qp_type };
    let mut refused = Ok(());
    let mut next = first;
    if let Err(Reentered) = lock.acquire() {
        let text = "ibv_post_send: between ibv_wr_start and ibv_wr_complete";
        fabric().violation(pair.device, text.into());
        refused = Err(libc::EDEADLK);
    } else {
        let mut fabric = fabric();
        refused = refused.and_then(|()| fabric.enter(pair.device, Verb::ibv_post_send));
        while refused.is_ok() && !next.is_null() {
            // SAFETY: each request of the list is a readable struct of the caller.
            let wr = unsafe { &*next };
            // SAFETY: the request is as the caller promises, see ibv_post_send(3).
            refused = unsafe { queue_one(&mut fabric, pair.number, kind, wr) };
            if refused.is_ok() {
                next = wr.next;
            }
        }
        fabric.start(pair.number);
        drop(fabric);
        lock.release();
    }
    if refused.is_err() && !bad.is_null() {
        // SAFETY: the caller gives a place for the first request that was not posted.
        unsafe { bad.write(next) };
    }
    refused.err().unwrap_or(0)
}

/// # Safety
///
/// `wr` is a request as `ibv_post_send(3)` asks for it.
unsafe fn queue_one(
    fabric: &mut Fabric,
    pair: u32,
    kind: c::ibv_qp_type,
    wr: &c::ibv_send_wr,
) -> Outcome {
    // SAFETY: the caller vouches for the list.
    let segments = unsafe { segments(wr.sg_list, wr.num_sge) }?;
    let inline = wr.send_flags & c::IBV_SEND_INLINE != 0;
    let payload = if inline { Payload::Inline } else { Payload::Registered };
    // SAFETY: both members of the union are four plain bytes.
    let immediate = unsafe { wr.__bindgen_anon_1.imm_data };
    let mut request = Request {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        immediate,
        ..Request::default()
    };
    if kind == c::IBV_QPT_XRC_SEND {
        // SAFETY: the kind of the pair says that this member is in use; all are plain bytes.
        request.srqn = unsafe { wr.qp_type.xrc }.remote_srqn;
    }
    match wr.opcode {
        c::IBV_WR_SEND | c::IBV_WR_SEND_WITH_IMM
            if kind == c::IBV_QPT_UD || kind == c::IBV_QPT_DRIVER =>
        {
            // SAFETY: the kind of the pair says that this member is in use; all are plain bytes.
            let datagram = unsafe { wr.wr.ud };
            request.qpn = datagram.remote_qpn;
            request.qkey = datagram.remote_qkey;
            // SAFETY: the caller gives a live address handle.
            request.vector = unsafe { fabric.vector(datagram.ah) };
        }
        c::IBV_WR_TSO => {
            // SAFETY: the caller vouches for the request, which has this member.
            return unsafe { queue_stretch(fabric, pair, wr, request, segments) };
        }
        c::IBV_WR_BIND_MW => {
            // SAFETY: the opcode says that this member is in use; all are plain bytes.
            let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
            // SAFETY: the caller gives a live window, and a live region or null.
            request.binding = Some(unsafe { Binding::new(bind.mw, bind.rkey, &bind.bind_info) });
        }
        c::IBV_WR_ATOMIC_CMP_AND_SWP | c::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the opcode says that this member is the one in use; all are plain bytes.
            let atomic = unsafe { wr.wr.atomic };
            request.remote_address = atomic.remote_addr;
            request.rkey = atomic.rkey;
            request.compare_add = atomic.compare_add;
            request.swap = atomic.swap;
        }
        _ => {
            // SAFETY: the opcode says that this member is the one in use; all are plain bytes.
            let rdma = unsafe { wr.wr.rdma };
            request.remote_address = rdma.remote_addr;
            request.rkey = rdma.rkey;
        }
    }
    // SAFETY: the caller vouches for inline data.
    unsafe { fabric.queue_send(pair, request, segments, payload) }
}

/// Queues a stretch of a stream that is to be cut into packets: `EINVAL` for headers that are not those of TCP, or that the pair
/// has no room for.
///
/// # Safety
///
/// `wr` is a request for segmentation as `ibv_post_send(3)` asks for it.
unsafe fn queue_stretch(
    fabric: &mut Fabric,
    pair: u32,
    wr: &c::ibv_send_wr,
    request: Request,
    list: &[c::ibv_sge],
) -> Outcome {
    // SAFETY: by the contract above this member is in use; all are plain bytes.
    let stretch = unsafe { wr.__bindgen_anon_2.tso };
    let length = usize::from(stretch.hdr_sz);
    let queue = &fabric.pairs.get(pair).ok_or(libc::EINVAL)?.send;
    if !queue.has_room_for_header(length) || stretch.mss == 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller gives so many bytes of headers.
    if !are_headers(unsafe { slice::from_raw_parts(stretch.hdr.cast(), length) }) {
        return Err(libc::EINVAL);
    }
    let request = Request { segment_size: stretch.mss, ..request };
    // SAFETY: nothing is inline.
    unsafe { fabric.queue_send(pair, request, list, Payload::Registered) }?;
    let queue = &mut fabric.pairs.get_mut(pair).ok_or(libc::EINVAL)?.send;
    // SAFETY: the caller gives so many bytes of headers.
    unsafe { queue.set_header(stretch.hdr.expose_provenance(), length) };
    Ok(())
}

/// The list of segments of a request.
///
/// # Safety
///
/// `list` has `count` readable entries.
pub(crate) unsafe fn segments<'a>(
    list: *const c::ibv_sge,
    count: c_int,
) -> Outcome<&'a [c::ibv_sge]> {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: by the contract above.
    Ok(unsafe { slice::from_raw_parts(list, count) })
}

/// Whether a kind of pair has an operation.
fn allows(kind: c::ibv_qp_type, opcode: c::ibv_wr_opcode) -> bool {
    match opcode {
        c::IBV_WR_SEND_WITH_IMM if kind == c::IBV_QPT_RAW_PACKET => false,
        c::IBV_WR_TSO => kind == c::IBV_QPT_RAW_PACKET,
        c::IBV_WR_SEND | c::IBV_WR_SEND_WITH_IMM => kind != c::IBV_QPT_XRC_RECV,
        c::IBV_WR_RDMA_WRITE | c::IBV_WR_RDMA_WRITE_WITH_IMM | c::IBV_WR_RDMA_READ
            if kind == c::IBV_QPT_DRIVER =>
        {
            true
        }
        c::IBV_WR_RDMA_WRITE
        | c::IBV_WR_RDMA_WRITE_WITH_IMM
        | c::IBV_WR_SEND_WITH_INV
        | c::IBV_WR_LOCAL_INV
        | c::IBV_WR_BIND_MW => {
            matches!(kind, c::IBV_QPT_RC | c::IBV_QPT_UC | c::IBV_QPT_XRC_SEND)
        }
        c::IBV_WR_RDMA_READ
        | c::IBV_WR_ATOMIC_CMP_AND_SWP
        | c::IBV_WR_ATOMIC_FETCH_AND_ADD
        | c::IBV_WR_ATOMIC_WRITE
        | c::IBV_WR_FLUSH => matches!(kind, c::IBV_QPT_RC | c::IBV_QPT_XRC_SEND),
        _ => false,
    }
}

impl Fabric {
    /// The address in a handle.
    ///
    /// # Safety
    ///
    /// `ah` is a live address handle of this library, or null.
    pub(super) unsafe fn vector(&self, ah: *mut c::ibv_ah) -> Option<Vector> {
        if ah.is_null() {
            return None;
        }
        // SAFETY: by the contract above.
        Some(self.addresses.get(unsafe { Handle::number(ah) })?.vector)
    }

    /// Queues one send request, if the state of the pair and its kind allow it.
    ///
    /// # Safety
    ///
    /// With inline payload, each segment is memory of the process that can be read now.
    pub(crate) unsafe fn queue_send(
        &mut self,
        number: u32,
        request: Request,
        segments: &[c::ibv_sge],
        payload: Payload,
    ) -> Outcome {
        let pair = self.pairs.get_mut(number).ok_or(libc::EINVAL)?;
        let ready =
            matches!(pair.state, c::IBV_QPS_RTS | c::IBV_QPS_SQD | c::IBV_QPS_SQE | c::IBV_QPS_ERR);
        let known = allows(pair.kind, request.opcode);
        let datagram = pair.kind == c::IBV_QPT_UD || pair.kind == c::IBV_QPT_DRIVER;
        let addressed = !datagram || request.vector.is_some();
        let writes = matches!(request.opcode, c::IBV_WR_RDMA_WRITE | c::IBV_WR_RDMA_WRITE_WITH_IMM);
        let signaled = pair.signals_all || request.flags & c::IBV_SEND_SIGNALED != 0;
        let inline_write = writes && payload == Payload::Inline && !pair.inline_writes;
        if pair.kind == c::IBV_QPT_DRIVER && (!signaled || inline_write) {
            return Err(libc::EINVAL);
        }
        let brings_data = matches!(
            request.opcode,
            c::IBV_WR_RDMA_READ | c::IBV_WR_ATOMIC_CMP_AND_SWP | c::IBV_WR_ATOMIC_FETCH_AND_ADD
        );
        if !ready || !known || !addressed || (brings_data && payload == Payload::Inline) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller vouches for inline data.
        unsafe { pair.send.push(request, segments, payload) }
    }

    /// Queues one receive, from the state INIT on.
    fn queue_receive(&mut self, number: u32, wr_id: u64, segments: &[c::ibv_sge]) -> Outcome {
        let pair = self.pairs.get_mut(number).ok_or(libc::EINVAL)?;
        if pair.state == c::IBV_QPS_RESET || pair.srq.is_some() {
            return Err(libc::EINVAL);
        }
        pair.receive.push(wr_id, segments)
    }
}

/// See `ibv_post_recv(3)`: 0 or the errno, and then the first request that was not posted.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut c::ibv_qp,
    first: *mut c::ibv_recv_wr,
    bad: *mut *mut c::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let pair = unsafe { PairRef::of(qp) };
    let mut fabric = fabric();
    let mut next = first;
    let mut refused = fabric.enter(pair.device, Verb::ibv_post_recv);
    while refused.is_ok() && !next.is_null() {
        // SAFETY: each request of the list is a readable struct of the caller.
        let wr = unsafe { ptr::read(next) };
        // SAFETY: the caller vouches for the list of segments.
        refused = unsafe { segments(wr.sg_list, wr.num_sge) }
            .and_then(|segments| fabric.queue_receive(pair.number, wr.wr_id, segments));
        if refused.is_ok() {
            next = wr.next;
        }
    }
    if fabric.pairs.get(pair.number).is_some_and(|pair| pair.state == c::IBV_QPS_ERR) {
        fabric.flush_receives(pair.number);
    }
    fabric.wake();
    if refused.is_err() && !bad.is_null() {
        // SAFETY: the caller gives a place for the first request that was not posted.
        unsafe { bad.write(next) };
    }
    refused.err().unwrap_or(0)
}
