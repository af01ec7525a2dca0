//! Lets the soft device reach memory of a GPU: it moves the bytes with CUDA copies.
//!
//! The device is handed what a NIC is handed, a dma-buf, an offset and an address, and copies on a stream of its own,
//! which waits for no kernel, as a NIC does not. It can also hold what it writes back until somebody flushes, as a
//! bus may, so that a program that forgets to wait or to flush sees wrong data every time.
#![expect(unsafe_code, reason = "copies between addresses that a device was given")]

use std::{
    collections::HashMap,
    ffi::c_uint,
    fs::File,
    io::{self, Seek, SeekFrom},
    os::fd::BorrowedFd,
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use soft_device::{DmaEnd, DmaEngine, set_dma_engine};

const PAGE: u64 = 4096;

/// What a region was registered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    /// The device pointer that work requests call its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub length: usize,
    /// Where it starts in the dma-buf.
    pub offset: u64,
    /// The length of the dma-buf.
    pub dma_buf_length: u64,
}

/// The engine of this process.
#[derive(Debug)]
pub struct CudaEngine {
    state: Mutex<State>,
    failures: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// A stream for each GPU.
    streams: HashMap<i32, Arc<CudaStream>>,
    attached: HashMap<u64, (Attachment, Arc<CudaStream>)>,
    next: u64,
    /// Regions whose inbound writes are held back, by their address.
    holding: Vec<u64>,
    held: Vec<Held>,
}

/// A write that has not reached the memory yet.
#[derive(Debug)]
struct Held {
    region: u64,
    address: u64,
    bytes: Vec<u8>,
    stream: Arc<CudaStream>,
}

