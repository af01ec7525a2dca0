//! `efadv`: what a device of the EFA kind has beyond the verbs.
#![expect(unsafe_code, reason = "the functions of libefa, called from C")]

use std::{ffi::c_int, mem::offset_of, ptr};

use rdma_sys as c;

use crate::{
    address::AddressHandle,
    errno::{Outcome, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    verb::Verb,
};

/// What a device of the EFA kind can do, as `efadv_query_device` tells.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EfaLimits {
    /// `EFADV_DEVICE_ATTR_CAPS_…`.
    pub device_caps: u32,
    /// The largest RDMA read or write, in bytes.
    pub max_rdma_size: u32,
    /// The largest message of a send, in bytes.
    pub mtu: u32,
    /// Requests of a send queue.
    pub max_sq_wr: u32,
    /// Requests of a receive queue.
    pub max_rq_wr: u32,
    /// Segments of a send.
    pub max_sq_sge: u16,
    /// Segments of a receive.
    pub max_rq_sge: u16,
    /// Bytes of inline data.
    pub inline_buf_size: u16,
    /// Bytes of inline data where none of it is written inline.
    pub inline_buf_size_ex: u16,
}

impl Default for EfaLimits {
    fn default() -> Self {
        Self {
            device_caps: c::EFADV_DEVICE_ATTR_CAPS_RDMA_READ
                | c::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE
                | c::EFADV_DEVICE_ATTR_CAPS_RNR_RETRY
                | c::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID
                | c::EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV,
            max_rdma_size: 1 << 30,
            mtu: 8928,
            max_sq_wr: 4096,
            max_rq_wr: 32768,
            max_sq_sge: 2,
            max_rq_sge: 3,
            inline_buf_size: 32,
            inline_buf_size_ex: 32,
        }
    }
}

impl Fabric {
    /// What a device of the EFA kind can do; `EOPNOTSUPP` for any other.
    pub(crate) fn efa(&mut self, device: u32, verb: Verb) -> Outcome<&EfaLimits> {
        self.enter(device, verb)?;
        self.device(device).and_then(|it| it.description.efa.as_ref()).ok_or(libc::EOPNOTSUPP)
    }

    /// The number by which completions name the address handle of a device for a GID.
    pub(crate) fn handle_number(&self, device: u32, gid: [u8; 16]) -> Option<u16> {
        let known = |handle: &AddressHandle| {
            let here = self.contexts.get(handle.context).is_some_and(|at| at.device == device);
            here && handle.vector.global.is_some_and(|global| global.dgid == gid)
        };
        let (number, _) = self.addresses.iter().find(|(_, handle)| known(handle))?;
        u16::try_from(number).ok()
    }
}

/// Whether a struct of `length` bytes has the field at `offset`.
const fn has(length: u32, offset: usize, size: usize) -> bool {
    length as usize >= offset + size
}

/// Writes the first `length` bytes of an answer, and zeros after those that we know.
///
/// # Safety
///
/// `length` bytes can be written at `place`.
unsafe fn answer<T>(answer: &T, place: *mut T, length: u32) {
    let length = usize::try_from(length).unwrap_or(0);
    let known = length.min(size_of::<T>());
    // SAFETY: the caller has room for `length` bytes.
    unsafe { place.cast::<u8>().write_bytes(0, length) };
    // SAFETY: `known` bytes are in `answer`, and the caller has room for `length`.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(answer).cast::<u8>(), place.cast(), known) };
}

/// See `efadv_query_device(3)`.
pub(crate) unsafe extern "C" fn efadv_query_device(
    context: *mut c::ibv_context,
    attr: *mut c::efadv_device_attr,
    length: u32,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let mut fabric = fabric();
    let limits = match fabric.efa(context.device, Verb::efadv_query_device) {
        Ok(limits) => limits,
        Err(code) => return code,
    };
    if !has(length, offset_of!(c::efadv_device_attr, inline_buf_size), size_of::<u16>()) {
        return libc::EINVAL;
    }
    let whole = c::efadv_device_attr {
        comp_mask: 0,
        max_sq_wr: limits.max_sq_wr,
        max_rq_wr: limits.max_rq_wr,
        max_sq_sge: limits.max_sq_sge,
        max_rq_sge: limits.max_rq_sge,
        inline_buf_size: limits.inline_buf_size,
        inline_buf_size_ex: limits.inline_buf_size_ex,
        device_caps: limits.device_caps,
        max_rdma_size: limits.max_rdma_size,
    };
    // SAFETY: the caller gives `length` bytes for the answer.
    unsafe { answer(&whole, attr, length) };
    0
}

/// See `efadv_query_ah(3)`.
pub(crate) unsafe extern "C" fn efadv_query_ah(
    ah: *mut c::ibv_ah,
    attr: *mut c::efadv_ah_attr,
    length: u32,
) -> c_int {
    // SAFETY: the caller gives a live handle.
    let raw = unsafe { (*ah).context };
    // SAFETY: a handle does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live handle.
    let number = unsafe { Handle::number(ah) };
    let mut fabric = fabric();
    status(fabric.efa(context.device, Verb::efadv_query_ah).map(drop).and_then(|()| {
        if !has(length, offset_of!(c::efadv_ah_attr, ahn), size_of::<u16>()) {
            return Err(libc::EINVAL);
        }
        let handle = fabric.addresses.get(number).ok_or(libc::EINVAL)?;
        let gid = handle.vector.global.ok_or(libc::EINVAL)?.dgid;
        let ahn = fabric.handle_number(context.device, gid).ok_or(libc::EINVAL)?;
        let whole = c::efadv_ah_attr { ahn, ..c::efadv_ah_attr::default() };
        // SAFETY: the caller gives `length` bytes for the answer.
        unsafe { answer(&whole, attr, length) };
        Ok(())
    }))
}

