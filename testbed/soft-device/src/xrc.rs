//! XRC domains: what the receiving side of an extended reliable connection shares.
#![expect(unsafe_code, reason = "the verbs of XRC domains, called from C")]

use std::{ffi::c_int, mem::MaybeUninit};

use rdma_sys as c;

use crate::{
    errno::{Outcome, errno, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    verb::Verb,
};

/// An XRC domain.
#[derive(Debug)]
pub(crate) struct XrcDomain {
    pub(crate) context: u32,
    /// Device and inode of the file that it is shared by.
    file: Option<(u64, u64)>,
    /// Shared receive queues and queue pairs in it.
    pub(crate) users: u32,
    /// How often it is open.
    handles: u32,
}

/// See `ibv_open_xrcd(3)`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_xrcd_init_attr,
) -> *mut c::ibv_xrcd {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    object(open(context, unsafe { &*attr }))
}

fn open(context: ContextRef, attr: &c::ibv_xrcd_init_attr) -> Outcome<*mut c::ibv_xrcd> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_open_xrcd)?;
    let whole = c::IBV_XRCD_INIT_ATTR_FD | c::IBV_XRCD_INIT_ATTR_OFLAGS;
    if attr.comp_mask != whole || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
        return Err(libc::EINVAL);
    }
    let file = if attr.fd == -1 { None } else { Some(inode(attr.fd)?) };
    let there = file.and_then(|file| {
        let known = fabric.xrc_domains.iter().find(|(_, each)| each.file == Some(file));
        known.map(|(number, _)| number)
    });
    let number = match there {
        Some(_) if attr.oflags & libc::O_EXCL != 0 => return Err(libc::EINVAL),
        Some(number) => {
            fabric.xrc_domains.get_mut(number).ok_or(libc::EINVAL)?.handles += 1;
            number
        }
        None if attr.oflags & libc::O_CREAT == 0 => return Err(libc::EAGAIN),
        None => fabric.xrc_domains.insert_with(|_| XrcDomain {
            context: context.number,
            file,
            users: 0,
            handles: 1,
        }),
    };
    Ok(Handle::make(c::ibv_xrcd { context: context.raw }, number))
}

/// Device and inode of an open file.
pub(crate) fn inode(fd: c_int) -> Outcome<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the place is as large as a `stat`.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } < 0 {
        return Err(errno());
    }
    // SAFETY: all zeros are a `stat`, and the call above filled it.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

/// See `ibv_open_xrcd(3)`: `EBUSY` while a queue or a pair is in it and nobody else has it open.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut c::ibv_xrcd) -> c_int {
    // SAFETY: the caller gives a live domain.
    let raw = unsafe { (*xrcd).context };
    // SAFETY: a domain does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live domain.
    let number = unsafe { Handle::number(xrcd) };
    let outcome = close(context, number);
    if outcome.is_ok() {
        // SAFETY: the domain is closed and the caller gives it up.
        unsafe { Handle::free(xrcd) };
    }
    status(outcome)
}

fn close(context: ContextRef, number: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_close_xrcd)?;
    let domain = fabric.xrc_domains.get_mut(number).ok_or(libc::EINVAL)?;
    if domain.handles == 1 && domain.users > 0 {
        return Err(libc::EBUSY);
    }
    domain.handles -= 1;
    if domain.handles == 0 {
        fabric.xrc_domains.remove(number);
    }
    Ok(())
}

impl Fabric {
    /// Counts a queue or a pair off that was in an XRC domain.
    pub(crate) fn leave_xrc_domain(&mut self, number: u32) {
        if let Some(domain) = self.xrc_domains.get_mut(number) {
            domain.users -= 1;
        }
    }
}
