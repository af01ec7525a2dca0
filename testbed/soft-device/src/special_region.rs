//! Regions that are changed, that are over nothing, or that are described by a struct.
#![expect(unsafe_code, reason = "the verbs of memory regions, called from C")]

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use rdma_sys as c;

use crate::{
    domain::DomainRef,
    errno::{Outcome, object, set_errno, status},
    fabric::fabric,
    handle::{ContextRef, Handle},
    memory::{Backing, Place, Region},
    region::{address_of, check_access, dma_buf, host, pin},
    verb::Verb,
};

/// See `ibv_alloc_null_mr(3)`: a region of all addresses, over nothing.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut c::ibv_pd) -> *mut c::ibv_mr {
    // SAFETY: the caller gives a live domain.
    object(nothing(unsafe { DomainRef::of(pd) }))
}

fn nothing(pd: DomainRef) -> Outcome<*mut c::ibv_mr> {
    let mut fabric = fabric();
    fabric.enter(pd.context.device, Verb::ibv_alloc_null_mr)?;
    fabric.join(pd)?;
    let region = Region::new(pd.context.number, pd.number, pd.holder, Place::Nowhere);
    let access = c::IBV_ACCESS_LOCAL_WRITE;
    let number = fabric.keys.insert(Region { length: u64::MAX, access, ..region });
    let lkey = fabric.keys.region(number).map_or(0, |region| region.lkey);
    let raw = c::ibv_mr {
        context: pd.context.raw,
        pd: pd.raw,
        addr: ptr::null_mut(),
        length: usize::MAX,
        handle: number,
        lkey,
        rkey: 0,
    };
    Ok(Handle::make(raw, number))
}

/// See `ibv_reg_mr_ex(3)`: memory of the process or a dma-buf, with an address of choice.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut c::ibv_pd,
    init: *mut c::ibv_mr_init_attr,
) -> *mut c::ibv_mr {
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(pd) };
    // SAFETY: the caller gives a readable struct.
    let init = unsafe { &*init };
    let given = |flag: u32| init.comp_mask & u64::from(flag) != 0;
    let (memory, file) = (given(c::IBV_REG_MR_MASK_ADDR), given(c::IBV_REG_MR_MASK_FD));
    let known = c::IBV_REG_MR_MASK_IOVA
        | c::IBV_REG_MR_MASK_ADDR
        | c::IBV_REG_MR_MASK_FD
        | c::IBV_REG_MR_MASK_FD_OFFSET;
    let offset = if given(c::IBV_REG_MR_MASK_FD_OFFSET) { init.fd_offset } else { 0 };
    if init.comp_mask & !u64::from(known) != 0 {
        return object(Err(libc::EOPNOTSUPP));
    }
    if memory == file || (offset != 0 && !file) {
        return object(Err(libc::EINVAL));
    }
    let access = init.access.cast_unsigned();
    let iova = given(c::IBV_REG_MR_MASK_IOVA).then_some(init.iova);
    object(if memory {
        let iova = iova.unwrap_or_else(|| address_of(init.addr));
        host(pd, Verb::ibv_reg_mr_ex, init.addr, init.length, iova, access)
    } else {
        dma_buf(pd, offset, init.length, iova.unwrap_or(offset), init.fd, access)
    })
}

/// See `ibv_rereg_mr(3)`: 0, or one of `ibv_rereg_mr_err_code` with `errno` set; the region stays as
/// it was then. The keys change with the region.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut c::ibv_mr,
    flags: c_int,
    pd: *mut c::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the caller gives a live region.
    let shown = unsafe { &mut *mr };
    // SAFETY: a region does not outlive its context.
    let context = unsafe { ContextRef::of(shown.context) };
    // SAFETY: the caller gives a live region.
    let number = unsafe { Handle::number(mr) };
    let flags = flags.cast_unsigned();
    let given = |flag: u32| flags & flag != 0;
    // SAFETY: the caller gives a live domain where the flag says so.
    let pd = given(c::IBV_REREG_MR_CHANGE_PD).then(|| unsafe { DomainRef::of(pd) });
    let change = Change {
        pd,
        range: given(c::IBV_REREG_MR_CHANGE_TRANSLATION).then_some((addr, length)),
        access: given(c::IBV_REREG_MR_CHANGE_ACCESS).then_some(access.cast_unsigned()),
    };
    if flags & !c::IBV_REREG_MR_FLAGS_SUPPORTED != 0 || flags == 0 {
        set_errno(libc::EINVAL);
        return c::IBV_REREG_MR_ERR_INPUT;
    }
    match change.apply(context, number) {
        Ok((lkey, rkey)) => {
            (shown.lkey, shown.rkey) = (lkey, rkey);
            if let Some(pd) = pd {
                shown.pd = pd.raw;
            }
            if let Some((addr, length)) = change.range {
                (shown.addr, shown.length) = (addr, length);
            }
            0
        }
        Err(code) => {
            set_errno(code);
            c::IBV_REREG_MR_ERR_CMD
        }
    }
}

/// What is to be different about a region.
struct Change {
    pd: Option<DomainRef>,
    range: Option<(*mut c_void, usize)>,
    access: Option<u32>,
}

impl Change {
    /// Changes a region; its new keys.
    fn apply(&self, context: ContextRef, number: u32) -> Outcome<(u32, u32)> {
        let mut fabric = fabric();
        fabric.enter(context.device, Verb::ibv_rereg_mr)?;
        let region = fabric.keys.region(number).ok_or(libc::EINVAL)?;
        let access = self.access.unwrap_or(region.access);
        check_access(access)?;
        if region.windows > 0 {
            return Err(libc::EBUSY);
        }
        if region.backing != Backing::Caller {
            return Err(libc::EOPNOTSUPP);
        }
        if let Some((addr, length)) = self.range {
            if length == 0 {
                return Err(libc::EINVAL);
            }
            pin(addr, length, access)?;
        }
        if let Some(pd) = self.pd {
            fabric.join(pd)?;
        }
        let region = fabric.keys.region_mut(number).ok_or(libc::EINVAL)?;
        region.access = access;
        if let Some((addr, length)) = self.range {
            region.iova = address_of(addr);
            region.place = Place::Host(addr.expose_provenance());
            region.length = u64::try_from(length).map_err(|_| libc::EINVAL)?;
        }
        let left = self.pd.map(|pd| {
            region.domain = pd.number;
            std::mem::replace(&mut region.holder, pd.holder)
        });
        if let Some(holder) = left {
            fabric.leave(holder);
        }
        Ok(fabric.keys.renew(number))
    }
}

/// See `ibv_advise_mr(3)`: every page is there already, so that only the list is checked.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut c::ibv_pd,
    advice: c::ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut c::ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(pd) };
    let count = c_int::try_from(count).unwrap_or(c_int::MAX);
    // SAFETY: the caller gives `count` segments.
    let list = unsafe { crate::pair::segments(list, count) };
    status(list.and_then(|list| advise(pd, advice, flags, list)))
}

fn advise(pd: DomainRef, advice: u32, flags: u32, list: &[c::ibv_sge]) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(pd.context.device, Verb::ibv_advise_mr)?;
    let known = advice <= c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
    if !known || flags & !c::IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let writes = advice == c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    let access = if writes { c::IBV_ACCESS_LOCAL_WRITE } else { 0 };
    for segment in list {
        let length = segment.length.into();
        let opened = fabric.keys.local(segment.lkey, pd.number, segment.addr, length, access);
        opened.map_err(|_| libc::EFAULT)?;
    }
    Ok(())
}
