//! Objects of another process, shared with it through the device's file descriptor.
//!
//! One process opens the device and sends a duplicate of its [command descriptor](Context::command_fd) and the handles of
//! its domains and regions to another (over a Unix socket, say), which imports them. The exporting process must keep
//! what it exported alive: an imported object does not.
#![expect(unsafe_code, reason = "imports kernel objects by their handles")]

use std::{
    os::fd::{BorrowedFd, IntoRawFd, OwnedFd},
    ptr::NonNull,
};

use crate::{Context, LocalKey, Parent, ProtectionDomain, Region, RemoteKey, Result, error::verb};

impl Context {
    /// The descriptor of the open device, to be duplicated and sent to another process.
    ///
    /// Whoever has it can use every object of this context.
    #[must_use]
    pub fn command_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `raw` is live; the field is constant after opening.
        let descriptor = unsafe { (*self.as_raw()).cmd_fd };
        // SAFETY: the descriptor stays open while the context does.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }

    /// Opens a device that another process has open, by its command descriptor. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the provider cannot, or the descriptor is of no device. Some failures leave
    /// the descriptor open. See `ibv_import_device(3)`.
    #[doc(alias = "ibv_import_device")]
    pub fn import(library: &'static rdma_sys::Library, descriptor: OwnedFd) -> Result<Self> {
        let (verb, import) = verb!(library, ibv_import_device)?;
        // SAFETY: any descriptor may be passed. It is the call's from here on, and the context's after a success. After a
        // failure it is not closed here: providers that fail late have closed it, and its number may be another's by now.
        let raw = verb.object(unsafe { import(descriptor.into_raw_fd()) })?;
        // SAFETY: just opened by this library.
        unsafe { Self::from_raw(raw, library) }
    }
}

impl<'a> ProtectionDomain<'a> {
    /// The number by which another process that imported this context imports this domain.
    #[must_use]
    pub fn handle(&self) -> u32 {
        // SAFETY: `raw` is live, and the handle does not change.
        unsafe { (*self.as_raw()).handle }
    }

    /// Makes a domain of another process usable here. It must stay alive there.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the provider cannot. See `ibv_import_pd(3)`.
    #[doc(alias = "ibv_import_pd")]
    #[doc(alias = "ibv_unimport_pd")]
    pub fn import(context: impl Into<Parent<'a, Context>>, handle: u32) -> Result<Self> {
        let context = context.into();
        let (verb, import) = verb!(context.library(), ibv_import_pd)?;
        // SAFETY: the context is open as long as `context` is held.
        let raw = verb.object(unsafe { import(context.as_raw(), handle) })?;
        // SAFETY: just imported on this context.
        Ok(unsafe { Self::from_imported(raw, context) })
    }
}

impl Region {
    /// The number by which another process that imported the domain imports this region.
    #[must_use]
    pub fn handle(&self) -> u32 {
        // SAFETY: `raw` is live, and the handle does not change.
        unsafe { (*self.as_raw()).handle }
    }
}

/// The keys of a region of another process, in a domain that was imported from it.
///
/// Its memory is the other process's: name it in requests by the addresses that process tells, as with any
/// peer's memory.
#[derive(Debug)]
pub struct ImportedRegion<'a> {
    /// From `ibv_import_mr` on `domain`; given back only by drop.
    raw: NonNull<rdma_sys::ibv_mr>,
    domain: Parent<'a, ProtectionDomain<'a>>,
}

impl<'a> ImportedRegion<'a> {
    /// Makes a region of another process known here. It must stay alive there.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the provider cannot. See `ibv_import_mr(3)`.
    #[doc(alias = "ibv_import_mr")]
    #[doc(alias = "ibv_unimport_mr")]
    pub fn import(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        handle: u32,
    ) -> Result<Self> {
        let domain = domain.into();
        let (verb, import) = verb!(domain.context().library(), ibv_import_mr)?;
        // SAFETY: the domain is live as long as it is held.
        let raw = verb.object(unsafe { import(domain.as_raw(), handle) })?;
        Ok(Self { raw, domain })
    }

    /// The key for this side's work requests.
    #[must_use]
    pub fn local_key(&self) -> LocalKey {
        // SAFETY: `raw` is live, and the keys of a region do not change.
        LocalKey(unsafe { self.raw.as_ref() }.lkey)
    }

    /// The key for peers.
    #[must_use]
    pub fn remote_key(&self) -> RemoteKey {
        // SAFETY: `raw` is live, and the keys of a region do not change.
        RemoteKey(unsafe { self.raw.as_ref() }.rkey)
    }
}

impl Drop for ImportedRegion<'_> {
    fn drop(&mut self) {
        if let Ok((_, unimport)) = verb!(self.domain.context().library(), ibv_unimport_mr) {
            // SAFETY: `raw` is live, and nothing reads it after this.
            unsafe { unimport(self.raw.as_ptr()) };
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for ImportedRegion<'_> {}
// SAFETY: as for `Send`; only constants are read.
unsafe impl Sync for ImportedRegion<'_> {}
