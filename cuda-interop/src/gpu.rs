//! A GPU: its context, and what it can do for RDMA.
#![expect(unsafe_code, reason = "queries the driver")]

use std::{
    ffi::{CStr, c_int},
    fmt,
    sync::Arc,
};

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits, sys::CUdevice,
};

use crate::{
    Driver, Error, PciAddress, Result,
    capabilities::{FlushOptions, WritesOrdering},
    driver::call,
};

/// A GPU with its CUDA context. Cheap to clone.
///
/// Made without a driver it is an error, where `cudarc` alone would stop the program.
#[derive(Clone)]
pub struct Gpu {
    context: Arc<CudaContext>,
    driver: &'static Driver,
    ordering: WritesOrdering,
    flush: FlushOptions,
}

/// What `cuDeviceGetAttribute` is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute(c_int);

impl Attribute {
    pub(crate) const VIRTUAL_MEMORY: Self = Self(102);
    pub(crate) const RDMA_WITH_VIRTUAL_MEMORY: Self = Self(110);
    pub(crate) const MEMORY_POOLS: Self = Self(115);
    pub(crate) const GPU_DIRECT_RDMA: Self = Self(116);
    pub(crate) const FLUSH_OPTIONS: Self = Self(117);
    pub(crate) const WRITES_ORDERING: Self = Self(118);
    pub(crate) const DMA_BUF: Self = Self(124);
}

impl Gpu {
    /// How many GPUs this process sees.
    ///
    /// # Errors
    ///
    /// As for [`Driver::get`].
    #[doc(alias = "cuDeviceGetCount")]
    pub fn count() -> Result<usize> {
        Driver::get()?.count()
    }

    /// Opens the GPU of a number, as `CUDA_VISIBLE_DEVICES` lets this process count them, with its primary context.
    ///
    /// Takes up to a second and some hundred megabytes of the GPU the first time.
    ///
    /// # Errors
    ///
    /// As for [`Driver::get`]; [`Error::Cuda`] if there is no GPU of that number.
    #[doc(alias = "cuDevicePrimaryCtxRetain")]
    pub fn open(ordinal: usize) -> Result<Self> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(crate::error::Call("cuDeviceGet").error(crate::CudaCode::INVALID_DEVICE));
        }
        let context =
            CudaContext::new(ordinal).map_err(Error::cudarc("cuDevicePrimaryCtxRetain"))?;
        Self::of(context)
    }

    /// The GPU of a context that the program has already.
    ///
    /// # Errors
    ///
    /// As for [`Driver::get`].
    pub fn of(context: Arc<CudaContext>) -> Result<Self> {
        Self::with_driver(context, Driver::get()?)
    }

    /// The GPU of a context, with another table of driver functions.
    ///
    /// # Errors
    ///
    /// [`Error::Symbol`] and [`Error::Cuda`] if it cannot be asked what it can do.
    pub fn with_driver(context: Arc<CudaContext>, driver: &'static Driver) -> Result<Self> {
        let device = context.cu_device();
        let ordering = WritesOrdering(attribute(driver, device, Attribute::WRITES_ORDERING)?);
        let flush = attribute(driver, device, Attribute::FLUSH_OPTIONS)?;
        let flush = FlushOptions::from_bits_retain(flush.cast_unsigned());
        Ok(Self { context, driver, ordering, flush })
    }

    /// Allocates zeroed memory, in the order of a stream of this GPU, from the GPU's memory pool.
    ///
    /// Returns before the memory is there: use it in the same stream, or wait for it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a stream of another GPU; [`Error::Cuda`], `CUDA_ERROR_OUT_OF_MEMORY`.
    #[doc(alias = "cuMemAllocAsync")]
    pub fn allocate<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        stream: &Arc<CudaStream>,
        count: usize,
    ) -> Result<CudaSlice<T>> {
        if count == 0 || count.checked_mul(size_of::<T>()).is_none() {
            return Err(Error::Invalid {
                what: "an allocation of no bytes, or of more than there can be",
                remedy: "ask for at least one element",
            });
        }
        self.check_stream(stream)?;
        stream.alloc_zeros(count).map_err(Error::cudarc("cuMemAllocAsync"))
    }

    /// The context, for `cudarc`.
    #[must_use]
    pub const fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The table of functions that it is driven with.
    #[must_use]
    pub const fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Its number in this process.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// Which of the writes of other devices are seen in order without a flush.
    #[must_use]
    pub const fn writes_ordering(&self) -> WritesOrdering {
        self.ordering
    }

    /// How writes of other devices can be flushed.
    #[must_use]
    pub const fn flush_options(&self) -> FlushOptions {
        self.flush
    }

    /// Where it is on the PCI buses.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if the driver does not say.
    #[doc(alias = "cuDeviceGetPCIBusId")]
    pub fn pci_address(&self) -> Result<PciAddress> {
        let (call, get) = call!(self.driver, cuDeviceGetPCIBusId)?;
        let mut text = [0_u8; 32];
        let place = text.as_mut_ptr().cast();
        // SAFETY: at most 32 bytes are written at the place, which has them.
        call.status(unsafe { get(place, 32, self.context.cu_device()) })?;
        let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy);
        text.unwrap_or_default().parse()
    }

    /// Makes its context the one of the calling thread.
    pub(crate) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(Error::cudarc("cuCtxSetCurrent"))
    }

    /// Refuses streams of other GPUs.
    pub(crate) fn check_stream(&self, stream: &CudaStream) -> Result<()> {
        if stream.context().ordinal() == self.ordinal() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "the stream is of another GPU",
            remedy: "make one on the context of this GPU",
        })
    }

    pub(crate) fn attribute(&self, which: Attribute) -> Result<i32> {
        attribute(self.driver, self.context.cu_device(), which)
    }
}

fn attribute(driver: &Driver, device: CUdevice, Attribute(which): Attribute) -> Result<i32> {
    let (call, get) = call!(driver, cuDeviceGetAttribute)?;
    let mut value = 0;
    // SAFETY: the place is valid for the write, and the driver checks the rest.
    match call.status(unsafe { get(&raw mut value, which, device) }) {
        Ok(()) => Ok(value),
        // An older driver does not know the question; then the answer is no.
        Err(error) if error.code() == Some(crate::CudaCode::INVALID_VALUE) => Ok(0),
        Err(error) => Err(error),
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu")
            .field("ordinal", &self.ordinal())
            .field("writes_ordering", &self.ordering)
            .field("flush_options", &self.flush)
            .finish_non_exhaustive()
    }
}
