//! Who sees whose writes, and when.
//!
//! A GPU and a NIC share memory without a common order, so that three mistakes are easy to make:
//!
//! 1. *Sending too early.* A NIC reads what is in memory when it is told to, and a kernel that was launched
//!    before is not done yet. So whatever a NIC reads is named by [`Outbound`] segments, which come from
//!    [`Ready`], which is what waiting for a stream or an event returns.
//! 2. *Reading too early.* A completion says that the NIC has sent its writes to the GPU; on many GPUs that is not
//!    yet that kernels see them. So the memory is accessed through [`Arrived`], which a flush returns.
//! 3. *Landing too early.* Kernels that still read the memory, or have yet to write it, mix with what arrives. So
//!    whatever a NIC writes is named by [`Inbound`] segments, which come from [`Landing`], which waiting returns too. They
//!    cannot be sent from.
#![expect(unsafe_code, reason = "waits for streams and flushes, through the driver")]

use std::{marker::PhantomData, ops::RangeBounds, sync::Arc};

use cudarc::driver::{CudaEvent, CudaStream, CudaView};
use ibverbs::{Gather, Operation, Region, RemoteMemory, Scatter, Segment};

use crate::{
    CudaCode, CudaMemoryRegion, DeviceBuffer, Driver, Error, Gpu, Result,
    capabilities::FlushOptions, driver::call, layout::MemoryOperation,
};

/// Work of a GPU that can be waited for: a stream (`CudaStream`, `Arc<CudaStream>`) or an event (`CudaEvent`).
///
/// Streams of other libraries are wrapped with `CudaContext::wrap_borrowed_stream`.
pub trait Producer: sealed::Sealed {
    #[doc(hidden)]
    fn wait(&self, driver: &Driver) -> Result<()>;

    #[doc(hidden)]
    fn is_done(&self, driver: &Driver) -> Result<bool>;
}

mod sealed {
    /// Keeps foreign types out.
    #[expect(unnameable_types, reason = "nobody else may implement it")]
    pub trait Sealed {}
    impl Sealed for cudarc::driver::CudaStream {}
    impl Sealed for cudarc::driver::CudaEvent {}
    impl<T: Sealed> Sealed for std::sync::Arc<T> {}
}

impl Producer for CudaStream {
    fn wait(&self, driver: &Driver) -> Result<()> {
        let (call, synchronize) = call!(driver, cuStreamSynchronize)?;
        self.context().bind_to_thread().map_err(Error::cudarc("cuCtxSetCurrent"))?;
        // SAFETY: the stream lives as long as `self`, and its context is the thread's.
        call.status(unsafe { synchronize(self.cu_stream()) })
    }

    fn is_done(&self, driver: &Driver) -> Result<bool> {
        let (call, query) = call!(driver, cuStreamQuery)?;
        self.context().bind_to_thread().map_err(Error::cudarc("cuCtxSetCurrent"))?;
        // SAFETY: the stream lives as long as `self`, and its context is the thread's.
        done(call.status(unsafe { query(self.cu_stream()) }))
    }
}

impl Producer for CudaEvent {
    fn wait(&self, driver: &Driver) -> Result<()> {
        let (call, synchronize) = call!(driver, cuEventSynchronize)?;
        // SAFETY: the event lives as long as `self`.
        call.status(unsafe { synchronize(self.cu_event()) })
    }

    fn is_done(&self, driver: &Driver) -> Result<bool> {
        let (call, query) = call!(driver, cuEventQuery)?;
        // SAFETY: the event lives as long as `self`.
        done(call.status(unsafe { query(self.cu_event()) }))
    }
}

impl<P: Producer> Producer for Arc<P> {
    fn wait(&self, driver: &Driver) -> Result<()> {
        (**self).wait(driver)
    }

    fn is_done(&self, driver: &Driver) -> Result<bool> {
        (**self).is_done(driver)
    }
}

fn done(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(CudaCode::NOT_READY) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Device memory whose producer is done: what a NIC may send.
///
/// Holds the region borrowed, so that no kernel gets it through `device_mut` meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Ready<'r> {
    region: &'r Region,
}

impl<'r> Ready<'r> {
    pub(crate) const fn new(region: &'r Region) -> Self {
        Self { region }
    }

    /// A part to send or write from, in bytes.
    ///
    /// # Errors
    ///
    /// [`ibverbs::Error::OutOfBounds`] and [`ibverbs::Error::OutOfRange`], as for [`Region::segment`].
    pub fn segment(&self, bytes: impl RangeBounds<usize>) -> Result<Outbound<'r>> {
        Ok(Outbound(self.region.segment(bytes)?))
    }

    /// The handle for peers that read the memory.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        self.region.remote()
    }
}

/// Device memory where bytes of the network may land.
#[derive(Debug, Clone, Copy)]
pub struct Landing<'r> {
    region: &'r Region,
}

impl<'r> Landing<'r> {
    pub(crate) const fn new(region: &'r Region) -> Self {
        Self { region }
    }

    /// A part to receive or read into, in bytes.
    ///
    /// # Errors
    ///
    /// As for [`Ready::segment`].
    pub fn segment(&self, bytes: impl RangeBounds<usize>) -> Result<Inbound<'r>> {
        Ok(Inbound(self.region.segment(bytes)?))
    }

    /// The handle for peers that write the memory.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        self.region.remote()
    }
}

