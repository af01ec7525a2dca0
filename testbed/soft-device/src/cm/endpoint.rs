//! Endpoints: an identifier without a channel, as far as it can go by itself.
#![expect(unsafe_code, reason = "the functions of librdmacm, called from C")]

use std::{ffi::c_int, ptr};

use rdma_sys as c;

use super::{
    address::of_info,
    identifier::{rdma_create_id, rdma_destroy_id},
    queue_pair::{rdma_create_qp, rdma_destroy_qp},
    resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route},
};
use crate::errno::{errno, minus_one, set_errno};

/// See `rdma_create_ep(3)`. Requests to a passive endpoint come without a queue pair.
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut c::rdma_cm_id,
    info: *mut c::rdma_addrinfo,
    pd: *mut c::ibv_pd,
    init: *mut c::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller gives a result of rdma_getaddrinfo.
    let info = unsafe { &*info };
    // SAFETY: the addresses of a result are readable.
    let Ok((_, target)) = (unsafe { of_info(info) }) else { return minus_one(Err(libc::EINVAL)) };
    let space = info.ai_port_space.cast_unsigned();
    let mut made = ptr::null_mut();
    // SAFETY: a null channel asks for one of its own.
    let code = unsafe { rdma_create_id(ptr::null_mut(), &raw mut made, ptr::null_mut(), space) };
    if code != 0 {
        return code;
    }
    let passive = info.ai_flags.cast_unsigned() & c::RAI_PASSIVE != 0 || target.is_none();
    let ended = if passive {
        // SAFETY: the identifier has just been made, and the address is readable.
        unsafe { rdma_bind_addr(made, info.ai_src_addr) }
    } else {
        // SAFETY: as above.
        unsafe { reach(made, info, pd, init) }
    };
    if ended != 0 {
        let code = errno();
        // SAFETY: the identifier has just been made, and nobody knows it.
        unsafe { rdma_destroy_ep(made) };
        set_errno(code);
        return -1;
    }
    // SAFETY: the caller gives a place for the identifier.
    unsafe { id.write(made) };
    0
}

/// Resolves address and route, and makes the queue pair if one is wanted.
///
/// # Safety
///
/// The identifier is live, the addresses are readable, and the other objects live or null.
unsafe fn reach(
    id: *mut c::rdma_cm_id,
    info: &c::rdma_addrinfo,
    pd: *mut c::ibv_pd,
    init: *mut c::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: by the contract above.
    let code = unsafe { rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, 2000) };
    if code != 0 {
        return code;
    }
    // SAFETY: by the contract above.
    let code = unsafe { rdma_resolve_route(id, 2000) };
    if code != 0 || init.is_null() {
        return code;
    }
    // SAFETY: by the contract above.
    unsafe { (*init).qp_type = info.ai_qp_type.cast_unsigned() };
    // SAFETY: by the contract above.
    unsafe { rdma_create_qp(id, pd, init) }
}

/// See `rdma_destroy_ep(3)`.
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut c::rdma_cm_id) {
    // SAFETY: the caller gives a live identifier.
    unsafe { rdma_destroy_qp(id) };
    // SAFETY: as above.
    unsafe { rdma_destroy_id(id) };
}
