//! Memory regions that own their buffer.
//!
//! The region is what makes posting safe: it frees its buffer only after `ibv_dereg_mr` returned 0, when no device
//! reaches the pages any more. Whatever else is dropped, leaked or forgotten in whatever order cannot make a
//! device write to freed memory. If deregistration is refused the buffer is leaked.
#![expect(unsafe_code, reason = "registers memory with a device")]

use std::{
    ffi::c_void,
    fmt,
    mem::ManuallyDrop,
    ops::Deref,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    slice,
};

use crate::{
    Access, Buffer, CloseError, Error, HostBuffer, Parent, ProtectionDomain, Region, Result,
    SharedBytes, error::verb,
};

/// A buffer that a device, and with the right access its peers, can reach.
///
/// Dereferences to [`Region`]: segments, keys, the handle for peers. Register long-lived memory once; each
/// registration enters the kernel and pins pages.
pub struct MemoryRegion<'a, B: Buffer> {
    /// Deregistered exactly once, before `buffer` is put together again.
    region: Region,
    buffer: ManuallyDrop<B::Raw>,
    domain: Parent<'a, ProtectionDomain<'a>>,
}

impl ProtectionDomain<'_> {
    /// Registers a buffer: `Vec<u8>`, `Vec<f32>`, `Box<[u64]>`, [`PageAligned`](crate::PageAligned), ….
    ///
    /// Enters the kernel and pins the pages; takes time in proportion to the length. The region owns the
    /// buffer and borrows this domain; use [`MemoryRegion::register`] with an `Arc` for one that does not.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty buffer, and for remote write access without local write access; [`Error::Verb`] with
    /// `ENOMEM` over the locked-memory limit or the device's. The buffer is dropped then. See `ibv_reg_mr(3)`.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<B: HostBuffer>(
        &self,
        buffer: B,
        access: Access,
    ) -> Result<MemoryRegion<'_, B>> {
        MemoryRegion::register(self, buffer, access)
    }

    /// Registers memory that this crate knows nothing about.
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register).
    ///
    /// # Safety
    ///
    /// Until the region is dropped or closed, with success, the `length` bytes at `address` are initialised
    /// and mapped for reading and writing, and no reference to them exists: whatever the device may do,
    /// [`Region::shared_bytes`] reads and writes them.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw(
        &self,
        address: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<MemoryRegion<'_, ForeignMemory>> {
        access.check_for_region()?;
        // SAFETY: the caller keeps the same promises.
        let region = unsafe { register_host(self, address, length, access) }?;
        // SAFETY: the registration is this domain's, and nothing is owned.
        Ok(unsafe {
            MemoryRegion::from_parts(region, ManuallyDrop::new(ForeignMemory::nothing()), self)
        })
    }

    /// Registers a part of a dma-buf, such as memory of a GPU, together with its owner.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for no bytes, and if offset and address differ within a page; [`Error::OutOfRange`] past the end of the
    /// address space; [`Error::Verb`] with `EOPNOTSUPP` if the device or its driver cannot, `EINVAL` past the end of the dma-buf. See `ibv_reg_mr(3)`.
    ///
    /// # Safety
    ///
    /// Until the region is dropped or closed, with success, no reference exists to the bytes that a
    /// device may write, and `owner` keeps the memory from being given to somebody else.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_dma_buf<B: Buffer>(
        &self,
        owner: B,
        part: DmaBufPart<'_>,
        access: Access,
    ) -> Result<MemoryRegion<'_, B>> {
        // SAFETY: the caller keeps the same promises.
        unsafe { MemoryRegion::register_dma_buf(self, owner, part, access) }
    }
}