/// See `efadv_query_mr(3)`: the device does not tell through which interconnect it reaches memory.
pub(crate) unsafe extern "C" fn efadv_query_mr(
    mr: *mut c::ibv_mr,
    attr: *mut c::efadv_mr_attr,
    length: u32,
) -> c_int {
    // SAFETY: the caller gives a live region.
    let raw = unsafe { (*mr).context };
    // SAFETY: a region does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    status(fabric().efa(context.device, Verb::efadv_query_mr).map(drop).and_then(|()| {
        if !has(length, offset_of!(c::efadv_mr_attr, rdma_recv_ic_id), size_of::<u16>()) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller gives `length` bytes for the answer.
        unsafe { answer(&c::efadv_mr_attr::default(), attr, length) };
        Ok(())
    }))
}

/// See `efadv_get_max_sq_depth(3)`: the depth, or the negative errno.
pub(crate) unsafe extern "C" fn efadv_get_max_sq_depth(
    context: *mut c::ibv_context,
    attr: *mut c::efadv_sq_depth_attr,
    length: u32,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    if !has(length, offset_of!(c::efadv_sq_depth_attr, max_inline_data), size_of::<u32>()) {
        return -libc::EINVAL;
    }
    // SAFETY: the caller gives a readable struct of that length.
    let attr = unsafe { *attr };
    depth(context, Verb::efadv_get_max_sq_depth, |limits| {
        let fits = attr.comp_mask == 0
            && attr.max_send_sge <= limits.max_sq_sge.into()
            && attr.max_inline_data <= limits.inline_buf_size_ex.into();
        fits.then_some(limits.max_sq_wr)
    })
}

/// See `efadv_get_max_rq_depth(3)`: the depth, or the negative errno.
pub(crate) unsafe extern "C" fn efadv_get_max_rq_depth(
    context: *mut c::ibv_context,
    attr: *mut c::efadv_rq_depth_attr,
    length: u32,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    if !has(length, offset_of!(c::efadv_rq_depth_attr, max_recv_sge), size_of::<u32>()) {
        return -libc::EINVAL;
    }
    // SAFETY: the caller gives a readable struct of that length.
    let attr = unsafe { *attr };
    depth(context, Verb::efadv_get_max_rq_depth, |limits| {
        let fits = attr.comp_mask == 0 && attr.max_recv_sge <= limits.max_rq_sge.into();
        // Each segment takes a place of its own.
        fits.then(|| limits.max_rq_wr / attr.max_recv_sge.max(1))
    })
}

fn depth(context: ContextRef, verb: Verb, of: impl FnOnce(&EfaLimits) -> Option<u32>) -> c_int {
    let mut fabric = fabric();
    match fabric.efa(context.device, verb) {
        Ok(limits) => {
            of(limits).and_then(|depth| c_int::try_from(depth).ok()).unwrap_or(-libc::EINVAL)
        }
        Err(code) => -code,
    }
}

/// See `efadv_create_qp_ex(3)`.
pub(crate) unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_qp_init_attr_ex,
    efa: *mut c::efadv_qp_init_attr,
    length: u32,
) -> *mut c::ibv_qp {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    if !has(length, offset_of!(c::efadv_qp_init_attr, driver_qp_type), size_of::<u32>()) {
        return object(Err(libc::EINVAL));
    }
    let mut wanted = c::efadv_qp_init_attr::default();
    let known = size_of_val(&wanted).min(usize::try_from(length).unwrap_or(0));
    let target = (&raw mut wanted).cast::<u8>();
    // SAFETY: the caller gives `length` bytes, and `wanted` has `known`.
    unsafe { ptr::copy_nonoverlapping(efa.cast::<u8>(), target, known) };
    // SAFETY: the caller gives a struct of its own.
    let attr = unsafe { &mut *attr };
    // SAFETY: the objects in the struct are live or null.
    unsafe { crate::pair::create_scalable(context, attr, &wanted) }
}

/// See `efadv_create_driver_qp(3)`.
pub(crate) unsafe extern "C" fn efadv_create_driver_qp(
    pd: *mut c::ibv_pd,
    attr: *mut c::ibv_qp_init_attr,
    driver_qp_type: u32,
) -> *mut c::ibv_qp {
    // SAFETY: the caller gives a live domain.
    let context = unsafe { (*pd).context };
    // SAFETY: a domain does not outlive its context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a struct of its own.
    let init = unsafe { &mut *attr };
    let mut whole = c::ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: c::IBV_QP_INIT_ATTR_PD,
        pd,
        ..c::ibv_qp_init_attr_ex::default()
    };
    let wanted = c::efadv_qp_init_attr { driver_qp_type, ..c::efadv_qp_init_attr::default() };
    // SAFETY: the objects in the struct are live or null, as the caller promises.
    unsafe { crate::pair::create_scalable(context, &mut whole, &wanted) }
}
