//! Memory regions: registration and deregistration.
#![expect(unsafe_code, reason = "the verbs of memory regions, called from C")]

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::MaybeUninit,
    os::fd::BorrowedFd,
    ptr,
};

use rdma_sys as c;

use crate::{
    domain::DomainRef,
    errno::{Outcome, errno, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    memory::{Backing, Keyed, Place, Region},
    verb::Verb,
};

const PAGE: u64 = 4096;

/// What is to be registered.
pub(crate) struct Request {
    pub(crate) verb: Verb,
    pub(crate) place: Place,
    pub(crate) iova: u64,
    pub(crate) length: usize,
    pub(crate) access: u32,
    pub(crate) backing: Backing,
    /// What `ibv_mr::addr` is to say.
    pub(crate) shown: *mut c_void,
}

/// See `ibv_reg_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut c::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut c::ibv_mr {
    let access = access.cast_unsigned();
    let iova = if access & c::IBV_ACCESS_ZERO_BASED == 0 { address_of(addr) } else { 0 };
    // SAFETY: the caller gives a live domain and memory that stays until deregistration.
    object(host(unsafe { DomainRef::of(pd) }, Verb::ibv_reg_mr, addr, length, iova, access))
}

/// See `ibv_reg_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut c::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut c::ibv_mr {
    // SAFETY: the two have the same contract.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// See `ibv_reg_mr(3)`: what the macro `ibv_reg_mr` calls for flags that old libraries do not know.
///
/// It counts as `ibv_reg_mr` where the address is its own, and else as `ibv_reg_mr_iova`.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut c::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut c::ibv_mr {
    let plain = iova == address_of(addr);
    let verb = if plain { Verb::ibv_reg_mr } else { Verb::ibv_reg_mr_iova };
    // SAFETY: the caller gives a live domain and memory that stays until deregistration.
    object(host(unsafe { DomainRef::of(pd) }, verb, addr, length, iova, access))
}

/// An address as work requests have it.
pub(crate) fn address_of(pointer: *mut c_void) -> u64 {
    u64::try_from(pointer.expose_provenance()).unwrap_or(u64::MAX)
}

pub(crate) fn host(
    pd: DomainRef,
    verb: Verb,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Outcome<*mut c::ibv_mr> {
    let place = Place::Host(addr.expose_provenance());
    register(
        pd,
        Request { verb, place, iova, length, access, backing: Backing::Caller, shown: addr },
        || {
            if access & c::IBV_ACCESS_ZERO_BASED == 0
                && !(address_of(addr) ^ iova).is_multiple_of(PAGE)
            {
                return Err(libc::EINVAL);
            }
            pin(addr, length, access)
        },
    )
}

/// Faults the pages in, as registration does, so that memory that is not there is refused now.
pub(crate) fn pin(addr: *mut c_void, length: usize, access: u32) -> Outcome {
    let page = usize::try_from(PAGE).map_err(|_| libc::EINVAL)?;
    let start = addr.addr() / page * page;
    let end = addr.addr().checked_add(length).ok_or(libc::EINVAL)?.next_multiple_of(page);
    let writes =
        c::IBV_ACCESS_LOCAL_WRITE | c::IBV_ACCESS_REMOTE_WRITE | c::IBV_ACCESS_REMOTE_ATOMIC;
    let advice =
        if access & writes == 0 { libc::MADV_POPULATE_READ } else { libc::MADV_POPULATE_WRITE };
    let start = ptr::without_provenance_mut(start);
    // SAFETY: populating pages changes none of them, and a range that is not mapped is refused.
    if unsafe { libc::madvise(start, end - start.addr(), advice) } == 0 {
        return Ok(());
    }
    match errno() {
        // Nothing is mapped there, or not for writing.
        libc::ENOMEM | libc::EFAULT | libc::EACCES => Err(libc::EFAULT),
        // An older kernel, or pages that it cannot populate, such as those of another device.
        _ => Ok(()),
    }
}

/// See `ibv_reg_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut c::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut c::ibv_mr {
    // SAFETY: the caller gives a live domain.
    object(dma_buf(unsafe { DomainRef::of(pd) }, offset, length, iova, fd, access.cast_unsigned()))
}

pub(crate) fn dma_buf(
    pd: DomainRef,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: u32,
) -> Outcome<*mut c::ibv_mr> {
    let shown = ptr::without_provenance_mut(usize::try_from(offset).map_err(|_| libc::EINVAL)?);
    let verb = Verb::ibv_reg_dmabuf_mr;
    if fd < 0 {
        return Err(libc::EBADF);
    }
    if !(offset ^ iova).is_multiple_of(PAGE) || length == 0 {
        return Err(libc::EINVAL);
    }
    let mapped = map(fd, offset, length, access);
    let size = u64::try_from(length).map_err(|_| libc::EINVAL)?;
    // SAFETY: the caller keeps the descriptor open during the call, and it is not -1.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let attached = fabric().attach(pd.context.device, file, (offset, size, iova), mapped.is_ok());
    if let (Err(_) | Ok(Some(_)), Ok(((start, size), _))) = (attached, mapped) {
        unmap(start, size);
    }
    let (backing, place) = match attached? {
        Some(attachment) => (Backing::Engine(attachment), Place::Engine { attachment, offset: 0 }),
        None => {
            let ((start, size), place) = mapped?;
            (Backing::Mapping(start, size), place)
        }
    };
    let request = Request { verb, place, iova, length, access, backing, shown };
    register(pd, request, || Ok(())).inspect_err(|_| fabric().give_back(backing))
}

