//! The C structs that callers hold, each with the number of the object it stands for.
#![expect(unsafe_code, reason = "hands out and takes back raw pointers to C structs")]

use rdma_sys as c;

use std::mem::offset_of;

/// A C struct with our number behind it, where the caller does not look.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Handle<T> {
    raw: T,
    number: u32,
}

impl<T> Handle<T> {
    /// Moves a struct to the heap, for a caller to hold.
    pub(crate) fn make(raw: T, number: u32) -> *mut T {
        Box::into_raw(Box::new(Self { raw, number })).cast()
    }

    /// The number behind a struct.
    ///
    /// # Safety
    ///
    /// `raw` came from [`Handle::make`] and was not freed.
    pub(crate) unsafe fn number(raw: *mut T) -> u32 {
        // SAFETY: the struct is the first field of a live handle, by the contract above.
        unsafe { (*raw.cast::<Self>()).number }
    }

    /// Frees the struct.
    ///
    /// # Safety
    ///
    /// As for [`Handle::number`], and nobody uses `raw` any more.
    pub(crate) unsafe fn free(raw: *mut T) {
        // SAFETY: it came from a box of this type, by the contract above.
        drop(unsafe { Box::from_raw(raw.cast::<Self>()) });
    }
}

/// An open context as callers hold it.
#[repr(C)]
pub(crate) struct ContextHandle {
    verbs: c::verbs_context,
    number: u32,
    device: u32,
}

/// Which context, and which device it is of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextRef {
    pub(crate) raw: *mut c::ibv_context,
    pub(crate) number: u32,
    pub(crate) device: u32,
}

impl ContextHandle {
    /// Moves a context to the heap, for a caller to hold.
    pub(crate) fn make(verbs: c::verbs_context, number: u32, device: u32) -> *mut c::ibv_context {
        let handle = Box::into_raw(Box::new(Self { verbs, number, device }));
        // SAFETY: the place is inside the box; nothing is read.
        unsafe { &raw mut (*handle).verbs.context }
    }

    /// Frees the context.
    ///
    /// # Safety
    ///
    /// `raw` came from [`ContextHandle::make`], was not freed, and nobody uses it any more.
    pub(crate) unsafe fn free(raw: *mut c::ibv_context) {
        // SAFETY: it came from a box of this type, by the contract above.
        drop(unsafe { Box::from_raw(Self::around(raw)) });
    }

    fn around(raw: *mut c::ibv_context) -> *mut Self {
        raw.wrapping_byte_sub(offset_of!(Self, verbs) + offset_of!(c::verbs_context, context))
            .cast()
    }
}

impl ContextRef {
    /// Which context a caller means.
    ///
    /// # Safety
    ///
    /// `raw` is an open context of this library.
    pub(crate) unsafe fn of(raw: *mut c::ibv_context) -> Self {
        // SAFETY: an open context is inside a live handle, and no call changes these fields.
        let handle = unsafe { &*ContextHandle::around(raw) };
        Self { raw, number: handle.number, device: handle.device }
    }
}
