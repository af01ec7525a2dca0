//! Memory of the device: allocated there, and reached by keys or by copying.
#![expect(unsafe_code, reason = "the verbs of device memory, called from C")]

use std::{
    ffi::{c_int, c_uint, c_void},
    os::fd::{AsRawFd, OwnedFd},
    ptr,
};

use rdma_sys as c;

use crate::{
    context::descriptor,
    domain::DomainRef,
    errno::{Outcome, errno, minus_one, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    memory::{Backing, Place},
    region::{Request, register, unmap},
    transfer::copy_host,
    verb::Verb,
};

/// A piece of device memory. It is a file, so that it can be exported as one.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) context: u32,
    file: OwnedFd,
    address: usize,
    length: usize,
    /// Regions over it, each of which keeps it.
    regions: u32,
    /// Its owner gave it up.
    freed: bool,
}

/// See `ibv_alloc_dm(3)`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_alloc_dm_attr,
) -> *mut c::ibv_dm {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    object(allocate(context, unsafe { &*attr }))
}

fn allocate(context: ContextRef, attr: &c::ibv_alloc_dm_attr) -> Outcome<*mut c::ibv_dm> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_alloc_dm)?;
    let most = fabric.limits(context.device)?.max_dm_size;
    let used: usize = fabric
        .memories
        .iter()
        .filter(|(_, each)| {
            fabric.contexts.get(each.context).is_some_and(|at| at.device == context.device)
        })
        .map(|(_, each)| each.length)
        .sum();
    let wanted = used.checked_add(attr.length).and_then(|total| u64::try_from(total).ok());
    if attr.length == 0 || attr.comp_mask != 0 || attr.log_align_req > 12 {
        return Err(libc::EINVAL);
    }
    if wanted.is_none_or(|wanted| wanted > most) {
        return Err(libc::ENOMEM);
    }
    let (file, address) = file_of(attr.length)?;
    let number = fabric.memories.insert_with(|_| DeviceMemory {
        context: context.number,
        file,
        address,
        length: attr.length,
        regions: 0,
        freed: false,
    });
    Ok(handle(context, number))
}

/// A struct for device memory.
pub(crate) fn handle(context: ContextRef, number: u32) -> *mut c::ibv_dm {
    let raw = c::ibv_dm {
        context: context.raw,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: c::IBV_DM_MASK_HANDLE,
        handle: number,
    };
    Handle::make(raw, number)
}

/// A new file of zeros and the address of its bytes.
fn file_of(length: usize) -> Outcome<(OwnedFd, usize)> {
    let file = descriptor(c"device-memory")?;
    let fd = file.as_raw_fd();
    let size = libc::off_t::try_from(length).map_err(|_| libc::EINVAL)?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::ftruncate(fd, size) } < 0 {
        return Err(errno());
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches nobody's memory.
    let address =
        unsafe { libc::mmap(ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, 0) };
    if address == libc::MAP_FAILED { Err(errno()) } else { Ok((file, address.expose_provenance())) }
}

/// A piece of device memory as a caller names it.
///
/// # Safety
///
/// `dm` is live device memory of this library.
unsafe fn named(dm: *mut c::ibv_dm) -> (ContextRef, u32) {
    // SAFETY: live, by the contract above.
    let raw = unsafe { (*dm).context };
    // SAFETY: it does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: live, by the contract above.
    (context, unsafe { Handle::number(dm) })
}

/// See `ibv_alloc_dm(3)`: `EBUSY` while a region is over it.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut c::ibv_dm) -> c_int {
    // SAFETY: the caller gives live device memory.
    let (context, number) = unsafe { named(dm) };
    let mut fabric = fabric();
    let outcome = fabric.enter(context.device, Verb::ibv_free_dm).and_then(|()| {
        let memory = fabric.memories.get_mut(number).ok_or(libc::EINVAL)?;
        if memory.regions > 0 {
            return Err(libc::EBUSY);
        }
        memory.freed = true;
        fabric.drop_memory(number);
        Ok(())
    });
    if outcome.is_ok() {
        // SAFETY: the memory is gone and the caller gives it up.
        unsafe { Handle::free(dm) };
    }
    status(outcome)
}

