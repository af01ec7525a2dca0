//! Device memory that another library owns.
#![expect(unsafe_code, reason = "takes the word of the caller for memory")]

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, sys::CUdeviceptr};
use ibverbs::Plain;

use crate::{
    CudaCode, DeviceBuffer, Gpu, PointerInfo, Result,
    device_buffer::{Alias, bytes_of},
};

/// Device memory of somebody else, such as a tensor of another framework.
///
/// What the driver knows about the address is checked: that it is memory of this GPU, not managed, and that the
/// allocation has all of it.
#[derive(Debug)]
pub struct ForeignMemory<T: Plain + DeviceRepr> {
    alias: Alias<T>,
    info: PointerInfo,
}

impl<T: Plain + DeviceRepr> ForeignMemory<T> {
    /// Takes `count` elements at `address`. Makes synchronous copies and fills of the allocation wait until they are
    /// done (`SYNC_MEMOPS`), since its owner may use those; virtual memory does not have that, and
    /// [`PointerInfo::synchronous`] says `false` then: use asynchronous operations, and wait for their stream.
    ///
    /// # Errors
    ///
    /// [`Error::NotDeviceMemory`](crate::Error::NotDeviceMemory) with what it is instead,
    /// [`Error::Invalid`](crate::Error::Invalid) for a stream of another GPU.
    ///
    /// # Safety
    ///
    /// - Until this is dropped, and every region that it was registered in is closed, the owner keeps the memory
    ///   allocated. A dma-buf keeps the memory itself, so that freeing it early is a leak, but the address may
    ///   go to somebody else meanwhile.
    /// - Work of other streams on the memory is ordered by the caller.
    pub unsafe fn new(
        gpu: &Gpu,
        stream: &Arc<CudaStream>,
        address: CUdeviceptr,
        count: usize,
    ) -> Result<Self> {
        let bytes = bytes_of::<T>(count)?;
        gpu.check_stream(stream)?;
        gpu.bind()?;
        let info = gpu.driver().pointer_info(address)?;
        info.check(gpu.ordinal(), address, bytes as u64)?;
        match gpu.driver().synchronize_memory_operations(address) {
            // Virtual memory does not have it.
            Err(error) if error.code() == Some(CudaCode::NOT_SUPPORTED) => {}
            result => result?,
        }
        let info = gpu.driver().pointer_info(address)?;
        // SAFETY: checked above to be memory of this GPU, whose stream this is, and the caller keeps it.
        Ok(Self { alias: unsafe { Alias::new(stream, address, count) }?, info })
    }

    /// What the driver said about it.
    #[must_use]
    pub const fn info(&self) -> &PointerInfo {
        &self.info
    }
}

// SAFETY: the caller of `new` keeps the memory until this is dropped.
unsafe impl<T: Plain + DeviceRepr> DeviceBuffer for ForeignMemory<T> {
    type Element = T;

    fn memory(&self) -> &CudaSlice<T> {
        self.alias.slice()
    }

    fn memory_mut(&mut self) -> &mut CudaSlice<T> {
        self.alias.slice_mut()
    }
}