impl<'a, B: Buffer> MemoryRegion<'a, B> {
    /// Registers a buffer in a domain, borrowed (`&domain`) or shared (`&Arc<ProtectionDomain>`).
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register`].
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub fn register(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        buffer: B,
        access: Access,
    ) -> Result<Self>
    where
        B: HostBuffer,
    {
        access.check_for_region()?;
        let domain = domain.into();
        let raw_buffer = ManuallyDrop::new(buffer.into_raw());
        let (address, length) = (B::address(&raw_buffer), B::length(&raw_buffer));
        // SAFETY: a host buffer is initialised, stays in place, and nobody else uses it, by its trait.
        let registered = unsafe { register_host(&domain, address, length, access) };
        match registered {
            Ok(region) => Ok(Self { region, buffer: raw_buffer, domain }),
            Err(error) => {
                // SAFETY: no device was told of the memory; the parts are used once.
                drop(unsafe { B::from_raw(ManuallyDrop::into_inner(raw_buffer)) });
                Err(error)
            }
        }
    }

    /// Registers a part of a dma-buf in a domain, borrowed or shared.
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register_dma_buf`].
    ///
    /// # Safety
    ///
    /// As for [`ProtectionDomain::register_dma_buf`].
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_dma_buf(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        owner: B,
        part: DmaBufPart<'_>,
        access: Access,
    ) -> Result<Self> {
        access.check_for_region()?;
        let DmaBufPart { fd, offset, length, address } = part;
        if offset % DmaBufPart::PAGE != address % DmaBufPart::PAGE {
            return Err(Error::Invalid {
                what: format!(
                    "the offset {offset:#x} into a dma-buf and the address {address:#x} of the region differ within a \
                     page"
                )
                .into(),
                remedy: "choose an address whose low 12 bits are those of the offset, ibv_reg_mr(3)",
            });
        }
        check_length(length)?;
        let largest = u64::MAX - offset.max(address);
        let remedy = "offset and address must leave room before the end of the address space";
        Error::check_or("the length of a part of a dma-buf", length as u64, 1..=largest, remedy)?;
        let domain = domain.into();
        let library = domain.context().library();
        let (verb, register) = verb!(library, ibv_reg_dmabuf_mr)?;
        let (fd, bits) = (fd.as_raw_fd(), access.bits_signed());
        // SAFETY: the domain is live; the kernel checks the rest, and holds the dma-buf from then on.
        let raw = unsafe { register(domain.as_raw(), offset, length, address, fd, bits) };
        let raw = verb.object(raw)?;
        // SAFETY: just registered; the device calls its first byte `address`, not what `addr` says.
        let region = unsafe { Region::new(raw, library, (address, length), access, None) };
        Ok(Self { region, buffer: ManuallyDrop::new(owner.into_raw()), domain })
    }

    /// Registers memory by an address that a kernel module of its device knows, such as device pointers of CUDA with
    /// `nvidia_peermem`, together with its owner.
    ///
    /// The CPU need not reach it there: the region has no [`Region::shared_bytes`].
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register`]; `EFAULT` if no module knows the address. The owner is dropped then.
    ///
    /// # Safety
    ///
    /// Until the region is dropped or closed, with success, no reference exists to the bytes that a
    /// device may write, and `owner` keeps the memory from being given to somebody else.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_peer_memory(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        owner: B,
        address: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        access.check_for_region()?;
        let domain = domain.into();
        // SAFETY: the caller keeps the same promises, and nobody reads or writes through the region.
        let region = unsafe { register_host(&domain, address, length, access) }?.out_of_reach();
        Ok(Self { region, buffer: ManuallyDrop::new(owner.into_raw()), domain })
    }

    /// Puts a region together from its parts.
    ///
    /// # Safety
    ///
    /// `region` is a registration of `buffer`'s memory in `domain`, and nobody else deregisters it.
    pub(crate) unsafe fn from_parts(
        region: Region,
        buffer: ManuallyDrop<B::Raw>,
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
    ) -> Self {
        Self { region, buffer, domain: domain.into() }
    }

    /// Changes what the device and peers may do with the region. Its keys may change: take
    /// [`Region::local_key`] and [`Region::remote`] again. Enters the kernel.
    ///
    /// Requests in flight that need a right that is taken away fail.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the device refuses; the region is still owned, but may not be usable any more. [`Error::Invalid`]
    /// for a region [without memory](MemoryRegion::null). See `ibv_rereg_mr(3)`.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change_access(&mut self, access: Access) -> Result<()> {
        access.check_for_region()?;
        self.region.change_access(access)
    }

    /// The domain it was registered in.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        &self.domain
    }

    /// Deregisters and gives the buffer back. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EBUSY` while a memory window is bound to the region. The buffer is leaked then, since the
    /// device may still write it; [`try_into_buffer`](Self::try_into_buffer) gives the region back instead.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_buffer(self) -> Result<B> {
        self.try_into_buffer().map_err(|refused| {
            let CloseError { object, error } = *refused;
            let leaked = ManuallyDrop::new(object);
            // SAFETY: `leaked` is not used after this, nor dropped.
            drop(unsafe { std::ptr::read(&raw const leaked.domain) });
            error
        })
    }

    /// As [`into_buffer`](Self::into_buffer), but gives the region back if deregistration is refused.
    ///
    /// # Errors
    ///
    /// The region as it was, with the reason.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn try_into_buffer(mut self) -> Result<B, Box<CloseError<Self>>> {
        if let Err(error) = self.region.deregister() {
            return Err(Box::new(CloseError { object: self, error }));
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used after this, nor dropped.
        let raw = unsafe { ManuallyDrop::take(&mut this.buffer) };
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const this.domain) });
        // SAFETY: deregistered, so that no device reaches the memory; the parts are used once.
        Ok(unsafe { B::from_raw(raw) })
    }
}

