//! Memory on the device itself.
#![expect(unsafe_code, reason = "owns an ibv_dm")]

mod export;

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::{Range, RangeBounds},
    ptr::NonNull,
};

use crate::{
    Access, Buffer, Context, Error, MemoryRegion, Parent, ProtectionDomain, Region, Result, Verb,
    bounds, memory_region::check_length,
};

/// Memory on the device: reached without crossing the bus, good for counters and small hot data.
///
/// The CPU reaches it by copying, which crosses the bus. Freed when dropped.
///
/// # Examples
///
/// ```
/// use ibverbs::{Access, Context, DeviceMemory, MemoryRegion, ProtectionDomain};
///
/// /// A counter on the device that peers add to.
/// fn counter<'a>(
///     context: &'a Context,
///     domain: &'a ProtectionDomain<'a>,
/// ) -> ibverbs::Result<MemoryRegion<'a, DeviceMemory<'a>>> {
///     let memory = DeviceMemory::allocate(context, 8, 3)?;
///     memory.write(0, &0_u64.to_ne_bytes())?;
///     let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
///     MemoryRegion::register_device_memory(domain, memory, .., access)
/// }
/// ```
pub struct DeviceMemory<'a> {
    /// From `ibv_alloc_dm` on `context`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_dm>,
    length: usize,
    context: Parent<'a, Context>,
}

impl<'a> DeviceMemory<'a> {
    /// Allocates `length` bytes on a device, aligned to `2^alignment_exponent`. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no memory to give, [`Error::Verb`] with `ENOMEM` if it has too
    /// little. [`DeviceAttributes::device_memory_length`](crate::DeviceAttributes::device_memory_length) says how much there is. See `ibv_alloc_dm(3)`.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn allocate(
        context: impl Into<Parent<'a, Context>>,
        length: usize,
        alignment_exponent: u32,
    ) -> Result<Self> {
        let context = context.into();
        let verb = Verb::new("ibv_alloc_dm");
        let mut attributes =
            rdma_sys::ibv_alloc_dm_attr { length, log_align_req: alignment_exponent, comp_mask: 0 };
        // SAFETY: the context is open as long as `context` is held.
        let raw = unsafe { rdma_sys::ibv_alloc_dm(context.as_raw(), &raw mut attributes) };
        Ok(Self { raw: verb.object(verb.find(raw)?)?, length, context })
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes to the device. Some devices want offset and length to be multiples of 4.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if they reach past the end, [`Error::Verb`] if the device refuses. See
    /// `ibv_memcpy_to_dm(3)`.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check(offset, from.len())?;
        let verb = Verb::new("ibv_memcpy_to_dm");
        // SAFETY: `raw` is live; a table entry that does not change.
        let copy = verb.find(unsafe { (*self.raw.as_ptr()).memcpy_to_dm })?;
        let (dm, bytes) = (self.raw.as_ptr(), from.as_ptr().cast());
        // SAFETY: the range lies inside, and `from` is readable.
        verb.status(unsafe { copy(dm, offset as u64, bytes, from.len()) })
    }

    /// Copies bytes from the device.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write). See `ibv_memcpy_from_dm(3)`.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.check(offset, to.len())?;
        let verb = Verb::new("ibv_memcpy_from_dm");
        // SAFETY: `raw` is live; a table entry that does not change.
        let copy = verb.find(unsafe { (*self.raw.as_ptr()).memcpy_from_dm })?;
        let (dm, bytes) = (self.raw.as_ptr(), to.as_mut_ptr().cast());
        // SAFETY: the range lies inside, and `to` is writable.
        verb.status(unsafe { copy(bytes, dm, offset as u64, to.len()) })
    }

    fn check(&self, offset: usize, length: usize) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            end => Err(Error::OutOfBounds {
                what: "the device memory",
                start: offset as u64,
                end: end.unwrap_or(usize::MAX) as u64,
                length: self.length as u64,
            }),
        }
    }
}

impl<'a> MemoryRegion<'a, DeviceMemory<'a>> {
    /// Registers a part of device memory, which the region owns. Its addresses count from 0.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty range, and if the memory and the domain are of different contexts, [`Error::OutOfBounds`] if the range does not
    /// lie inside, [`Error::Verb`] if the device refuses. See `ibv_reg_dm_mr(3)`.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_device_memory(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        memory: DeviceMemory<'a>,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<Self> {
        access.check_for_region()?;
        let Range { start, end } = bounds::inside("the device memory", range, memory.length)?;
        let length = end - start;
        check_length(length)?;
        let domain = domain.into();
        if memory.context.as_raw() != domain.context().as_raw() {
            return Err(Error::Invalid {
                what: "device memory and the domain to register it in are of different contexts"
                    .into(),
                remedy: "make both from one `Context`",
            });
        }
        let library = domain.context().library();
        let access = access | Access::ZERO_BASED;
        let verb = Verb::new("ibv_reg_dm_mr");
        let (pd, dm, start) = (domain.as_raw(), memory.raw.as_ptr(), start as u64);
        // SAFETY: domain and memory are live and of one context, and the range lies inside.
        let raw = unsafe { rdma_sys::ibv_reg_dm_mr(pd, dm, start, length, access.bits()) };
        let raw = verb.object(verb.find(raw)?)?;
        // SAFETY: just registered; the CPU does not reach it.
        let region = unsafe { Region::new(raw, library, (0, length), access, None) };
        // SAFETY: the registration is of this memory, in this domain.
        Ok(unsafe { Self::from_parts(region, ManuallyDrop::new(memory.into_raw()), domain) })
    }
}

impl Drop for DeviceMemory<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` is live, and nothing reads it after this.
        if let Some(returned) = unsafe { rdma_sys::ibv_free_dm(self.raw.as_ptr()) } {
            Verb::new("ibv_free_dm").log_refusal(returned);
        }
    }
}

// SAFETY: the memory is found by a pointer into the provider and not freed by dropping `ManuallyDrop`.
unsafe impl Buffer for DeviceMemory<'_> {
    type Raw = ManuallyDrop<Self>;

    fn into_raw(self) -> Self::Raw {
        ManuallyDrop::new(self)
    }

    unsafe fn from_raw(raw: Self::Raw) -> Self {
        ManuallyDrop::into_inner(raw)
    }
}

impl fmt::Debug for DeviceMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("length", &self.length)
            .field("device", self.context.device())
            .finish_non_exhaustive()
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for DeviceMemory<'_> {}
// SAFETY: as for `Send`; each `&self` method is one verb.
unsafe impl Sync for DeviceMemory<'_> {}