impl CudaEngine {
    /// The engine of this process, which all its soft devices use from the first call on.
    pub fn install() -> &'static Self {
        static ENGINE: OnceLock<CudaEngine> = OnceLock::new();
        let engine =
            ENGINE.get_or_init(|| Self { state: Mutex::default(), failures: AtomicU64::new(0) });
        set_dma_engine(engine);
        engine
    }

    /// What is registered now.
    #[must_use]
    pub fn attachments(&self) -> Vec<Attachment> {
        self.state().attached.values().map(|(attachment, _)| *attachment).collect()
    }

    /// How many copies the driver refused.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Holds back what is written to the region at a device pointer, until a [`flush`](Self::flush). Ends, and gives up
    /// what is still held, when the result is dropped.
    #[must_use]
    pub fn hold(&'static self, region: u64) -> Hold {
        self.state().holding.push(region);
        Hold { engine: self, region }
    }

    /// Writes what was held back.
    ///
    /// # Errors
    ///
    /// What the driver refused the copy for.
    pub fn flush(&self) -> Result<(), DriverError> {
        let held = std::mem::take(&mut self.state().held);
        held.into_iter().try_for_each(|Held { address, bytes, stream, .. }| {
            copy(&stream, address, bytes.as_ptr().expose_provenance() as u64, bytes.len())
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands in for `cuFlushGPUDirectRDMAWrites`: writes what the engine holds back.
///
/// # Safety
///
/// None is needed; it has the type of the driver's function.
#[must_use]
pub unsafe extern "C" fn flush(_target: c_uint, _scope: c_uint) -> c_uint {
    match CudaEngine::install().flush() {
        Ok(()) => 0,
        Err(DriverError(code)) => code as c_uint,
    }
}

/// As long as it lives, writes to a region are held back.
#[derive(Debug)]
pub struct Hold {
    engine: &'static CudaEngine,
    region: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.engine.state();
        state.holding.retain(|each| *each != self.region);
        state.held.retain(|each| each.region != self.region);
    }
}

impl DmaEngine for &'static CudaEngine {
    fn attach(&self, fd: BorrowedFd<'_>, offset: u64, length: usize, iova: u64) -> io::Result<u64> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let dma_buf_length = File::from(fd.try_clone_to_owned()?).seek(SeekFrom::End(0))?;
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > dma_buf_length) || offset % PAGE != iova % PAGE {
            return Err(invalid());
        }
        let attachment = Attachment { address: iova, length, offset, dma_buf_length };
        let mut state = self.state();
        let stream = state.stream_of(iova).map_err(|_| invalid())?;
        state.next += 1;
        let number = state.next;
        state.attached.insert(number, (attachment, stream));
        Ok(number)
    }

    fn detach(&self, memory: u64) {
        self.state().attached.remove(&memory);
    }

    unsafe fn copy(&self, from: DmaEnd, to: DmaEnd, length: usize) {
        let mut state = self.state();
        let (Some((from, source)), Some((to, target))) = (state.find(from), state.find(to)) else {
            self.failures.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // What lands in a GPU is its own stream's work; what leaves one for the host is that one's.
        let Some(stream) = target.as_ref().or(source.as_ref()).map(|(_, stream)| stream) else {
            return;
        };
        let region = target.as_ref().map(|(attachment, _)| attachment.address);
        let copied = match region.filter(|region| state.holding.contains(region)) {
            Some(region) => {
                let mut bytes = vec![0_u8; length];
                let place = bytes.as_mut_ptr().expose_provenance() as u64;
                let copied = copy(stream, place, from, length);
                let stream = Arc::clone(stream);
                state.held.push(Held { region, address: to, bytes, stream });
                copied
            }
            None => {
                let stream = Arc::clone(stream);
                drop(state);
                copy(&stream, to, from, length)
            }
        };
        if copied.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An end's address, and for attached memory what and whose it is.
type Found = (u64, Option<(Attachment, Arc<CudaStream>)>);

impl State {
    fn find(&self, end: DmaEnd) -> Option<Found> {
        match end {
            DmaEnd::Process(pointer) => Some((pointer.expose_provenance() as u64, None)),
            DmaEnd::Attached { memory, offset } => {
                let (attachment, stream) = self.attached.get(&memory)?;
                let address = attachment.address + offset as u64;
                Some((address, Some((*attachment, Arc::clone(stream)))))
            }
        }
    }

    /// A stream of the GPU that a device pointer belongs to. It waits for no other stream.
    fn stream_of(&mut self, pointer: u64) -> Result<Arc<CudaStream>, DriverError> {
        let mut ordinal = -1_i32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the attribute is an int, for which there is a place.
        unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, pointer) }
            .result()?;
        if let Some(stream) = self.streams.get(&ordinal) {
            return Ok(Arc::clone(stream));
        }
        let number = usize::try_from(ordinal);
        let number = number.map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE))?;
        let _restored = Restored::save()?;
        let context = CudaContext::new(number)?;
        let stream = context.new_stream()?;
        self.connect(&context);
        self.streams.insert(ordinal, Arc::clone(&stream));
        Ok(stream)
    }

    /// Lets the GPUs reach each other, where they can: copies between them then take the short way.
    fn connect(&self, context: &Arc<CudaContext>) {
        for other in self.streams.values() {
            let other = other.context();
            for (one, another) in [(context, other), (other, context)] {
                if one.bind_to_thread().is_ok() {
                    // SAFETY: both contexts live. Refused where they cannot, and where they do already.
                    unsafe { sys::cuCtxEnablePeerAccess(another.cu_ctx(), 0) };
                }
            }
        }
    }
}

/// Copies between any two addresses that CUDA knows or that are memory of the process, and waits.
fn copy(stream: &CudaStream, to: u64, from: u64, length: usize) -> Result<(), DriverError> {
    let _restored = Restored::save()?;
    stream.context().bind_to_thread()?;
    // SAFETY: both ends are registered for `length` bytes, by the contract of `DmaEngine::copy`, or memory of
    // this crate.
    unsafe { sys::cuMemcpyAsync(to, from, length, stream.cu_stream()) }.result()?;
    // SAFETY: the stream lives as long as it is borrowed.
    unsafe { result::stream::synchronize(stream.cu_stream()) }
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
