//! A region without memory: what is written there is dropped.
#![expect(unsafe_code, reason = "owns an ibv_mr without memory")]

use std::mem::ManuallyDrop;

use crate::{Access, ForeignMemory, MemoryRegion, Parent, ProtectionDomain, Region, Result, Verb};

impl<'a> MemoryRegion<'a, ForeignMemory> {
    /// Makes a region without memory: what a scatter list puts into it is dropped, what a gather list takes from it is
    /// undefined bytes. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has none. See `ibv_alloc_null_mr(3)`.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null(domain: impl Into<Parent<'a, ProtectionDomain<'a>>>) -> Result<Self> {
        let domain = domain.into();
        let library = domain.context().library();
        let verb = Verb::new("ibv_alloc_null_mr");
        // SAFETY: the domain is live as long as it is held.
        let raw =
            verb.object(verb.find(unsafe { rdma_sys::ibv_alloc_null_mr(domain.as_raw()) })?)?;
        // SAFETY: just made; it covers every address and no byte.
        let region =
            unsafe { Region::new(raw, library, (0, usize::MAX), Access::LOCAL_WRITE, None) };
        let region = region.unknown_to_the_kernel();
        // SAFETY: the registration is this domain's, and nothing is owned.
        Ok(unsafe { Self::from_parts(region, ManuallyDrop::new(ForeignMemory::nothing()), domain) })
    }
}
