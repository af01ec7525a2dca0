//! Lets the soft device reach memory of a GPU: it moves the bytes with CUDA copies.
//!
//! The device is handed what a NIC is handed, a dma-buf, an offset and an address, and copies on a stream of its own,
//! which waits for no kernel, as a NIC does not. Where the device holds writes back until they are flushed, as
//! a bus may, [`flush`] takes the place of the driver's function. So a program that forgets to wait or to flush sees
//! wrong data every time.
#![expect(unsafe_code, reason = "copies between addresses that a device was given")]

use std::{
    collections::HashMap,
    ffi::c_uint,
    fs::File,
    io::{self, Seek, SeekFrom},
    mem::MaybeUninit,
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use soft_device::{DmaAddress, DmaEngine, SoftDevice};

const PAGE: u64 = 4096;

/// What a region was registered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    /// The device pointer that work requests call its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Where it starts in the dma-buf.
    pub offset: u64,
    /// The length of the dma-buf.
    pub dma_buf_length: u64,
}

/// Moves bytes of GPUs for one or several soft devices.
#[derive(Debug, Default)]
pub struct CudaEngine {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A stream for each GPU.
    streams: HashMap<i32, Arc<CudaStream>>,
    last: Option<Attachment>,
}

impl CudaEngine {
    /// Makes an engine for a device.
    #[must_use]
    pub fn install(device: &SoftDevice) -> Arc<Self> {
        let engine = Arc::new(Self::default());
        device.set_dma_engine(Arc::<Self>::clone(&engine));
        engine
    }

    /// What was registered last.
    #[must_use]
    pub fn last_attachment(&self) -> Option<Attachment> {
        self.state().last
    }

    /// Copies between memory of a GPU and memory of the process, and waits.
    ///
    /// # Safety
    ///
    /// Both ends have `length` bytes; `pointer` is the one of a GPU.
    unsafe fn transfer(&self, pointer: u64, to: u64, from: u64, length: usize) -> io::Result<()> {
        let _restored = Restored::save().map_err(failed)?;
        let stream = self.state().stream_of(pointer).map_err(failed)?;
        stream.context().bind_to_thread().map_err(failed)?;
        // SAFETY: the caller vouches for both ends; the stream lives.
        let queued = unsafe { sys::cuMemcpyAsync(to, from, length, stream.cu_stream()) };
        queued.result().map_err(failed)?;
        // SAFETY: the stream lives.
        unsafe { result::stream::synchronize(stream.cu_stream()) }.map_err(failed)
    }