/// See `ibv_alloc_dm(3)`.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut c::ibv_dm,
    offset: u64,
    host: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller gives live device memory.
    let (context, number) = unsafe { named(dm) };
    let host = host.expose_provenance();
    let mut fabric = fabric();
    let entered = fabric.enter(context.device, Verb::ibv_memcpy_to_dm);
    status(entered.and_then(|()| fabric.part(number, offset, length)).map(|part| {
        // SAFETY: the caller gives `length` bytes, and the part was checked under this lock.
        unsafe { copy_host(host, part, length) };
    }))
}

/// See `ibv_alloc_dm(3)`.
unsafe extern "C" fn memcpy_from_dm(
    host: *mut c_void,
    dm: *mut c::ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller gives live device memory.
    let (context, number) = unsafe { named(dm) };
    let host = host.expose_provenance();
    let mut fabric = fabric();
    let entered = fabric.enter(context.device, Verb::ibv_memcpy_from_dm);
    status(entered.and_then(|()| fabric.part(number, offset, length)).map(|part| {
        // SAFETY: the caller gives `length` bytes, and the part was checked under this lock.
        unsafe { copy_host(part, host, length) };
    }))
}

/// See `ibv_alloc_dm(3)`: such a region is addressed from 0 and says so in its access.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut c::ibv_pd,
    dm: *mut c::ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut c::ibv_mr {
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(pd) };
    // SAFETY: the caller gives live device memory.
    let (_, number) = unsafe { named(dm) };
    object(register_part(pd, number, offset, length, access))
}

fn register_part(
    pd: DomainRef,
    number: u32,
    offset: u64,
    length: usize,
    access: u32,
) -> Outcome<*mut c::ibv_mr> {
    if access & c::IBV_ACCESS_ZERO_BASED == 0 {
        return Err(libc::EINVAL);
    }
    let part = {
        let mut fabric = fabric();
        let part = fabric.part(number, offset, length)?;
        fabric.memories.get_mut(number).ok_or(libc::EINVAL)?.regions += 1;
        part
    };
    let request = Request {
        verb: Verb::ibv_reg_dm_mr,
        place: Place::Host(part),
        iova: 0,
        length,
        access,
        backing: Backing::Device(number),
        shown: ptr::null_mut(),
    };
    register(pd, request, || Ok(())).inspect_err(|_| fabric().release_memory(number))
}

/// See `ibv_dm_export_dmabuf_fd(3)`: -1 with `errno` set on failure.
pub(crate) unsafe extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut c::ibv_dm) -> c_int {
    // SAFETY: the caller gives live device memory.
    let (context, number) = unsafe { named(dm) };
    let mut fabric = fabric();
    let copied = fabric.enter(context.device, Verb::ibv_dm_export_dmabuf_fd).and_then(|()| {
        let memory = fabric.memories.get(number).ok_or(libc::EINVAL)?;
        // SAFETY: the descriptor is open while the memory is there.
        let fd = unsafe { libc::fcntl(memory.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if fd < 0 { Err(errno()) } else { Ok(fd) }
    });
    copied.unwrap_or_else(|code| minus_one(Err(code)))
}

impl Fabric {
    /// The address of a part of device memory, if it is inside.
    fn part(&self, number: u32, offset: u64, length: usize) -> Outcome<usize> {
        let memory = self.memories.get(number).ok_or(libc::EINVAL)?;
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        let end = offset.checked_add(length).ok_or(libc::EINVAL)?;
        if end > memory.length {
            return Err(libc::EINVAL);
        }
        Ok(memory.address + offset)
    }

    /// A region over device memory is gone.
    pub(crate) fn release_memory(&mut self, number: u32) {
        if let Some(memory) = self.memories.get_mut(number) {
            memory.regions -= 1;
        }
        self.drop_memory(number);
    }

    /// Frees device memory that nobody has any more.
    fn drop_memory(&mut self, number: u32) {
        let gone = |memory: &DeviceMemory| memory.freed && memory.regions == 0;
        if self.memories.get(number).is_some_and(gone)
            && let Some(memory) = self.memories.remove(number)
        {
            unmap(memory.address, memory.length);
        }
    }
}
