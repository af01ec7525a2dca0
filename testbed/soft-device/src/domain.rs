//! Protection domains, thread domains, and parent domains, which join one of each.
#![expect(unsafe_code, reason = "the verbs of domains, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use crate::{
    errno::{Outcome, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    verb::Verb,
};

/// A protection domain, or a parent domain over one.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) context: u32,
    /// Regions, queue pairs and everything else made in it.
    pub(crate) children: u32,
    /// What a parent domain joins: the domain whose objects see each other, and a thread domain.
    joins: Option<(u32, Option<u32>)>,
}

/// A thread domain.
#[derive(Debug)]
pub(crate) struct ThreadDomain {
    pub(crate) context: u32,
    parents: u32,
}

/// What a domain is called in a list of leaks.
pub(crate) fn kind(domain: &Domain) -> &'static str {
    if domain.joins.is_some() { "parent domain" } else { "protection domain" }
}

/// The C struct of a domain.
#[repr(C)]
pub(crate) struct DomainHandle {
    raw: c::ibv_pd,
    number: u32,
    protection: u32,
}

/// A domain as a caller names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DomainRef {
    pub(crate) raw: *mut c::ibv_pd,
    /// The domain that is busy while an object made in it is alive.
    pub(crate) holder: u32,
    /// The domain whose keys the object can use: of a parent domain, the one below it.
    pub(crate) number: u32,
    pub(crate) context: ContextRef,
}

impl DomainRef {
    /// Which domain a caller means.
    ///
    /// # Safety
    ///
    /// `raw` is a live domain of this library.
    pub(crate) unsafe fn of(raw: *mut c::ibv_pd) -> Self {
        // SAFETY: the domain is live, by the contract above, and no call changes it.
        let handle = unsafe { &*raw.cast::<DomainHandle>() };
        Self {
            raw,
            holder: handle.number,
            number: handle.protection,
            // SAFETY: a domain does not outlive its context.
            context: unsafe { ContextRef::of(handle.raw.context) },
        }
    }
}

/// Moves the struct of a domain to the heap, for a caller to hold.
pub(crate) fn make(context: ContextRef, number: u32, protection: u32) -> *mut c::ibv_pd {
    let raw = c::ibv_pd { context: context.raw, handle: number };
    Box::into_raw(Box::new(DomainHandle { raw, number, protection })).cast()
}

/// Frees the struct of a domain.
///
/// # Safety
///
/// `raw` came from [`make`], was not freed, and nobody uses it any more.
pub(crate) unsafe fn free(raw: *mut c::ibv_pd) {
    // SAFETY: it came from a box of this type, by the contract above.
    drop(unsafe { Box::from_raw(raw.cast::<DomainHandle>()) });
}

impl Fabric {
    /// Counts an object that is made in a domain.
    pub(crate) fn join(&mut self, pd: DomainRef) -> Outcome {
        self.domains.get_mut(pd.holder).ok_or(libc::EINVAL)?.children += 1;
        Ok(())
    }

    /// Counts an object off that was made in a domain.
    pub(crate) fn leave(&mut self, holder: u32) {
        if let Some(domain) = self.domains.get_mut(holder) {
            domain.children -= 1;
        }
    }
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
    let number = fabric.domains.insert_with(|_| Domain {
        context: context.number,
        children: 0,
        joins: None,
    });
    Ok(make(context, number, number))
}

/// See `ibv_alloc_parent_domain(3)`. Memory comes from our own allocator, whatever the caller offers.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_parent_domain_init_attr,
) -> *mut c::ibv_pd {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { &*attr };
    let known = c::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | c::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | c::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    if attr.pd.is_null() || attr.comp_mask & !known != 0 {
        return object(Err(libc::EINVAL));
    }
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(attr.pd) };
    // SAFETY: the caller gives null or a live thread domain.
    let thread = (!attr.td.is_null()).then(|| unsafe { Handle::number(attr.td) });
    object(join_domains(context, pd, thread))
}

fn join_domains(
    context: ContextRef,
    pd: DomainRef,
    thread: Option<u32>,
) -> Outcome<*mut c::ibv_pd> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_alloc_parent_domain)?;
    if pd.holder != pd.number || pd.context.number != context.number {
        return Err(libc::EINVAL);
    }
    if let Some(thread) = thread {
        fabric.threads.get_mut(thread).ok_or(libc::EINVAL)?.parents += 1;
    }
    fabric.join(pd)?;
    let number = fabric.domains.insert_with(|_| Domain {
        context: context.number,
        children: 0,
        joins: Some((pd.number, thread)),
    });
    Ok(make(context, number, pd.number))
}

/// See `ibv_alloc_pd(3)`: `EBUSY` while anything that was made in the domain is alive.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut c::ibv_pd) -> c_int {
    // SAFETY: the caller gives a live domain.
    let outcome = deallocate(unsafe { DomainRef::of(pd) });
    if outcome.is_ok() {
        // SAFETY: the domain is gone and the caller gives it up.
        unsafe { free(pd) };
    }
    status(outcome)
}

fn deallocate(pd: DomainRef) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(pd.context.device, Verb::ibv_dealloc_pd)?;
    let domain = fabric.domains.get(pd.holder).ok_or(libc::EINVAL)?;
    if domain.children > 0 {
        return Err(libc::EBUSY);
    }
    let joins = domain.joins;
    fabric.domains.remove(pd.holder);
    if let Some((below, thread)) = joins {
        fabric.leave(below);
        if let Some(thread) = thread.and_then(|thread| fabric.threads.get_mut(thread)) {
            thread.parents -= 1;
        }
    }
    Ok(())
}

/// See `ibv_alloc_td(3)`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_td_init_attr,
) -> *mut c::ibv_td {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    if unsafe { (*attr).comp_mask } != 0 {
        return object(Err(libc::EINVAL));
    }
    let mut fabric = fabric();
    object(fabric.enter(context.device, Verb::ibv_alloc_td).map(|()| {
        let number =
            fabric.threads.insert_with(|_| ThreadDomain { context: context.number, parents: 0 });
        Handle::make(c::ibv_td { context: context.raw }, number)
    }))
}

/// See `ibv_alloc_td(3)`: `EBUSY` while a parent domain joins it.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut c::ibv_td) -> c_int {
    // SAFETY: the caller gives a live thread domain.
    let raw = unsafe { (*td).context };
    // SAFETY: a thread domain does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live thread domain.
    let number = unsafe { Handle::number(td) };
    let outcome = deallocate_thread(context, number);
    if outcome.is_ok() {
        // SAFETY: the thread domain is gone and the caller gives it up.
        unsafe { Handle::free(td) };
    }
    status(outcome)
}

fn deallocate_thread(context: ContextRef, number: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_dealloc_td)?;
    if fabric.threads.get(number).ok_or(libc::EINVAL)?.parents > 0 {
        return Err(libc::EBUSY);
    }
    fabric.threads.remove(number);
    Ok(())
}
