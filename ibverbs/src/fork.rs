//! Processes that fork while memory is registered.
#![expect(unsafe_code, reason = "calls verbs without an object")]

use crate::{Result, error::verb};

/// Whether a process with registered memory may fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkSupport {
    /// It may not: after a fork, copy-on-write moves pages away from under the device.
    Disabled,
    /// [`protect_forks`] was called: registered pages are not given to children.
    Enabled,
    /// The kernel (5.12 and later) copies pinned pages for the child; nothing need be done.
    Unneeded,
}

/// Makes forking safe for memory that is registered from now on. Call it before the first device is opened.
///
/// Registered pages, rounded out to whole pages, are then missing in children; each registration costs an
/// `madvise(2)`. Newer kernels do not need it: see [`fork_support`].
///
/// # Errors
///
/// [`Error::Verb`](crate::Error::Verb), `EINVAL` if memory is registered already. See `ibv_fork_init(3)`.
#[doc(alias = "ibv_fork_init")]
pub fn protect_forks() -> Result<()> {
    protect_forks_of(rdma_sys::Library::system()?)
}

/// As [`protect_forks`], for the devices of a given library.
///
/// # Errors
///
/// As for [`protect_forks`].
#[doc(alias = "ibv_fork_init")]
pub fn protect_forks_of(library: &'static rdma_sys::Library) -> Result<()> {
    let (verb, init) = verb!(library, ibv_fork_init)?;
    // SAFETY: no arguments; the call checks its own preconditions.
    verb.status(unsafe { init() })
}

/// Whether this process may fork while memory is registered.
///
/// # Errors
///
/// [`Error::Unsupported`](crate::Error::Unsupported) before rdma-core 35. See `ibv_is_fork_initialized(3)`.
#[doc(alias = "ibv_is_fork_initialized")]
pub fn fork_support() -> Result<ForkSupport> {
    fork_support_of(rdma_sys::Library::system()?)
}

/// As [`fork_support`], for the devices of a given library.
///
/// # Errors
///
/// As for [`fork_support`].
#[doc(alias = "ibv_is_fork_initialized")]
pub fn fork_support_of(library: &'static rdma_sys::Library) -> Result<ForkSupport> {
    let (_, status) = verb!(library, ibv_is_fork_initialized)?;
    // SAFETY: no arguments and no preconditions.
    Ok(match unsafe { status() } {
        rdma_sys::IBV_FORK_ENABLED => ForkSupport::Enabled,
        rdma_sys::IBV_FORK_UNNEEDED => ForkSupport::Unneeded,
        _ => ForkSupport::Disabled,
    })
}
