//! How a buffer becomes a region: through a dma-buf, or through a peer memory module when that is asked for.
#![expect(unsafe_code, reason = "registers device memory with its owner")]

use std::{
    ffi::{c_uint, c_ulonglong, c_void},
    ops::Range,
    os::fd::AsFd,
    ptr::{self, NonNull},
    sync::Arc,
};

use ibverbs::{Access, Buffer, DmaBufPart, MemoryRegion, Parent, ProtectionDomain};

use crate::{
    CudaMemoryRegion, DeviceBuffer, Driver, Error, Gpu, Mapping, Result, device_buffer::address,
    dma_buf::export, error::Reason, memory_region::Parts, owner::Owner,
};

/// Whether a kernel module (`nvidia_peermem`) may be used that knows device pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PeerMemory {
    /// Through a dma-buf only.
    #[default]
    Never,
    /// Where a dma-buf cannot be registered.
    IfNeeded,
    /// Only so.
    Only,
}

/// How a region came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// The kernel holds a dma-buf of the memory.
    DmaBuf,
    /// A peer memory module holds the pages.
    PeerMemory,
}

/// When writes of other devices are flushed before they are accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flush {
    /// Where the GPU says that it does not see them in order anyway.
    #[default]
    WhereNeeded,
    /// Every time: for devices that the GPU does not know of.
    Always,
}

/// How to register device memory.
#[derive(Debug, Clone)]
#[must_use]
pub struct Registration {
    access: Access,
    peer_memory: PeerMemory,
    mapping: Mapping,
    flush: Flush,
    part: Option<Range<usize>>,
}

/// Registers device memory through a dma-buf, for a device that can (`mlx5`, `efa`, `irdma`, `bnxt_re`).
///
/// Enters the kernel and the driver; takes some 20 microseconds of CUDA's, whatever the size, and then what the RDMA
/// device needs. The region owns the buffer. [`Registration`] has the choices.
///
/// # Errors
///
/// [`Error::Cuda`] if the memory cannot be exported, [`Error::Verbs`] if the device refuses it. The buffer is
/// dropped then.
#[doc(alias = "ibv_reg_dmabuf_mr")]
#[doc(alias = "cuMemGetHandleForAddressRange")]
pub fn register<'a, B: DeviceBuffer>(
    domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
    buffer: B,
    access: Access,
) -> Result<CudaMemoryRegion<'a, B>> {
    Registration::new(access).register(domain, buffer)
}

impl Registration {
    /// Through a dma-buf, all of the buffer, flushed where needed.
    pub const fn new(access: Access) -> Self {
        Self {
            access,
            peer_memory: PeerMemory::Never,
            mapping: Mapping::Default,
            flush: Flush::WhereNeeded,
            part: None,
        }
    }

    /// Whether a peer memory module may do it. [`PeerMemory::Never`] by default: which way was taken changes
    /// what the region needs, and should be the program's choice.
    pub const fn peer_memory(mut self, peer_memory: PeerMemory) -> Self {
        self.peer_memory = peer_memory;
        self
    }

    /// Through which of the GPU's doors the memory is reached. [`Mapping::Default`] by default.
    pub const fn mapping(mut self, mapping: Mapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// When writes are flushed. [`Flush::WhereNeeded`] by default.
    pub const fn flush(mut self, flush: Flush) -> Self {
        self.flush = flush;
        self
    }

    /// Only these elements of the buffer. All by default.
    pub const fn part(mut self, elements: Range<usize>) -> Self {
        self.part = Some(elements);
        self
    }

    /// Registers a buffer in a domain, borrowed (`&domain`) or shared (`&Arc<ProtectionDomain>`).
    ///
    /// # Errors
    ///
    /// As for [`register`](fn@register); [`Error::OutOfBounds`] if the part does not lie inside;
    /// [`Error::NoPath`] with both reasons if neither way was possible. The buffer is dropped then.
    pub fn register<'a, B: DeviceBuffer>(
        self,
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        buffer: B,
    ) -> Result<CudaMemoryRegion<'a, B>> {
        let gpu = Gpu::of(Arc::clone(buffer.memory().context()))?;
        self.register_on(&gpu, domain, buffer)
    }

    /// As [`register`](Self::register), for a [`Gpu`] that was opened before, which saves asking what it can do.
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register); [`Error::NotDeviceMemory`] if the buffer is not of that GPU.
    pub fn register_on<'a, B: DeviceBuffer>(
        self,
        gpu: &Gpu,
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        buffer: B,
    ) -> Result<CudaMemoryRegion<'a, B>> {
        let Self { access, peer_memory, mapping, flush, part } = self;
        let slice = buffer.memory();
        let elements = part.unwrap_or(0..slice.len());
        if elements.start > elements.end || elements.end > slice.len() {
            return Err(Error::OutOfBounds {
                start: elements.start,
                end: elements.end,
                length: slice.len(),
            });
        }
        let size = size_of::<B::Element>();
        let start = address(slice) + (elements.start * size) as u64;
        let length = elements.len() * size;
        if slice.ordinal() != gpu.ordinal() {
            return Err(Error::NotDeviceMemory {
                address: start,
                length: length as u64,
                reason: format!(
                    "it belongs to GPU {}, not to GPU {}",
                    slice.ordinal(),
                    gpu.ordinal()
                ),
            });
        }
        gpu.bind()?;
        let range = DeviceRange { address: start, length };
        let domain = domain.into();
        let place = Owner::place(buffer);
        let owner = || Owner::entering(place);
        // SAFETY: the buffer stays at its place and keeps the memory until the region gives it up; there are no
        // references to memory of a GPU.
        let registered = unsafe {
            register_range(gpu.driver(), domain, owner, range, access, peer_memory, mapping)
        };
        match registered {
            Ok((region, path)) => Ok(CudaMemoryRegion::new(Parts {
                region,
                buffer: place,
                gpu: gpu.clone(),
                elements,
                flush,
                path,
            })),
            Err(error) => {
                // SAFETY: no region took it, and nobody else knows the place.
                drop(unsafe { Owner::take(place) });
                Err(error)
            }
        }
    }
}