    /// Copies between memories of GPUs, and waits.
    ///
    /// # Safety
    ///
    /// Both ends have `length` bytes.
    unsafe fn transfer_between(&self, to: u64, from: u64, length: usize) -> io::Result<()> {
        let _restored = Restored::save().map_err(failed)?;
        let (source, target) = {
            let mut state = self.state();
            (state.stream_of(from).map_err(failed)?, state.stream_of(to).map_err(failed)?)
        };
        target.context().bind_to_thread().map_err(failed)?;
        let (here, there) = (source.context().cu_ctx(), target.context().cu_ctx());
        let stream = target.cu_stream();
        // SAFETY: the caller vouches for both ends; the contexts and the stream live.
        let queued = unsafe { sys::cuMemcpyPeerAsync(to, there, from, here, length, stream) };
        queued.result().map_err(failed)?;
        // SAFETY: the stream lives.
        unsafe { result::stream::synchronize(stream) }.map_err(failed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: DriverError) -> io::Error {
    io::Error::other(error)
}

impl DmaEngine for CudaEngine {
    fn attach(&self, at: DmaAddress<'_>, length: u64) -> io::Result<()> {
        let invalid = || io::Error::from_raw_os_error(22); // EINVAL
        let dma_buf_length = File::from(at.file.try_clone_to_owned()?).seek(SeekFrom::End(0))?;
        let end = at.offset.checked_add(length);
        if end.is_none_or(|end| end > dma_buf_length) || at.offset % PAGE != at.iova % PAGE {
            return Err(invalid());
        }
        let _restored = Restored::save().map_err(failed)?;
        let mut state = self.state();
        state.stream_of(at.iova).map_err(|_| invalid())?;
        state.last =
            Some(Attachment { address: at.iova, length, offset: at.offset, dma_buf_length });
        Ok(())
    }

    fn read(&self, at: DmaAddress<'_>, bytes: &mut [u8]) -> io::Result<()> {
        let place = bytes.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: registered memory is addressed by its device pointer, and the device checked the range.
        unsafe { self.transfer(at.iova, place, at.iova, bytes.len()) }
    }

    fn write(&self, at: DmaAddress<'_>, bytes: &[u8]) -> io::Result<()> {
        let place = bytes.as_ptr().expose_provenance() as u64;
        // SAFETY: as for `read`.
        unsafe { self.transfer(at.iova, at.iova, place, bytes.len()) }
    }

    fn copy(
        &self,
        from: DmaAddress<'_>,
        to: DmaAddress<'_>,
        length: u64,
    ) -> Option<io::Result<()>> {
        let length = usize::try_from(length).ok()?;
        // SAFETY: as for `read`, at both ends.
        Some(unsafe { self.transfer_between(to.iova, from.iova, length) })
    }
}

impl State {
    /// A stream of the GPU that a device pointer belongs to. It waits for no other stream.
    fn stream_of(&mut self, pointer: u64) -> Result<Arc<CudaStream>, DriverError> {
        let mut ordinal = -1_i32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the attribute is an int, for which there is a place.
        let asked =
            unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, pointer) };
        asked.result()?;
        if let Some(stream) = self.streams.get(&ordinal) {
            return Ok(Arc::clone(stream));
        }
        let number = usize::try_from(ordinal)
            .map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE))?;
        let context = CudaContext::new(number)?;
        let stream = context.new_stream()?;
        self.connect(&context);
        self.streams.insert(ordinal, Arc::clone(&stream));
        Ok(stream)
    }

    /// Lets the GPUs reach each other's memory, where they can: copies between them then take the short way.
    fn connect(&self, context: &Arc<CudaContext>) {
        for other in self.streams.values() {
            let other = other.context();
            for (one, another) in [(context, other), (other, context)] {
                // Refused where they cannot, and where they do already.
                if let Err(error) = reach(one, another) {
                    log::debug!(
                        "GPU {} does not reach {}: {error}",
                        one.ordinal(),
                        another.ordinal()
                    );
                }
            }
        }
    }
}

/// Lets one GPU reach the memory of another: what is allocated plainly, and what comes from its pool.
fn reach(one: &CudaContext, another: &CudaContext) -> Result<(), DriverError> {
    one.bind_to_thread()?;
    // SAFETY: both contexts live. A second time is refused, and changes nothing.
    unsafe { sys::cuCtxEnablePeerAccess(another.cu_ctx(), 0) };
    let mut pool = ptr::null_mut();
    // SAFETY: the place is valid for the write.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, another.cu_device()) }.result()?;
    let mut description = MaybeUninit::<sys::CUmemAccessDesc>::zeroed();
    let place = description.as_mut_ptr().cast::<[c_uint; 3]>();
    // A device, its number, and reading and writing.
    let words = [1, u32::try_from(one.ordinal()).unwrap_or(u32::MAX), 3];
    // SAFETY: the description is three words, in this order.
    unsafe { place.write(words) };
    // SAFETY: the pool and the description are there.
    unsafe { sys::cuMemPoolSetAccess(pool, description.as_ptr(), 1) }.result()
}

/// Gives a thread its context back when it is dropped.
struct Restored(sys::CUcontext);

impl Restored {
    fn save() -> Result<Self, DriverError> {
        Ok(Self(result::ctx::get_current()?.unwrap_or(ptr::null_mut())))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        // SAFETY: the context was the thread's before, or null for none.
        unsafe { sys::cuCtxSetCurrent(self.0) };
    }
}

static FLUSHED: Mutex<Option<Arc<SoftDevice>>> = Mutex::new(None);

/// Names the device whose writes [`flush`] flushes.
pub fn set_flushed_device(device: Option<Arc<SoftDevice>>) {
    *FLUSHED.lock().unwrap_or_else(PoisonError::into_inner) = device;
}

/// Stands in for `cuFlushGPUDirectRDMAWrites`: writes what the device that was named holds back.
///
/// # Safety
///
/// None is needed; it has the type of the driver's function.
#[must_use]
pub unsafe extern "C" fn flush(_target: c_uint, _scope: c_uint) -> c_uint {
    if let Some(device) = &*FLUSHED.lock().unwrap_or_else(PoisonError::into_inner) {
        device.flush_inbound_writes();
    }
    0
}
