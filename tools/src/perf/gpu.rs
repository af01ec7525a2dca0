//! Memory of a GPU.

use std::{ops::Range, sync::Arc};

use cuda_interop::{
    CudaMemoryRegion, Gpu, Visibility,
    cudarc::driver::{CudaSlice, CudaStream},
    register,
};
use example_support::AnyError;
use ibverbs::{Access, Gather, ProtectionDomain, RemoteMemory, Scatter};

/// Registered memory of a GPU, and the stream that fills and reads it.
#[derive(Debug)]
pub(crate) struct GpuMemory<'a> {
    region: CudaMemoryRegion<'a, CudaSlice<u8>>,
    stream: Arc<CudaStream>,
}

impl<'a> GpuMemory<'a> {
    pub(crate) fn new(
        domain: &'a ProtectionDomain<'a>,
        length: usize,
        access: Access,
        ordinal: usize,
    ) -> Result<Self, AnyError> {
        let gpu = Gpu::open(ordinal)?;
        let stream = gpu.context().new_stream()?;
        let buffer = gpu.allocate::<u8>(&stream, length)?;
        Ok(Self { region: register(domain, buffer, access)?, stream })
    }

    pub(crate) fn outgoing(&self, range: Range<usize>) -> Result<Gather<'_>, AnyError> {
        Ok(self.region.ready_after(&self.stream)?.segment(range)?.into())
    }

    pub(crate) fn incoming(&self, range: Range<usize>) -> Result<Scatter<'_>, AnyError> {
        Ok(self.region.landing_after(&self.stream)?.segment(range)?.into())
    }

    pub(crate) fn remote(&self) -> Result<RemoteMemory, AnyError> {
        Ok(self.region.landing_after(&self.stream)?.remote())
    }

    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), AnyError> {
        let mut memory = self.region.device_mut()?;
        let end = offset + bytes.len();
        let mut part = memory.try_slice_mut(offset..end).ok_or("past the end of GPU memory")?;
        self.stream.memcpy_htod(bytes, &mut part)?;
        Ok(self.stream.synchronize()?)
    }

    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AnyError> {
        let memory = self.region.flush(Visibility::Owner)?.device();
        let end = offset + bytes.len();
        let part = memory.try_slice(offset..end).ok_or("past the end of GPU memory")?;
        self.stream.memcpy_dtoh(&part, bytes)?;
        Ok(self.stream.synchronize()?)
    }
}