/// Bytes of device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceRange {
    pub(crate) address: u64,
    pub(crate) length: usize,
}

/// Registers a range of device memory in the ways that are allowed, the better one first.
///
/// # Safety
///
/// What `owner` returns keeps the range from being given to somebody else, from `into_raw` to `from_raw`, and no
/// reference to it exists in that time. It is called once for each way.
pub(crate) unsafe fn register_range<'a, O: Buffer>(
    driver: &Driver,
    domain: Parent<'a, ProtectionDomain<'a>>,
    owner: impl Fn() -> O,
    range: DeviceRange,
    access: Access,
    peer_memory: PeerMemory,
    mapping: Mapping,
) -> Result<(MemoryRegion<'a, O>, Path)> {
    let again = match &domain {
        Parent::Borrowed(domain) => Parent::Borrowed(*domain),
        Parent::Shared(domain) => Parent::Shared(Arc::clone(domain)),
    };
    let dma_buf = || {
        let exported = export(driver, range.address, range.length as u64, mapping)?;
        let part = DmaBufPart {
            fd: exported.fd.as_fd(),
            offset: exported.offset,
            length: range.length,
            address: range.address,
        };
        // SAFETY: the caller keeps the same promises. The kernel holds the dma-buf, whose descriptor ends here.
        let region = unsafe { MemoryRegion::register_dma_buf(domain, owner(), part, access) }?;
        Ok((region, Path::DmaBuf))
    };
    let through_module = || {
        let start = ptr::without_provenance_mut(usize::try_from(range.address).unwrap_or(0));
        let Some(start) = NonNull::new(start) else {
            return Err(Error::Invalid {
                what: "a device pointer of 0",
                remedy: "give the address of an allocation",
            });
        };
        // SAFETY: the caller keeps the same promises.
        let region = unsafe {
            MemoryRegion::register_peer_memory(again, owner(), start, range.length, access)
        }?;
        Ok((region, Path::PeerMemory))
    };
    match peer_memory {
        PeerMemory::Never => dma_buf(),
        PeerMemory::Only => through_module(),
        PeerMemory::IfNeeded => dma_buf().or_else(|first: Error| {
            through_module().map_err(|second| Error::NoPath {
                dma_buf: Box::new(Reason(first)),
                peer_memory: Box::new(Reason(second)),
            })
        }),
    }
}

/// Registers a range with a function in place of `cuMemGetHandleForAddressRange`: what
/// [`register`](fn@register) does, for machines with an RDMA device and no GPU. Not part of the API: the tests of this
/// workspace use it.
///
/// # Safety
///
/// `export` is like the function of cuda.h, and nobody else changes or refers to the bytes that it exports until the
/// region is gone and gave its owner back.
#[doc(hidden)]
pub unsafe fn register_exported<'a, O: Buffer>(
    export: unsafe extern "C" fn(*mut c_void, u64, usize, c_uint, c_ulonglong) -> c_uint,
    domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
    owner: impl Fn() -> O,
    range: Range<u64>,
    access: Access,
) -> Result<MemoryRegion<'a, O>> {
    let driver = Driver { cuMemGetHandleForAddressRange: Some(export), ..Driver::EMPTY };
    let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
    let range = DeviceRange { address: range.start, length };
    let (domain, never) = (domain.into(), PeerMemory::Never);
    // SAFETY: the caller keeps the same promises.
    let registered =
        unsafe { register_range(&driver, domain, owner, range, access, never, Mapping::Default) };
    registered.map(|(region, _)| region)
}

#[cfg(test)]
mod tests;
