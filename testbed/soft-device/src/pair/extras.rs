//! Smaller verbs of queue pairs: multicast groups, ECE, rate limit, order of data.
#![expect(unsafe_code, reason = "verbs, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use super::PairRef;
use crate::{
    address::{Membership, gid_bytes},
    errno::status,
    fabric::fabric,
    verb::Verb,
};

/// See `ibv_attach_mcast(3)`.
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut c::ibv_qp,
    gid: *const c::ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let pair = unsafe { PairRef::of(qp) };
    // SAFETY: the caller gives a readable GID.
    let member = Membership { gid: gid_bytes(unsafe { &*gid }), pair: pair.number };
    status(fabric().change_membership(pair.device, Verb::ibv_attach_mcast, member, true))
}

/// See `ibv_attach_mcast(3)`.
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut c::ibv_qp,
    gid: *const c::ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let pair = unsafe { PairRef::of(qp) };
    // SAFETY: the caller gives a readable GID.
    let member = Membership { gid: gid_bytes(unsafe { &*gid }), pair: pair.number };
    status(fabric().change_membership(pair.device, Verb::ibv_detach_mcast, member, false))
}

/// See `ibv_set_ece(3)`.
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut c::ibv_qp, ece: *mut c::ibv_ece) -> c_int {
    // SAFETY: the caller gives a live pair.
    let named = unsafe { PairRef::of(qp) };
    // SAFETY: the caller gives a struct of its own.
    let wanted = unsafe { &mut *ece };
    let mut fabric = fabric();
    status(fabric.enter(named.device, Verb::ibv_set_ece).and_then(|()| {
        let vendor = u32::try_from(VENDOR).unwrap_or(0);
        if wanted.comp_mask != 0 || (wanted.vendor_id != 0 && wanted.vendor_id != vendor) {
            return Err(libc::EINVAL);
        }
        // What the device does not know is taken out of the offer.
        wanted.options &= OPTIONS;
        fabric.pairs.get_mut(named.number).ok_or(libc::EINVAL)?.ece = *wanted;
        Ok(())
    }))
}

/// The vendor of the device, and the options of its connections.
const VENDOR: u64 = 0x02_0000;
const OPTIONS: u32 = 0xff;

/// See `ibv_query_ece(3)`.
pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut c::ibv_qp, ece: *mut c::ibv_ece) -> c_int {
    // SAFETY: the caller gives a live pair.
    let named = unsafe { PairRef::of(qp) };
    let mut fabric = fabric();
    let answer = fabric.enter(named.device, Verb::ibv_query_ece);
    let answer = answer.and_then(|()| Ok(fabric.pairs.get(named.number).ok_or(libc::EINVAL)?.ece));
    status(answer.map(|answer| {
        let offered = c::ibv_ece { options: OPTIONS, ..answer };
        let answer = if answer.vendor_id == 0 { offered } else { answer };
        let vendor_id = u32::try_from(VENDOR).unwrap_or(0);
        // SAFETY: the caller gives a place for the answer.
        unsafe { ece.write(c::ibv_ece { vendor_id, ..answer }) };
    }))
}

/// See `ibv_modify_qp_rate_limit(3)`: any limit is kept, none is felt.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut c::ibv_qp,
    attr: *mut c::ibv_qp_rate_limit_attr,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let named = unsafe { PairRef::of(qp) };
    // SAFETY: the caller gives a readable struct.
    let wanted = unsafe { *attr };
    let mut fabric = fabric();
    status(fabric.enter(named.device, Verb::ibv_modify_qp_rate_limit).and_then(|()| {
        let pair = fabric.pairs.get_mut(named.number).ok_or(libc::EINVAL)?;
        if pair.state != c::IBV_QPS_RTS || wanted.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        pair.attr.rate_limit = wanted.rate_limit;
        Ok(())
    }))
}

/// See `ibv_query_qp_data_in_order(3)`: the bytes of a message are written first to last.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut c::ibv_qp,
    _operation: c::ibv_wr_opcode,
    flags: u32,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let named = unsafe { PairRef::of(qp) };
    let known =
        c::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS | c::IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY;
    let refused = fabric().enter(named.device, Verb::ibv_query_qp_data_in_order).is_err();
    if refused || flags & !known != 0 {
        return 0;
    }
    if flags & c::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS == 0 {
        return 1;
    }
    let whole =
        c::IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG | c::IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES;
    whole.cast_signed()
}