/// A part of device memory that may be sent from.
#[derive(Debug, Clone, Copy)]
pub struct Outbound<'r>(Segment<'r>);

impl<'r> From<Outbound<'r>> for Gather<'r> {
    fn from(Outbound(segment): Outbound<'r>) -> Self {
        Self::One(segment)
    }
}

impl<'r> From<Outbound<'r>> for Segment<'r> {
    fn from(Outbound(segment): Outbound<'r>) -> Self {
        segment
    }
}

/// A part of device memory that bytes may land in, and that cannot be sent from.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Inbound<'r>(Segment<'r>);

impl<'r> Inbound<'r> {
    /// Several parts, filled one after the other.
    #[must_use]
    pub const fn list(parts: &'r [Self]) -> Scatter<'r> {
        let (first, count) = (parts.as_ptr().cast::<Segment<'r>>(), parts.len());
        // SAFETY: an `Inbound` has the layout of its segment, and the parts are borrowed for as long.
        Scatter::List(unsafe { std::slice::from_raw_parts(first, count) })
    }
}

impl<'r> From<Inbound<'r>> for Scatter<'r> {
    fn from(Inbound(segment): Inbound<'r>) -> Self {
        Self::One(segment)
    }
}

/// Device memory whose inbound writes are visible: what kernels and copies may read.
///
/// Ends with the completion that it came from, since the next arrival needs the next flush.
#[derive(Debug)]
pub struct Arrived<'s, B: DeviceBuffer> {
    region: &'s CudaMemoryRegion<'s, B>,
    completion: PhantomData<&'s ()>,
}

impl<'s, B: DeviceBuffer> Arrived<'s, B> {
    pub(crate) const fn new(region: &'s CudaMemoryRegion<'s, B>) -> Self {
        Self { region, completion: PhantomData }
    }

    /// The elements, for kernels and copies of `cudarc`.
    #[must_use]
    pub fn device(&self) -> CudaView<'s, B::Element> {
        self.region.device()
    }

    /// The same memory to send on, which no kernel has touched.
    #[must_use]
    pub fn forward(&self) -> Ready<'s> {
        self.region.forward()
    }
}

/// Who must see writes of other devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// The GPU that the memory belongs to.
    Owner,
    /// Every GPU.
    AllDevices,
}

impl Visibility {
    /// `CUflushGPUDirectRDMAWritesScope`, and the order of `CUGPUDirectRDMAWritesOrdering` that makes it needless.
    pub(crate) const fn scope(self) -> u32 {
        match self {
            Self::Owner => 100,
            Self::AllDevices => 200,
        }
    }
}

/// Flushes from the host.
pub(crate) fn flush(gpu: &Gpu, visibility: Visibility) -> Result<()> {
    if !gpu.flush_options().contains(FlushOptions::HOST) {
        return Err(Error::Invalid {
            what: "the GPU needs a flush of inbound writes that the host cannot do",
            remedy: "use arrived_on, if its flush options have the stream's, or Access without local write",
        });
    }
    gpu.bind()?;
    let (call, flush) = call!(gpu.driver(), cuFlushGPUDirectRDMAWrites)?;
    // SAFETY: target 0 is the context of this thread, which was set above.
    call.status(unsafe { flush(0, visibility.scope()) })
}

/// Flushes in a stream, if the GPU can.
pub(crate) fn flush_in(gpu: &Gpu, stream: &CudaStream) -> Result<bool> {
    if !gpu.flush_options().contains(FlushOptions::STREAM) {
        return Ok(false);
    }
    gpu.bind()?;
    let (call, queue) = call!(gpu.driver(), cuStreamBatchMemOp_v2)?;
    let mut operation = MemoryOperation::FLUSH_REMOTE_WRITES;
    // SAFETY: one operation, which the call copies; the stream lives as long as it is borrowed.
    call.status(unsafe { queue(stream.cu_stream(), 1, &raw mut operation, 0) })?;
    Ok(true)
}

/// Refuses the completions of requests that bring no bytes to this side.
pub(crate) fn check_inbound(operation: Operation) -> Result<()> {
    let brings = operation.is_receive()
        || [Operation::READ, Operation::COMPARE_AND_SWAP, Operation::FETCH_AND_ADD]
            .contains(&operation);
    if brings {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "the completion of a request that brings nothing to this side",
        remedy: "take the completion of a receive, a read or an atomic, or CudaMemoryRegion::flush",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_brings_bytes_is_an_arrival() {
        for operation in
            [Operation::RECEIVE, Operation::RECEIVE_WRITE_WITH_IMMEDIATE, Operation::READ]
        {
            check_inbound(operation).unwrap();
        }
        for operation in [Operation::SEND, Operation::WRITE] {
            check_inbound(operation).unwrap_err();
        }
    }

    #[test]
    fn an_inbound_part_has_the_layout_of_a_segment() {
        assert_eq!(size_of::<Inbound<'_>>(), size_of::<Segment<'_>>());
        assert!(matches!(Inbound::list(&[]), Scatter::List([])));
    }
}
