//! Memory windows: parts of a region with a key of their own.
#![expect(unsafe_code, reason = "the verbs of memory windows, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use crate::{
    domain::DomainRef,
    errno::{Outcome, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    memory::{Asker, Denied, Keyed},
    pair::{Binding, PairRef},
    verb::Verb,
};

/// A memory window.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) context: u32,
    pub(crate) domain: u32,
    /// The domain that is busy while it is there.
    pub(crate) holder: u32,
    pub(crate) kind: c::ibv_mw_type,
    pub(crate) rkey: u32,
    pub(crate) bound: Option<Bound>,
}

/// What a window is bound to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    region: u32,
    /// The pair through which it was bound: a window of type 2 opens for no other.
    pair: u32,
    start: u64,
    length: u64,
    access: u32,
}

impl Window {
    /// The region and the address in it that `address` means, if the window opens it.
    pub(crate) fn open(
        &self,
        asker: Asker,
        address: u64,
        length: u64,
        access: u32,
    ) -> Result<(u32, u64), Denied> {
        let bound = self.bound.ok_or(Denied)?;
        let zero_based = bound.access & c::IBV_ACCESS_ZERO_BASED != 0;
        let base = if zero_based { 0 } else { bound.start };
        let offset = address.checked_sub(base).ok_or(Denied)?;
        let inside = offset.checked_add(length).is_some_and(|end| end <= bound.length);
        let same_pair = self.kind == c::IBV_MW_TYPE_1 || bound.pair == asker.pair;
        if !inside || !same_pair || self.domain != asker.domain || bound.access & access != access {
            return Err(Denied);
        }
        Ok((bound.region, bound.start + offset))
    }
}

/// See `ibv_alloc_mw(3)`.
pub(crate) unsafe extern "C" fn alloc_mw(
    pd: *mut c::ibv_pd,
    kind: c::ibv_mw_type,
) -> *mut c::ibv_mw {
    // SAFETY: the caller gives a live domain.
    object(allocate(unsafe { DomainRef::of(pd) }, kind))
}

fn allocate(pd: DomainRef, kind: c::ibv_mw_type) -> Outcome<*mut c::ibv_mw> {
    let mut fabric = fabric();
    fabric.enter(pd.context.device, Verb::ibv_alloc_mw)?;
    if kind != c::IBV_MW_TYPE_1 && kind != c::IBV_MW_TYPE_2 {
        return Err(libc::EINVAL);
    }
    let most = fabric.limits(pd.context.device)?.max_mw;
    let windows = fabric.keys.contexts(|each| matches!(each, Keyed::Window(_)));
    fabric.within(most, windows, pd.context.device)?;
    fabric.join(pd)?;
    let (context, domain, holder) = (pd.context.number, pd.number, pd.holder);
    let window = Window { context, domain, holder, kind, rkey: 0, bound: None };
    let number = fabric.keys.insert_window(window);
    let rkey = fabric.keys.window(number).map_or(0, |window| window.rkey);
    let raw = c::ibv_mw { context: pd.context.raw, pd: pd.raw, rkey, handle: number, type_: kind };
    Ok(Handle::make(raw, number))
}

/// See `ibv_alloc_mw(3)`: also unbinds the window.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut c::ibv_mw) -> c_int {
    // SAFETY: the caller gives a live window.
    let raw = unsafe { (*mw).context };
    // SAFETY: a window does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live window.
    let number = unsafe { Handle::number(mw) };
    let outcome = deallocate(context, number);
    if outcome.is_ok() {
        // SAFETY: the window is gone and the caller gives it up.
        unsafe { Handle::free(mw) };
    }
    status(outcome)
}

fn deallocate(context: ContextRef, number: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_dealloc_mw)?;
    let holder = fabric.keys.window(number).ok_or(libc::EINVAL)?.holder;
    fabric.unbind(number);
    fabric.keys.remove(number);
    fabric.leave(holder);
    Ok(())
}

/// See `ibv_bind_mw(3)`, for windows of type 1: posts the binding and gives the window its new key.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut c::ibv_qp,
    mw: *mut c::ibv_mw,
    bind: *mut c::ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let pair = unsafe { PairRef::of(qp) };
    // SAFETY: the caller gives a readable struct.
    let bind = unsafe { &*bind };
    // SAFETY: the caller gives a live window.
    let shown = unsafe { &mut *mw };
    if shown.type_ != c::IBV_MW_TYPE_1 {
        return libc::EINVAL;
    }
    let rkey = c::ibv_inc_rkey(shown.rkey);
    // SAFETY: the caller gives a live window, and a live region or null.
    let binding = unsafe { Binding::new(mw, rkey, &bind.bind_info) };
    let outcome = fabric().post_bind(pair, bind.wr_id, bind.send_flags, binding);
    if outcome.is_ok() {
        shown.rkey = rkey;
    }
    status(outcome)
}

impl Fabric {
    /// Binds a window, as a request of a pair asks. Binding no bytes unbinds a window of type 1.
    pub(crate) fn bind(&mut self, pair: u32, domain: u32, binding: Binding) -> Result<(), Denied> {
        let window = self.keys.window(binding.window).ok_or(Denied)?;
        let typed = match window.kind {
            c::IBV_MW_TYPE_1 => binding.rkey == c::ibv_inc_rkey(window.rkey),
            _ => window.bound.is_none() && binding.rkey >> 8 == window.rkey >> 8,
        };
        if !typed || window.domain != domain {
            return Err(Denied);
        }
        let mut bound = None;
        if binding.length > 0 {
            let region = self.keys.region(binding.region).ok_or(Denied)?;
            let writes = c::IBV_ACCESS_REMOTE_WRITE | c::IBV_ACCESS_REMOTE_ATOMIC;
            let bindable = region.domain == domain && region.access & c::IBV_ACCESS_MW_BIND != 0;
            let writable = region.access & c::IBV_ACCESS_LOCAL_WRITE != 0;
            if !bindable || (binding.access & writes != 0 && !writable) {
                return Err(Denied);
            }
            region.at(binding.address, binding.length)?;
            bound = Some(Bound {
                region: binding.region,
                pair,
                start: binding.address,
                length: binding.length,
                access: binding.access,
            });
        } else if window.kind != c::IBV_MW_TYPE_1 {
            return Err(Denied);
        }
        self.unbind(binding.window);
        if let Some(region) = bound.and_then(|bound| self.keys.region_mut(bound.region)) {
            region.windows += 1;
        }
        if let Some(window) = self.keys.window_mut(binding.window) {
            window.rkey = binding.rkey;
            window.bound = bound;
        }
        Ok(())
    }

    /// Invalidates the key of a window of type 2, as a request of a pair or of its peer asks.
    pub(crate) fn invalidate(&mut self, asker: Asker, rkey: u32) -> Result<(), Denied> {
        let number = rkey >> 8;
        let window = self.keys.window(number).filter(|window| window.rkey == rkey).ok_or(Denied)?;
        let own = window.bound.is_some_and(|bound| bound.pair == asker.pair);
        if window.kind != c::IBV_MW_TYPE_2 || window.domain != asker.domain || !own {
            return Err(Denied);
        }
        self.unbind(number);
        Ok(())
    }

    fn unbind(&mut self, number: u32) {
        let bound = self.keys.window_mut(number).and_then(|window| window.bound.take());
        if let Some(region) = bound.and_then(|bound| self.keys.region_mut(bound.region)) {
            region.windows -= 1;
        }
    }
}
