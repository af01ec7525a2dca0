//! Memory whose pages are fetched when a device asks for them, and advice about it.
#![expect(
    unsafe_code,
    reason = "advises about registered memory, registers the whole address space"
)]

use std::{ffi::c_void, mem::ManuallyDrop, ptr};

use crate::{
    Access, Buffer, MemoryRegion, ProtectionDomain, Region, Result, Segment, Verb, error::verb,
};

/// How to prepare pages of on-demand memory for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefetch {
    /// For reading.
    Read,
    /// For reading and writing.
    Write,
    /// Only pages that the CPU has already; fetches none.
    Present,
}

/// Whether to wait for a prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefetchMode {
    /// Returns at once; the pages come later.
    Start,
    /// Returns when the pages are there.
    Wait,
}

impl ProtectionDomain<'_> {
    /// Prepares parts of regions that were registered with [`Access::ON_DEMAND`], so that the first transfer does not
    /// wait for their pages. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) or `EOPNOTSUPP` if the device cannot, `EFAULT` if a region is not
    /// on-demand or not writable, `EPERM` if one belongs to another domain. See `ibv_advise_mr(3)`.
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch(
        &self,
        segments: &[Segment<'_>],
        access: Prefetch,
        mode: PrefetchMode,
    ) -> Result<()> {
        let verb = Verb::new("ibv_advise_mr");
        let advice = match access {
            Prefetch::Read => rdma_sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
            Prefetch::Write => rdma_sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
            Prefetch::Present => rdma_sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
        };
        let flags = match mode {
            PrefetchMode::Start => 0,
            PrefetchMode::Wait => rdma_sys::IB_UVERBS_ADVISE_MR_FLAG_FLUSH,
        };
        let count = u32::try_from(segments.len()).unwrap_or(u32::MAX);
        let list = segments.as_ptr().cast::<rdma_sys::ibv_sge>().cast_mut();
        // SAFETY: the domain is live; a segment has the layout of `ibv_sge`, and the call only reads them.
        let returned =
            unsafe { rdma_sys::ibv_advise_mr(self.as_raw(), advice, flags, list, count) };
        verb.status(verb.find(returned)?)
    }

    /// Registers the whole address space of the process, pages fetched on demand.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the device does not have implicit on-demand paging. See `ibv_reg_mr(3)`.
    ///
    /// # Safety
    ///
    /// Until the region is dropped, requests of this process, and with remote access those of peers, can name any memory
    /// of the process. Whoever makes [`Segment`]s of the region or publishes its key must see to it that the memory they
    /// name stays allocated and that no reference to it exists while a device may write it.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_address_space(
        &self,
        access: Access,
    ) -> Result<MemoryRegion<'_, AddressSpace>> {
        access.check_for_region()?;
        let access = access | Access::ON_DEMAND;
        let library = self.context().library();
        let (verb, register) = verb!(library, ibv_reg_mr)?;
        let (start, everything) = (ptr::null_mut::<c_void>(), usize::MAX);
        // SAFETY: the domain is live; address 0 with this length means the whole address space, which the
        // caller vouches for.
        let raw =
            unsafe { register(self.as_raw(), start, everything, access.bits().cast_signed()) };
        let raw = verb.object(raw)?;
        // SAFETY: just registered; the device calls each byte by its address.
        let region = unsafe { Region::new(raw, library, (0, everything), access, None) };
        // SAFETY: the registration is this domain's, and nothing is owned.
        Ok(unsafe { MemoryRegion::from_parts(region, ManuallyDrop::new(AddressSpace(())), self) })
    }
}

/// All memory of the process, owned by nobody in particular.
#[derive(Debug)]
pub struct AddressSpace(());

// SAFETY: nothing is owned, so nothing is freed.
unsafe impl Buffer for AddressSpace {
    type Raw = Self;

    fn into_raw(self) -> Self {
        self
    }

    unsafe fn from_raw(raw: Self) -> Self {
        raw
    }
}
