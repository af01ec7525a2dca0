//! Regions of device memory.
//!
//! A region does not dereference to [`ibverbs::Region`]: whatever names its memory comes from one of two places that
//! say in which order GPU and NIC work. See [`Ready`], [`Landing`] and [`Arrived`].
#![expect(unsafe_code, reason = "reaches the buffer that the region owns")]

use std::{fmt, ops::Range, ptr::NonNull, sync::Arc};

use cudarc::driver::{CudaStream, CudaView, CudaViewMut};
use ibverbs::{
    Access, CloseError, FinishedWork, LocalKey, MemoryRegion, ProtectionDomain, Region, RemoteKey,
};

use crate::{
    Arrived, DeviceBuffer, Error, Flush, Gpu, Landing, Path, Producer, Ready, Result, Visibility,
    ordering, owner::Owner,
};

/// Device memory that a NIC, and with the right access its peers, can reach.
///
/// Made by [`register`](fn@crate::register). Deregisters before the memory is freed.
pub struct CudaMemoryRegion<'a, B: DeviceBuffer> {
    /// Owns the buffer.
    region: MemoryRegion<'a, Owner<B>>,
    /// Where the buffer is as long as `region` owns it.
    buffer: NonNull<B>,
    gpu: Gpu,
    /// The part of the buffer that is registered.
    elements: Range<usize>,
    flush: Flush,
    path: Path,
}

/// What a region is made of.
pub(crate) struct Parts<'a, B: DeviceBuffer> {
    pub(crate) region: MemoryRegion<'a, Owner<B>>,
    pub(crate) buffer: NonNull<B>,
    pub(crate) gpu: Gpu,
    pub(crate) elements: Range<usize>,
    pub(crate) flush: Flush,
    pub(crate) path: Path,
}

impl<'a, B: DeviceBuffer> CudaMemoryRegion<'a, B> {
    pub(crate) fn new(parts: Parts<'a, B>) -> Self {
        let Parts { region, buffer, gpu, elements, flush, path } = parts;
        Self { region, buffer, gpu, elements, flush, path }
    }

