//! Allocations with the driver's virtual memory management.
#![expect(unsafe_code, reason = "reserves, maps and unmaps device memory")]

use std::{ffi::c_int, sync::Arc};

use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits, sys::CUdeviceptr};
use ibverbs::Plain;

use crate::{
    DeviceBuffer, Driver, Error, Gpu, Result,
    device_buffer::{Alias, bytes_of},
    driver::call,
    gpu::Attribute,
    layout::{AccessDescription, AllocationProperties, Location},
};

/// Device memory that was reserved, created and mapped by itself (`cuMemCreate`), and asked to be reachable by NICs.
///
/// It starts at a page of the GPU and shares none with neighbours, so that its dma-buf covers nothing else.
/// Takes whole pages, of 2 MiB on most GPUs.
#[derive(Debug)]
pub struct VirtualMemory<T: Plain + DeviceRepr> {
    /// Dropped before `mapping`: waits until nothing uses the memory any more.
    alias: Alias<T>,
    /// Keeps the memory.
    mapping: Mapping,
}

impl<T: Plain + DeviceRepr + ValidAsZeroBits> VirtualMemory<T> {
    /// Allocates zeroed memory of a GPU, for a stream that waits for the zeros.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the GPU has no virtual memory management or the stream is of another one; [`Error::Cuda`] with `CUDA_ERROR_OUT_OF_MEMORY`,
    /// and with `CUDA_ERROR_INVALID_VALUE` for no bytes.
    #[doc(alias = "cuMemCreate")]
    pub fn allocate(gpu: &Gpu, stream: &Arc<CudaStream>, count: usize) -> Result<Self> {
        let bytes = bytes_of::<T>(count)?;
        if gpu.attribute(Attribute::VIRTUAL_MEMORY)? == 0 {
            return Err(Error::Invalid {
                what: "the GPU has no virtual memory management",
                remedy: "allocate with Gpu::allocate",
            });
        }
        gpu.check_stream(stream)?;
        gpu.bind()?;
        let capable = gpu.attribute(Attribute::RDMA_WITH_VIRTUAL_MEMORY)? != 0;
        let mapping = Mapping::new(gpu, bytes, capable)?;
        // SAFETY: the mapping has that many bytes of memory of the stream's GPU and outlives the alias.
        let mut alias = unsafe { Alias::new(stream, mapping.address, count) }?;
        stream.memset_zeros(alias.slice_mut()).map_err(Error::cudarc("cuMemsetD8Async"))?;
        Ok(Self { alias, mapping })
    }
}

impl<T: Plain + DeviceRepr> VirtualMemory<T> {
    /// The bytes that were taken: whole pages of the GPU.
    #[must_use]
    pub const fn reserved_bytes(&self) -> usize {
        self.mapping.size
    }
}

// SAFETY: the mapping is undone only after the alias was dropped, which is when the owner is.
unsafe impl<T: Plain + DeviceRepr> DeviceBuffer for VirtualMemory<T> {
    type Element = T;

    fn memory(&self) -> &CudaSlice<T> {
        self.alias.slice()
    }

    fn memory_mut(&mut self) -> &mut CudaSlice<T> {
        self.alias.slice_mut()
    }
}

/// Addresses with memory behind them.
#[derive(Debug)]
struct Mapping {
    driver: &'static Driver,
    /// Reserved for `size` bytes, freed only by drop.
    address: CUdeviceptr,
    size: usize,
    /// Whether memory is mapped there, to be unmapped by drop.
    mapped: bool,
}

impl Mapping {
    fn new(gpu: &Gpu, bytes: usize, capable: bool) -> Result<Self> {
        let driver = gpu.driver();
        let location = Location::device(c_int::try_from(gpu.ordinal()).unwrap_or(c_int::MAX));
        let properties = AllocationProperties {
            kind: 1, // CU_MEM_ALLOCATION_TYPE_PINNED
            handle_types: 0,
            location,
            windows_security: std::ptr::null_mut(),
            compression: 0,
            gpu_direct_rdma_capable: u8::from(capable),
            usage: 0,
            reserved: [0; 4],
        };
        let (call, granularity_of) = call!(driver, cuMemGetAllocationGranularity)?;
        let mut granularity = 0;
        // SAFETY: both places are valid; 0 asks for the minimum.
        let returned = unsafe { granularity_of(&raw mut granularity, &raw const properties, 0) };
        call.status(returned)?;
        let size = bytes.checked_next_multiple_of(granularity.max(1));
        let size = size.ok_or_else(|| call.error(crate::CudaCode::OUT_OF_MEMORY))?;

        let (call, reserve) = call!(driver, cuMemAddressReserve)?;
        let mut address = 0;
        // SAFETY: the place is valid; the driver chooses the address.
        call.status(unsafe { reserve(&raw mut address, size, 0, 0, 0) })?;
        let mut mapping = Self { driver, address, size, mapped: false };

        let (call, create) = call!(driver, cuMemCreate)?;
        let mut handle = 0;
        // SAFETY: both places are valid, and the size is a multiple of the granularity.
        call.status(unsafe { create(&raw mut handle, size, &raw const properties, 0) })?;
        let (call, map) = call!(driver, cuMemMap)?;
        // SAFETY: reserved above for this size, and the handle has as much memory.
        let mapped = call.status(unsafe { map(address, size, 0, handle, 0) });
        mapping.mapped = mapped.is_ok();
        let (call, release) = call!(driver, cuMemRelease)?;
        // SAFETY: the handle is given up once; a mapping keeps the memory.
        call.log_refusal(unsafe { release(handle) });
        mapped?;

        let description = AccessDescription { location, flags: 3 }; // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        let (call, set_access) = call!(driver, cuMemSetAccess)?;
        // SAFETY: the range was mapped above, and there is one description.
        call.status(unsafe { set_access(address, size, &raw const description, 1) })?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mapped {
            let Ok((call, unmap)) = call!(self.driver, cuMemUnmap) else { return };
            // SAFETY: mapped by `new`, and nothing uses the memory any more.
            call.log_refusal(unsafe { unmap(self.address, self.size) });
        }
        if let Ok((call, free)) = call!(self.driver, cuMemAddressFree) {
            // SAFETY: reserved by `new`, given up once.
            call.log_refusal(unsafe { free(self.address, self.size) });
        }
    }
}
