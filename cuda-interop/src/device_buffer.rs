//! Device memory that a region can own.
#![expect(unsafe_code, reason = "makes slices of memory that they do not own")]

use std::{mem::ManuallyDrop, sync::Arc};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, sys::CUdeviceptr};
use ibverbs::Plain;

use crate::{Error, Result, error::Call};

/// An owner of device memory that can be registered: `CudaSlice<T>`, [`VirtualMemory`](crate::VirtualMemory),
/// [`ForeignMemory`](crate::ForeignMemory).
///
/// The elements are [`Plain`], since a device or a peer may write any bytes into them.
///
/// # Safety
///
/// Both methods return a slice of the same device memory for as long as the owner lives, and the memory is
/// given to nobody else before the owner is dropped, wherever it is moved.
pub unsafe trait DeviceBuffer: Send + Sync {
    /// What the memory holds.
    type Element: Plain + DeviceRepr;

    /// The memory, for `cudarc`.
    fn memory(&self) -> &CudaSlice<Self::Element>;

    /// The memory, for `cudarc`.
    fn memory_mut(&mut self) -> &mut CudaSlice<Self::Element>;
}

// SAFETY: a slice owns one allocation and frees it when it is dropped.
unsafe impl<T: Plain + DeviceRepr> DeviceBuffer for CudaSlice<T> {
    type Element = T;

    fn memory(&self) -> &Self {
        self
    }

    fn memory_mut(&mut self) -> &mut Self {
        self
    }
}

/// The address of a slice's first element.
pub(crate) fn address<T>(slice: &CudaSlice<T>) -> CUdeviceptr {
    slice.device_ptr(slice.stream()).0
}

/// A slice of memory that somebody else frees, after this is dropped.
#[derive(Debug)]
pub(crate) struct Alias<T> {
    /// Never dropped, since that would free the memory.
    slice: ManuallyDrop<CudaSlice<T>>,
}

impl<T> Alias<T> {
    /// Makes `cudarc` know memory.
    ///
    /// # Safety
    ///
    /// There are `count` elements of device memory at `address`, of the GPU of `stream`, until this is dropped.
    pub(crate) unsafe fn new(
        stream: &Arc<CudaStream>,
        address: CUdeviceptr,
        count: usize,
    ) -> Result<Self> {
        let context = stream.context();
        context.bind_to_thread().map_err(Error::cudarc("cuCtxSetCurrent"))?;
        // What `upgrade_device_ptr` makes two of, and stops the program if it cannot.
        for event in [context.new_event(None), context.new_event(None)] {
            drop(event.map_err(Error::cudarc("cuEventCreate"))?);
        }
        // SAFETY: the caller vouches for the memory; any bytes are a `T`, which callers make sure of.
        let slice = unsafe { stream.upgrade_device_ptr(address, count) };
        Ok(Self { slice: ManuallyDrop::new(slice) })
    }

    pub(crate) fn slice(&self) -> &CudaSlice<T> {
        &self.slice
    }

    pub(crate) fn slice_mut(&mut self) -> &mut CudaSlice<T> {
        &mut self.slice
    }
}

impl<T> Drop for Alias<T> {
    fn drop(&mut self) {
        // SAFETY: `slice` is not used after this.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        let stream = Arc::clone(slice.stream());
        // Makes the stream wait for every use that `cudarc` knows of, and forgets the memory.
        slice.leak();
        if let Err(error) = stream.synchronize() {
            let error = Error::cudarc("cuStreamSynchronize")(error);
            log::warn!("{error}; device memory may be freed while it is used");
        }
    }
}

/// Refuses an allocation of nothing and one of more bytes than there can be; the bytes.
pub(crate) fn bytes_of<T>(count: usize) -> Result<usize> {
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(Call("cuMemCreate").error(crate::CudaCode::INVALID_VALUE)),
    }
}
