//! The devices as the connection manager opens them: each once, for all its identifiers.
#![expect(unsafe_code, reason = "calls the verbs, and hands lists to C")]

use std::{ffi::c_int, ptr};

use rdma_sys as c;

use crate::{
    context::{ibv_open_device, open_internally},
    domain::ibv_alloc_pd,
    errno::{Outcome, errno, set_errno},
    fabric::fabric,
};

/// A device that the connection manager has open, until the process ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct CmDevice {
    device: u32,
    /// Addresses of its context and of the domain of identifiers that bring none.
    pub(super) context: usize,
    pub(super) domain: usize,
}

/// Opens a device, or finds it open.
pub(super) fn open(device: u32) -> Outcome<CmDevice> {
    let raw = {
        let fabric = fabric();
        if let Some(&open) = fabric.cm.devices.iter().find(|each| each.device == device) {
            return Ok(open);
        }
        fabric.device(device).ok_or(libc::ENODEV)?.description.raw
    };
    // SAFETY: devices are never freed.
    let context = unsafe { ibv_open_device(ptr::with_exposed_provenance_mut(raw)) };
    if context.is_null() {
        return Err(errno());
    }
    // SAFETY: the context has just been opened.
    let domain = unsafe { ibv_alloc_pd(context) };
    if domain.is_null() {
        return Err(errno());
    }
    let mut fabric = fabric();
    // Another thread may have been quicker; then there are two, and the first is used.
    let (context, domain) = (context.expose_provenance(), domain.expose_provenance());
    fabric.cm.devices.push(CmDevice { device, context, domain });
    // SAFETY: both have just been made and are never freed.
    unsafe { open_internally(&mut fabric, context, domain) };
    let first = fabric.cm.devices.iter().find(|each| each.device == device).copied();
    first.ok_or(libc::ENODEV)
}

/// See `rdma_get_devices(3)`.
pub(crate) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut c::ibv_context {
    let listed: Vec<u32> = {
        let fabric = fabric();
        let all = (0u32..).zip(&fabric.devices);
        all.filter(|(_, device)| device.listed).map(|(number, _)| number).collect()
    };
    let opened: Outcome<Vec<CmDevice>> = listed.into_iter().map(open).collect();
    let list: Vec<*mut c::ibv_context> = match opened {
        Ok(opened) => opened
            .iter()
            .map(|device| ptr::with_exposed_provenance_mut(device.context))
            .chain([ptr::null_mut()])
            .collect(),
        Err(code) => {
            set_errno(code);
            return ptr::null_mut();
        }
    };
    // SAFETY: the caller gives null or a place for the number.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = c_int::try_from(list.len() - 1).unwrap_or(0);
    }
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// See `rdma_get_devices(3)`.
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut c::ibv_context) {
    if list.is_null() {
        return;
    }
    let mut length = 1;
    // SAFETY: a list ends with the first null pointer, and the caller gives a whole one.
    while !unsafe { *list.wrapping_add(length - 1) }.is_null() {
        length += 1;
    }
    // SAFETY: lists come from boxes of just this length.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, length)) });
}