    /// Waits until what a stream or an event has to do is done, and gives access to the memory for sending.
    ///
    /// Waits for just that, not for the whole GPU. What is queued to the stream afterwards may change the
    /// bytes under the NIC's hands.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if the stream failed: a kernel before this call did.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn ready_after(&self, producer: &impl Producer) -> Result<Ready<'_>> {
        self.gpu.bind()?;
        producer.wait(self.gpu.driver())?;
        Ok(Ready::new(&self.region))
    }

    /// As [`ready_after`](Self::ready_after), but returns `None` instead of waiting.
    ///
    /// # Errors
    ///
    /// As for [`ready_after`](Self::ready_after).
    #[doc(alias = "cuStreamQuery")]
    pub fn try_ready_after(&self, producer: &impl Producer) -> Result<Option<Ready<'_>>> {
        self.gpu.bind()?;
        Ok(producer.is_done(self.gpu.driver())?.then(|| Ready::new(&self.region)))
    }

    /// Waits until a stream or an event is done with the memory, and gives it as a place where bytes of the network may
    /// land: for receives, for the results of reads, and for peers to write. They are seen by
    /// [`arrived`](Self::arrived).
    ///
    /// The stream is the one whose kernels read or wrote the memory last; for memory that is new, the one that it was
    /// allocated on, whose zeros must not come after the bytes. Waiting for one that is idle costs some 0.3
    /// microseconds.
    ///
    /// # Errors
    ///
    /// As for [`ready_after`](Self::ready_after).
    #[doc(alias = "cuStreamSynchronize")]
    pub fn landing_after(&self, user: &impl Producer) -> Result<Landing<'_>> {
        self.gpu.bind()?;
        user.wait(self.gpu.driver())?;
        Ok(Landing::new(&self.region))
    }

    /// As [`landing_after`](Self::landing_after), but returns `None` instead of waiting.
    ///
    /// # Errors
    ///
    /// As for [`ready_after`](Self::ready_after).
    #[doc(alias = "cuStreamQuery")]
    pub fn try_landing_after(&self, user: &impl Producer) -> Result<Option<Landing<'_>>> {
        self.gpu.bind()?;
        Ok(user.is_done(self.gpu.driver())?.then(|| Landing::new(&self.region)))
    }

    /// Makes what arrived with a completion visible to the GPU, and gives access to it.
    ///
    /// Costs a flush (about a microsecond) where the GPU does not say that it sees the writes in order, else nothing.
    /// The access ends when the completion's place is polled into again: the next arrival needs the next call.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for the completion of a request that brings nothing, [`Error::Cuda`] if the flush fails.
    #[doc(alias = "cuFlushGPUDirectRDMAWrites")]
    pub fn arrived<'s>(&'s self, work: FinishedWork<'s>) -> Result<Arrived<'s, B>> {
        ordering::check_inbound(work.operation())?;
        self.flush(Visibility::Owner)
    }

    /// As [`arrived`](Self::arrived), for work that is queued to a stream of the same GPU after this call.
    ///
    /// Flushes in the stream where the GPU can, without holding this thread up, else as `arrived` does.
    ///
    /// # Errors
    ///
    /// As for [`arrived`](Self::arrived), and [`Error::Invalid`] for a stream of another GPU.
    #[doc(alias = "cuStreamBatchMemOp")]
    pub fn arrived_on<'s>(
        &'s self,
        work: FinishedWork<'s>,
        stream: &CudaStream,
    ) -> Result<Arrived<'s, B>> {
        ordering::check_inbound(work.operation())?;
        self.gpu.check_stream(stream)?;
        if self.must_flush(Visibility::Owner) && !ordering::flush_in(&self.gpu, stream)? {
            return self.flush(Visibility::Owner);
        }
        Ok(Arrived::new(self))
    }

    /// Makes what peers have written until now visible, and gives access to it: for writes that a peer told of by other
    /// means than a completion, and for other GPUs that read this memory.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if the flush fails, [`Error::Invalid`] if the GPU needs one that the host cannot do.
    #[doc(alias = "cuFlushGPUDirectRDMAWrites")]
    pub fn flush(&self, visibility: Visibility) -> Result<Arrived<'_, B>> {
        if self.must_flush(visibility) {
            ordering::flush(&self.gpu, visibility)?;
        }
        Ok(Arrived::new(self))
    }

    /// The memory for kernels and copies that fill it. What peers have written until now is visible.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Self::flush).
    pub fn device_mut(&mut self) -> Result<CudaViewMut<'_, B::Element>> {
        self.flush(Visibility::Owner)?;
        let elements = self.elements.clone();
        // SAFETY: the region owns the buffer, and `self` is borrowed mutably.
        let buffer = unsafe { self.buffer.as_mut() };
        let (start, end, length) = (elements.start, elements.end, buffer.memory().len());
        let view = buffer.memory_mut().try_slice_mut(elements);
        view.ok_or(Error::OutOfBounds { start, end, length })
    }

    /// The memory as it is, in no particular order.
    pub(crate) fn device(&self) -> CudaView<'_, B::Element> {
        // SAFETY: the region owns the buffer, and `self` is borrowed.
        let slice = unsafe { self.buffer.as_ref() }.memory();
        // The part was checked when it was registered, and slices do not change their length.
        slice.try_slice(self.elements.clone()).unwrap_or_else(|| slice.as_view())
    }

    /// The memory to send on as it arrived.
    pub(crate) fn forward(&self) -> Ready<'_> {
        Ready::new(&self.region)
    }

    /// The region of `ibverbs`, whose segments say nothing about order.
    ///
    /// # Safety
    ///
    /// - What a device or a peer reads through it was written by streams that are done.
    /// - What a device or a peer wrote through it is flushed before the GPU reads it.
    #[must_use]
    pub unsafe fn unordered(&self) -> &Region {
        &self.region
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether it covers no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// What work requests and peers call the first byte: its device pointer.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.region.address()
    }

    /// What it was registered for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// The key for this side's work requests.
    #[must_use]
    pub fn local_key(&self) -> LocalKey {
        self.region.local_key()
    }

    /// The key for peers.
    #[must_use]
    pub fn remote_key(&self) -> RemoteKey {
        self.region.remote_key()
    }

    /// How it was registered.
    #[must_use]
    pub const fn path(&self) -> Path {
        self.path
    }

    /// The GPU whose memory it is.
    #[must_use]
    pub const fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The stream that the buffer was allocated on.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        // SAFETY: the region owns the buffer, and `self` is borrowed.
        unsafe { self.buffer.as_ref() }.memory().stream()
    }

    /// The domain it was registered in.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        self.region.protection_domain()
    }

    /// Deregisters, makes what arrived visible to the GPU, and gives the buffer back. Enters the kernel.
    ///
    /// For other GPUs that read it, call [`flush`](Self::flush) before.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if deregistration is refused; the buffer is leaked then, since the device may still write it.
    /// [`Error::Cuda`] if the flush fails; the buffer is freed then.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_buffer(self) -> Result<B> {
        let flush = self.must_flush(Visibility::Owner);
        let Self { region, gpu, .. } = self;
        let buffer = region.into_buffer()?.into_buffer();
        if flush {
            ordering::flush(&gpu, Visibility::Owner)?;
        }
        Ok(buffer)
    }

    /// As [`into_buffer`](Self::into_buffer), but gives the region back if deregistration is refused. What arrived
    /// last is not flushed: call [`flush`](Self::flush) before.
    ///
    /// # Errors
    ///
    /// The region as it was, with the reason.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn try_into_buffer(self) -> Result<B, Box<CloseError<Self>>> {
        let Self { region, buffer, gpu, elements, flush, path } = self;
        match region.try_into_buffer() {
            Ok(owner) => Ok(owner.into_buffer()),
            Err(refused) => {
                let CloseError { object: region, error } = *refused;
                let object = Self { region, buffer, gpu, elements, flush, path };
                Err(Box::new(CloseError { object, error }))
            }
        }
    }

    fn must_flush(&self, visibility: Visibility) -> bool {
        self.access().writes()
            && (self.flush == Flush::Always || self.gpu.writes_ordering().needs_flush(visibility))
    }
}

impl<B: DeviceBuffer> fmt::Debug for CudaMemoryRegion<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaMemoryRegion")
            .field("region", &*self.region)
            .field("gpu", &self.gpu.ordinal())
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

// SAFETY: owns the buffer, as a box would; the rest is `Send`.
unsafe impl<B: DeviceBuffer> Send for CudaMemoryRegion<'_, B> {}
// SAFETY: gives out shared views of the buffer only, as a box would; the rest is `Sync`.
unsafe impl<B: DeviceBuffer> Sync for CudaMemoryRegion<'_, B> {}