impl<B: HostBuffer> MemoryRegion<'_, B> {
    /// The bytes, to be copied in and out.
    #[must_use]
    pub fn bytes(&self) -> SharedBytes<'_> {
        let (address, length) = (B::address(&self.buffer), B::length(&self.buffer));
        // SAFETY: a host buffer keeps its memory until `from_raw`, and this type makes no reference.
        unsafe { SharedBytes::new(address, length) }
    }

    /// The bytes as a plain slice, if neither the device nor a peer may write them; `None` if one may, or could before
    /// [`change_access`](Self::change_access) took the right away: what was under way may still use it.
    ///
    /// The region is borrowed whole, so that nobody holds its [`bytes`](Self::bytes) meanwhile. A transfer
    /// that the device is still reading for sends whatever mixture it finds.
    #[expect(clippy::disallowed_methods, reason = "no device may write this memory")]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        if self.region.could_be_written() {
            return None;
        }
        let (address, length) = (B::address(&self.buffer), B::length(&self.buffer));
        // SAFETY: initialised by the trait; the device never had a right to write, and `&mut self` keeps other
        // accesses of the CPU away.
        Some(unsafe { slice::from_raw_parts_mut(address.as_ptr(), length) })
    }
}

impl<B: Buffer> Deref for MemoryRegion<'_, B> {
    type Target = Region;

    #[inline]
    fn deref(&self) -> &Region {
        &self.region
    }
}

impl<B: Buffer> Drop for MemoryRegion<'_, B> {
    fn drop(&mut self) {
        match self.region.deregister() {
            Ok(()) => {
                // SAFETY: `buffer` is not used after this.
                let raw = unsafe { ManuallyDrop::take(&mut self.buffer) };
                // SAFETY: deregistered, so that no device reaches the memory; the parts are used once.
                drop(unsafe { B::from_raw(raw) });
            }
            Err(error) => log::warn!(
                "{error} ({}); {} bytes are leaked, since the device may still write them",
                std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default(),
                self.region.len()
            ),
        }
    }
}

impl<B: Buffer> fmt::Debug for MemoryRegion<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryRegion").field(&self.region).finish()
    }
}

/// Refuses a region of no bytes, of which every device says no more than that it is invalid.
pub(crate) fn check_length(length: usize) -> Result<()> {
    if length > 0 {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "a memory region cannot have 0 bytes".into(),
        remedy: "give the buffer a length (that of a `Vec::with_capacity` is 0), or register nothing: empty messages and \
                 credits for immediates need no region",
    })
}

/// Registers memory of the CPU.
///
/// # Safety
///
/// The memory is initialised, stays mapped for reading and writing until the region is deregistered, and no reference
/// to it exists in that time. Not where the region is [out of reach](Region::out_of_reach): then only no reference to
/// what a device may write.
pub(crate) unsafe fn register_host(
    domain: &ProtectionDomain<'_>,
    address: NonNull<u8>,
    length: usize,
    access: Access,
) -> Result<Region> {
    check_length(length)?;
    let library = domain.context().library();
    let pointer = address.as_ptr().cast::<c_void>();
    let first = address.as_ptr().expose_provenance() as u64;
    // As the C macro does: a flag that a device may ignore needs the newer call.
    let raw = if !access.contains(Access::RELAXED_ORDERING) {
        let (verb, register) = verb!(library, ibv_reg_mr)?;
        // SAFETY: the domain is live, and the caller vouches for the memory.
        let raw = unsafe { register(domain.as_raw(), pointer, length, access.bits_signed()) };
        verb.object(raw)?
    } else {
        let (verb, register) = verb!(library, ibv_reg_mr_iova2)?;
        // SAFETY: as above.
        let raw = unsafe { register(domain.as_raw(), pointer, length, first, access.bits()) };
        verb.object(raw)?
    };
    let start = if access.contains(Access::ZERO_BASED) { 0 } else { first };
    // SAFETY: just registered, and the caller vouches for the memory.
    Ok(unsafe { Region::new(raw, library, (start, length), access, Some(address)) })
}

/// Which part of a dma-buf to register, and what to call it.
#[derive(Debug, Clone, Copy)]
pub struct DmaBufPart<'fd> {
    /// The dma-buf. The kernel holds it while the region exists, so that the descriptor may be closed.
    pub fd: BorrowedFd<'fd>,
    /// Where in the dma-buf the region starts, in bytes.
    pub offset: u64,
    /// The length of the region in bytes.
    pub length: usize,
    /// What work requests call the first byte (iova): for a GPU the device pointer. Its low 12 bits
    /// must be those of `offset`.
    pub address: u64,
}

impl DmaBufPart<'_> {
    /// The page within which offset and address must agree.
    pub const PAGE: u64 = 4096;
}

/// Memory that somebody else owns. Its region gives access through [`Region::shared_bytes`].
#[derive(Debug)]
pub struct ForeignMemory(());

impl ForeignMemory {
    pub(crate) const fn nothing() -> Self {
        Self(())
    }
}

// SAFETY: nothing is owned, so nothing is freed; the place is the promise of `register_raw`'s caller.
unsafe impl Buffer for ForeignMemory {
    type Raw = Self;

    fn into_raw(self) -> Self {
        self
    }

    unsafe fn from_raw(raw: Self) -> Self {
        raw
    }
}