/// Maps part of a file; the mapping, and where the part begins in it.
fn map(fd: c_int, offset: u64, length: usize, access: u32) -> Outcome<((usize, usize), Place)> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the place is as large as a `stat`.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } < 0 {
        return Err(errno());
    }
    // SAFETY: all zeros are a `stat`, and the call above filled it.
    let size = unsafe { stat.assume_init() }.st_size;
    let lead = offset % PAGE;
    let end =
        offset.checked_add(length.try_into().map_err(|_| libc::EINVAL)?).ok_or(libc::EINVAL)?;
    if i64::try_from(end).map_or(true, |end| end > size) {
        return Err(libc::EINVAL);
    }
    let start = libc::off_t::try_from(offset - lead).map_err(|_| libc::EINVAL)?;
    let lead = usize::try_from(lead).map_err(|_| libc::EINVAL)?;
    let writes =
        c::IBV_ACCESS_LOCAL_WRITE | c::IBV_ACCESS_REMOTE_WRITE | c::IBV_ACCESS_REMOTE_ATOMIC;
    let write = if access & writes == 0 { 0 } else { libc::PROT_WRITE };
    let protection = libc::PROT_READ | write;
    // SAFETY: a new mapping at an address that the kernel chooses touches nobody's memory.
    let address = unsafe {
        libc::mmap(ptr::null_mut(), lead + length, protection, libc::MAP_SHARED, fd, start)
    };
    if address == libc::MAP_FAILED {
        return Err(errno());
    }
    let address = address.expose_provenance();
    Ok(((address, lead + length), Place::Host(address + lead)))
}

pub(crate) fn unmap(address: usize, length: usize) {
    // SAFETY: the range is a mapping that `map` made, and its region is gone or was never made.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address), length) };
}

/// Adds a region that passes the checks common to all and then `check`.
pub(crate) fn register(
    pd: DomainRef,
    request: Request,
    check: impl FnOnce() -> Outcome,
) -> Outcome<*mut c::ibv_mr> {
    let Request { verb, place, iova, length, access, backing, shown } = request;
    let mut fabric = fabric();
    fabric.enter(pd.context.device, verb)?;
    check_access(access)?;
    let limits = fabric.limits(pd.context.device)?;
    let size = u64::try_from(length).map_err(|_| libc::EINVAL)?;
    if size == 0 || size > limits.max_mr_size || iova.checked_add(size).is_none() {
        return Err(libc::EINVAL);
    }
    let most = limits.max_mr;
    let regions = fabric.keys.contexts(|each| matches!(each, Keyed::Region(_)));
    fabric.within(most, regions, pd.context.device)?;
    check()?;
    fabric.join(pd)?;
    let region = Region::new(pd.context.number, pd.number, pd.holder, place);
    let number = fabric.keys.insert(Region { iova, length: size, access, backing, ..region });
    let region = fabric.keys.region(number).ok_or(libc::EINVAL)?;
    let raw = c::ibv_mr {
        context: pd.context.raw,
        pd: pd.raw,
        addr: shown,
        length,
        handle: number,
        lkey: region.lkey,
        rkey: region.rkey,
    };
    Ok(Handle::make(raw, number))
}

/// The rules between access flags: what a peer may write, the device must be able to write.
pub(crate) fn check_access(access: u32) -> Outcome {
    let known = c::IBV_ACCESS_LOCAL_WRITE
        | c::IBV_ACCESS_REMOTE_WRITE
        | c::IBV_ACCESS_REMOTE_READ
        | c::IBV_ACCESS_REMOTE_ATOMIC
        | c::IBV_ACCESS_MW_BIND
        | c::IBV_ACCESS_ZERO_BASED
        // Every page is there already.
        | c::IBV_ACCESS_ON_DEMAND
        | c::IBV_ACCESS_HUGETLB
        | c::IBV_ACCESS_FLUSH_GLOBAL
        | c::IBV_ACCESS_FLUSH_PERSISTENT
        | c::IB_UVERBS_ACCESS_OPTIONAL_RANGE;
    let remote = c::IBV_ACCESS_REMOTE_WRITE | c::IBV_ACCESS_REMOTE_ATOMIC;
    let writable = access & c::IBV_ACCESS_LOCAL_WRITE != 0;
    if access & !known != 0 || (access & remote != 0 && !writable) {
        Err(libc::EINVAL)
    } else {
        Ok(())
    }
}

/// See `ibv_reg_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut c::ibv_mr) -> c_int {
    // SAFETY: the caller gives a live region.
    let raw = unsafe { (*mr).context };
    // SAFETY: a region does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live region.
    let number = unsafe { Handle::number(mr) };
    let outcome = deregister(context, number);
    if outcome.is_ok() {
        // SAFETY: the region is gone and the caller gives it up.
        unsafe { Handle::free(mr) };
    }
    status(outcome)
}

fn deregister(context: ContextRef, number: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_dereg_mr)?;
    if let Some(control) = fabric.control(context.device)
        && control.failing_deregistrations > 0
    {
        control.failing_deregistrations -= 1;
        return Err(libc::EBUSY);
    }
    if fabric.keys.region(number).ok_or(libc::EINVAL)?.windows > 0 {
        return Err(libc::EBUSY);
    }
    let Some(Keyed::Region(region)) = fabric.keys.remove(number) else {
        return Err(libc::EINVAL);
    };
    fabric.leave(region.holder);
    fabric.give_back(region.backing);
    Ok(())
}

impl Fabric {
    /// Gives back what the bytes of a region were kept in.
    fn give_back(&mut self, backing: Backing) {
        match backing {
            Backing::Caller => {}
            Backing::Mapping(start, size) => unmap(start, size),
            Backing::Device(number) => self.release_memory(number),
            Backing::Engine(number) => self.detach(number),
        }
    }
}
