//! The return conventions of the verbs.
#![expect(unsafe_code, reason = "errno is a place in the C library")]

use std::{ffi::c_int, ptr};

/// What a verb did, or the errno with which it refused.
pub(crate) type Outcome<T = ()> = Result<T, c_int>;

/// Sets `errno` of the calling thread.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the function has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place belongs to this thread for as long as it runs.
    unsafe { *place = code };
}

/// `errno` of the calling thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the function has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place belongs to this thread for as long as it runs.
    unsafe { *place }
}

/// An object, or null with `errno` set.
pub(crate) fn object<T>(outcome: Outcome<*mut T>) -> *mut T {
    outcome.unwrap_or_else(|code| {
        set_errno(code);
        ptr::null_mut()
    })
}

/// 0, or the errno as a value.
pub(crate) fn status(outcome: Outcome) -> c_int {
    outcome.err().unwrap_or(0)
}

/// 0, or -1 with `errno` set.
pub(crate) fn minus_one(outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(code) => {
            set_errno(code);
            -1
        }
    }
}
