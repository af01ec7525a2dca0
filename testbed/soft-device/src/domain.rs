//! Protection domains.
#![expect(unsafe_code, reason = "the verbs of protection domains, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use crate::{
    errno::{Outcome, object, status},
    fabric::fabric,
    handle::{ContextRef, Handle},
    verb::Verb,
};

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) context: u32,
    /// Regions, queue pairs and everything else made in it.
    pub(crate) children: u32,
}

/// What a domain is called in a list of leaks.
pub(crate) fn kind(_: &Domain) -> &'static str {
    "protection domain"
}

/// See `ibv_alloc_pd(3)`.
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut c::ibv_context) -> *mut c::ibv_pd {
    // SAFETY: the caller gives an open context.
    object(allocate(unsafe { ContextRef::of(context) }))
}

fn allocate(context: ContextRef) -> Outcome<*mut c::ibv_pd> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_alloc_pd)?;
    let limit = fabric.limits(context.device)?.max_pd;
    fabric.within(limit, fabric.domains.iter().map(|(_, each)| each.context), context.device)?;
    let number = fabric.domains.insert_with(|_| Domain { context: context.number, children: 0 });
    Ok(Handle::make(c::ibv_pd { context: context.raw, handle: number }, number))
}

/// See `ibv_alloc_pd(3)`: `EBUSY` while anything that was made in the domain is alive.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut c::ibv_pd) -> c_int {
    // SAFETY: the caller gives a live domain.
    let raw = unsafe { (*pd).context };
    // SAFETY: a domain does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live domain.
    let number = unsafe { Handle::number(pd) };
    let outcome = deallocate(context, number);
    if outcome.is_ok() {
        // SAFETY: the domain is gone and the caller gives it up.
        unsafe { Handle::free(pd) };
    }
    status(outcome)
}

fn deallocate(context: ContextRef, number: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_dealloc_pd)?;
    if fabric.domains.get(number).ok_or(libc::EINVAL)?.children > 0 {
        return Err(libc::EBUSY);
    }
    fabric.domains.remove(number);
    Ok(())
}
