//! `ibv_poll_cq`.
#![expect(unsafe_code, reason = "a verb, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use super::{Completion, QueueHandle, QueueRef};
use crate::{fabric::fabric, verb::Verb};

/// See `ibv_poll_cq(3)`: how many were written, negative on failure.
pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut c::ibv_cq,
    room: c_int,
    wc: *mut c::ibv_wc,
) -> c_int {
    // SAFETY: the caller gives a live queue.
    let queue = unsafe { QueueRef::of(cq) };
    // SAFETY: the caller gives a live queue, and the lock is made to be shared.
    let lock = unsafe { &(*cq.cast::<QueueHandle>()).lock };
    let mut fabric = fabric();
    if let Err(code) = fabric.enter(queue.device, Verb::ibv_poll_cq) {
        return -code.abs().max(1);
    }
    if lock.is_mine() {
        fabric
            .violation(queue.device, "ibv_poll_cq: between ibv_start_poll and ibv_end_poll".into());
        return -libc::EDEADLK;
    }
    fabric.expire(Some(queue.device));
    let mut count = 0;
    while count < room
        && let Some(completion) = fabric.take(queue.number)
    {
        let place = wc.wrapping_add(usize::try_from(count).unwrap_or(0));
        // SAFETY: the caller gives `room` places, and this is one of them.
        unsafe { place.write(in_c(&completion)) };
        count += 1;
    }
    count
}

fn in_c(completion: &Completion) -> c::ibv_wc {
    c::ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status,
        opcode: completion.opcode,
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        __bindgen_anon_1: c::ibv_wc__bindgen_ty_1 { imm_data: completion.imm_data },
        qp_num: completion.qp_num,
        src_qp: completion.src_qp,
        wc_flags: completion.wc_flags,
        pkey_index: 0,
        slid: completion.slid,
        sl: completion.sl,
        dlid_path_bits: 0,
    }
}
