//! Protection domains: what may work together.
#![expect(unsafe_code, reason = "owns an ibv_pd")]

use std::ptr::NonNull;

use crate::{Context, Parent, Result, error::verb};

/// The objects of one domain may be used with one another: queue pairs, regions, address handles.
#[derive(Debug)]
pub struct ProtectionDomain<'a> {
    /// From `ibv_alloc_pd` or `ibv_import_pd` on `context`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_pd>,
    /// Whether it belongs to another process.
    imported: bool,
    context: Parent<'a, Context>,
}

impl Context {
    /// Makes a protection domain that borrows this context. Enters the kernel, allocates.
    ///
    /// Use [`ProtectionDomain::allocate`] with an `Arc` for one that can be stored beside its context.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb), `ENOMEM` over the device's limit. See `ibv_alloc_pd(3)`.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn allocate_protection_domain(&self) -> Result<ProtectionDomain<'_>> {
        ProtectionDomain::allocate(self)
    }
}

impl<'a> ProtectionDomain<'a> {
    /// Makes a protection domain of a context, borrowed (`&context`) or shared (`&Arc<Context>`).
    ///
    /// # Errors
    ///
    /// As for [`Context::allocate_protection_domain`].
    #[doc(alias = "ibv_alloc_pd")]
    pub fn allocate(context: impl Into<Parent<'a, Context>>) -> Result<Self> {
        let context = context.into();
        let (verb, allocate) = verb!(context.library(), ibv_alloc_pd)?;
        // SAFETY: the context is open as long as `context` is held.
        let raw = verb.object(unsafe { allocate(context.as_raw()) })?;
        Ok(Self { raw, imported: false, context })
    }

    /// Takes over a domain that is freed by `ibv_dealloc_pd`.
    ///
    /// # Safety
    ///
    /// `raw` was made on `context`, and nobody else frees it.
    pub(crate) unsafe fn from_raw(
        raw: NonNull<rdma_sys::ibv_pd>,
        context: Parent<'a, Context>,
    ) -> Self {
        Self { raw, imported: false, context }
    }

    /// Takes over a domain that was imported.
    ///
    /// # Safety
    ///
    /// `raw` came from `ibv_import_pd` on `context`, and nobody else gives it back.
    pub(crate) unsafe fn from_imported(
        raw: NonNull<rdma_sys::ibv_pd>,
        context: Parent<'a, Context>,
    ) -> Self {
        Self { raw, imported: true, context }
    }

    /// The device it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device it belongs to, for a child that is as long-lived.
    pub(crate) fn context_parent(&self) -> Parent<'a, Context> {
        self.context.again()
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for ProtectionDomain<'_> {
    fn drop(&mut self) {
        if self.imported {
            if let Ok((_, unimport)) = verb!(self.context.library(), ibv_unimport_pd) {
                // SAFETY: `raw` is live and nothing reads it after this; it lives on where it came from.
                unsafe { unimport(self.as_raw()) };
            }
            return;
        }
        if let Ok((verb, free)) = verb!(self.context.library(), ibv_dealloc_pd) {
            // SAFETY: `raw` is live and nothing reads it after this. While a leaked child is left the
            // call is refused, ibv_dealloc_pd(3).
            verb.log_refusal(unsafe { free(self.as_raw()) });
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for ProtectionDomain<'_> {}
// SAFETY: as for `Send`; each `&self` method is one verb.
unsafe impl Sync for ProtectionDomain<'_> {}
