//! Importing: a second context over the same open device, and more structs for domains, regions and
//! device memory.
#![expect(unsafe_code, reason = "the import verbs, called from C")]

use std::{
    ffi::c_int,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use rdma_sys as c;

use crate::{
    context::{self, descriptor},
    device_memory,
    domain::{self, DomainRef},
    errno::{Outcome, object},
    fabric::fabric,
    handle::{ContextRef, Handle},
    verb::Verb,
    xrc::inode,
};

/// See `ibv_import_device(3)`: takes the descriptor over if it succeeds.
pub(crate) unsafe extern "C" fn ibv_import_device(fd: c_int) -> *mut c::ibv_context {
    object(import(fd))
}

fn import(fd: c_int) -> Outcome<*mut c::ibv_context> {
    let file = inode(fd)?;
    let (origin, device) = {
        let mut fabric = fabric();
        let found = fabric.contexts.iter().find(|(_, context)| {
            context.shares.is_none()
                && inode(context.command.as_raw_fd()).is_ok_and(|each| each == file)
        });
        let (origin, device) =
            found.map(|(number, context)| (number, context.device)).ok_or(libc::ENODEV)?;
        fabric.enter(device, Verb::ibv_import_device)?;
        (origin, device)
    };
    // SAFETY: the descriptor is open, since its inode is known, and the caller gives it up.
    context::make(device, unsafe { OwnedFd::from_raw_fd(fd) }, Some(origin))
}

/// A new command descriptor: a file of its own, by whose inode an import finds its context again.
pub(crate) fn command_descriptor() -> Outcome<OwnedFd> {
    descriptor(c"soft-device")
}

/// See `ibv_import_pd(3)`.
pub(crate) unsafe extern "C" fn ibv_import_pd(
    context: *mut c::ibv_context,
    handle: u32,
) -> *mut c::ibv_pd {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let mut fabric = fabric();
    object(fabric.enter(context.device, Verb::ibv_import_pd).and_then(|()| {
        let owner = fabric.domains.get(handle).ok_or(libc::ENOENT)?.context;
        if !fabric.shares(context.number, owner) {
            return Err(libc::ENOENT);
        }
        Ok(domain::make(context, handle, handle))
    }))
}

/// See `ibv_import_pd(3)`: the domain itself stays.
pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut c::ibv_pd) {
    // SAFETY: the caller gives a struct of `ibv_import_pd`, and gives it up.
    unsafe { domain::free(pd) };
}

/// See `ibv_import_mr(3)`: the struct says nothing of the address.
pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut c::ibv_pd, handle: u32) -> *mut c::ibv_mr {
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(pd) };
    let mut fabric = fabric();
    object(fabric.enter(pd.context.device, Verb::ibv_import_mr).and_then(|()| {
        let region = fabric.keys.region(handle).ok_or(libc::ENOENT)?;
        if region.domain != pd.number {
            return Err(libc::ENOENT);
        }
        let raw = c::ibv_mr {
            context: pd.context.raw,
            pd: pd.raw,
            addr: ptr::null_mut(),
            length: usize::try_from(region.length).unwrap_or(usize::MAX),
            handle,
            lkey: region.lkey,
            rkey: region.rkey,
        };
        Ok(Handle::make(raw, handle))
    }))
}

/// See `ibv_import_mr(3)`: the region itself stays.
pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: *mut c::ibv_mr) {
    // SAFETY: the caller gives a struct of `ibv_import_mr`, and gives it up.
    unsafe { Handle::free(mr) };
}

/// See `ibv_import_dm(3)`.
pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut c::ibv_context,
    handle: u32,
) -> *mut c::ibv_dm {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let mut fabric = fabric();
    object(fabric.enter(context.device, Verb::ibv_import_dm).and_then(|()| {
        let owner = fabric.memories.get(handle).ok_or(libc::ENOENT)?.context;
        if !fabric.shares(context.number, owner) {
            return Err(libc::ENOENT);
        }
        Ok(device_memory::handle(context, handle))
    }))
}

/// See `ibv_import_dm(3)`: the memory itself stays.
pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut c::ibv_dm) {
    // SAFETY: the caller gives a struct of `ibv_import_dm`, and gives it up.
    unsafe { Handle::free(dm) };
}
