//! Memory of a GPU as data of commands: the feature `cuda`.

use std::{fmt, sync::Arc};

use cuda_interop::{CudaMemoryRegion, DeviceBuffer, Visibility, cudarc::driver::CudaStream};
use ibverbs::{Access, ProtectionDomain};

use crate::{Controller, Error, Memory, Result, memory::check_registration, rdma::DATA_ACCESS};

/// Memory of a GPU that a controller's target reads and writes by itself, and the stream whose
/// work on it comes before and after.
///
/// Before a command leaves, what is queued to the stream is waited for: a write takes what its
/// kernels made, and a read does not land in what they still use. After a read, what arrived is
/// made visible to the GPU. Work that is queued to the stream while a request is in flight, and
/// work of other streams, is the caller's to order.
pub struct GpuBuffer<B: DeviceBuffer> {
    region: CudaMemoryRegion<'static, B>,
    stream: Arc<CudaStream>,
}

impl<B: DeviceBuffer> GpuBuffer<B> {
    /// Registers a buffer for a controller, through a dma-buf. Enters the kernel and pins the
    /// memory.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the GPU or the NIC cannot do that.
    pub fn register(controller: &Controller, buffer: B, stream: &Arc<CudaStream>) -> Result<Self> {
        let domain = controller.protection_domain()?;
        let region = cuda_interop::register(&domain, buffer, DATA_ACCESS)
            .map_err(failed("registering memory of a GPU"))?;
        Ok(Self::new(region, stream))
    }

    /// Takes a region of the controller's domain that was registered for local and remote writes
    /// and remote reads.
    #[must_use]
    pub fn new(region: CudaMemoryRegion<'static, B>, stream: &Arc<CudaStream>) -> Self {
        Self { region, stream: Arc::clone(stream) }
    }

    /// The region, for kernels that fill it or use what arrived.
    #[must_use]
    pub const fn region(&self) -> &CudaMemoryRegion<'static, B> {
        &self.region
    }

    /// The region, for kernels and copies that fill it.
    #[must_use]
    pub const fn region_mut(&mut self) -> &mut CudaMemoryRegion<'static, B> {
        &mut self.region
    }

    /// The region alone.
    #[must_use]
    pub fn into_region(self) -> CudaMemoryRegion<'static, B> {
        self.region
    }
}

impl<B: DeviceBuffer> Memory for GpuBuffer<B> {
    fn address(&self) -> u64 {
        self.region.address()
    }

    fn remote_key(&self) -> u32 {
        self.region.remote_key().0
    }

    fn length(&self) -> usize {
        self.region.len()
    }

    fn copy_to(&self, _offset: usize, _into: &mut [u8]) -> bool {
        false
    }

    fn check_registration(&self, domain: &ProtectionDomain<'_>, rights: Access) -> Result<()> {
        let registered = (self.region.protection_domain(), self.region.access());
        check_registration(registered, (domain, rights))
    }

    fn before_device_reads(&self) -> Result<()> {
        let ready = self.region.ready_after(&self.stream);
        ready.map(|_| ()).map_err(failed("waiting for a stream"))
    }

    fn before_device_writes(&self) -> Result<()> {
        let landing = self.region.landing_after(&self.stream);
        landing.map(|_| ()).map_err(failed("waiting for a stream"))
    }

    fn after_device_writes(&self) -> Result<()> {
        let arrived = self.region.flush(Visibility::Owner);
        arrived.map(|_| ()).map_err(failed("making what arrived visible to the GPU"))
    }
}

impl<B: DeviceBuffer> fmt::Debug for GpuBuffer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GpuBuffer").field(&self.region).finish()
    }
}

fn failed(operation: &'static str) -> impl Fn(cuda_interop::Error) -> Error {
    move |source| Error::Memory { operation, source: Box::new(source) }
}
