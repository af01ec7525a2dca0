//! The functions of the CUDA driver that this crate calls, found at run time.
//!
//! `cudarc` brings contexts, streams and slices. What is called here beside it goes through a table of its own: a
//! function that the driver lacks is an error and no panic, and a code that is newer than the bindings is a number.
#![expect(unsafe_code, reason = "finds functions in the driver library and declares their types")]

use std::{
    ffi::{c_char, c_int, c_uint, c_ulonglong, c_void},
    fmt,
    sync::OnceLock,
};

use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUevent, CUstream};
use libloading::Library;

use crate::{
    Error, Result,
    layout::{AccessDescription, AllocationProperties, MemoryOperation},
};

macro_rules! functions {
    ($($name:ident($($parameter:ident: $type:ty),*), since $since:literal;)*) => {
        /// The driver's functions, each if the driver has it.
        ///
        /// [`Driver::get`] is the one of this machine. A device in software that holds writes back until they are
        /// flushed puts its own flush in place of the driver's, with [`with_flush`](Self::with_flush).
        #[expect(non_snake_case, reason = "the names of the C functions")]
        #[derive(Clone, Copy)]
        pub struct Driver {
            $(pub(crate) $name: Option<unsafe extern "C" fn($($parameter: $type),*) -> c_uint>,)*
        }

        impl Driver {
            /// A driver that has no function.
            pub(crate) const EMPTY: Self = Self { $($name: None,)* };

            fn of(library: &Library) -> Self {
                Self {
                    // SAFETY: the type is the one that cuda.h declares for this name.
                    $($name: unsafe { library.get(stringify!($name)) }.ok().map(|symbol| *symbol),)*
                }
            }
        }

        /// The CUDA release that brought a function.
        pub(crate) fn since(name: &str) -> &'static str {
            match name {
                $(stringify!($name) => $since,)*
                _ => "10.2",
            }
        }
    };
}
functions! {
    cuInit(flags: c_uint), since "2.0";
    cuDriverGetVersion(version: *mut c_int), since "2.2";
    cuDeviceGetCount(count: *mut c_int), since "2.0";
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice), since "2.0";
    cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: CUdevice), since "4.1";
    cuPointerGetAttributes(count: c_uint, attributes: *mut c_uint, values: *mut *mut c_void, address: CUdeviceptr), since "7.0";
    cuPointerSetAttribute(value: *const c_void, attribute: c_uint, address: CUdeviceptr), since "6.0";
    cuMemGetHandleForAddressRange(handle: *mut c_void, address: CUdeviceptr, size: usize, kind: c_uint, flags: c_ulonglong), since "11.7";
    cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint), since "11.3";
    cuStreamSynchronize(stream: CUstream), since "2.0";
    cuStreamQuery(stream: CUstream), since "2.0";
    cuEventSynchronize(event: CUevent), since "2.0";
    cuEventQuery(event: CUevent), since "2.0";
    cuStreamBatchMemOp_v2(stream: CUstream, count: c_uint, operations: *mut MemoryOperation, flags: c_uint), since "11.7";
    cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const AllocationProperties, option: c_uint), since "10.2";
    cuMemAddressReserve(address: *mut CUdeviceptr, size: usize, alignment: usize, wanted: CUdeviceptr, flags: c_ulonglong), since "10.2";
    cuMemAddressFree(address: CUdeviceptr, size: usize), since "10.2";
    cuMemCreate(handle: *mut c_ulonglong, size: usize, properties: *const AllocationProperties, flags: c_ulonglong), since "10.2";
    cuMemRelease(handle: c_ulonglong), since "10.2";
    cuMemMap(address: CUdeviceptr, size: usize, offset: usize, handle: c_ulonglong, flags: c_ulonglong), since "10.2";
    cuMemUnmap(address: CUdeviceptr, size: usize), since "10.2";
    cuMemSetAccess(address: CUdeviceptr, size: usize, description: *const AccessDescription, count: usize), since "10.2";
}

/// What `cudarc` calls in the paths that this crate takes. It stops the program where one is missing, so that all are
/// looked for first.
const NEEDED_BY_CUDARC: [&str; 20] = [
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemsetD8Async",
    "cuCtxSynchronize",
];

/// A function of a driver by its C name, together with its [`Call`].
macro_rules! call {
    ($driver:expr, $name:ident) => {{
        let name = stringify!($name);
        match $driver.$name {
            Some(function) => Ok(($crate::error::Call(name), function)),
            None => Err($crate::Error::Symbol { name, since: $crate::driver::since(name) }),
        }
    }};
}
pub(crate) use call;

impl Driver {
    /// The driver of this machine. Opens it at the first call and asks it to initialise.
    ///
    /// # Errors
    ///
    /// [`Error::DriverMissing`] without libcuda, [`Error::Symbol`] for one that is too old, [`Error::Cuda`] if it
    /// does not start: no GPU, or a kernel module of another release.
    pub fn get() -> Result<&'static Self> {
        static LIBRARY: OnceLock<Result<Library, libloading::Error>> = OnceLock::new();
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        // SAFETY: the initialisers of the driver library have no conditions.
        let opened = LIBRARY.get_or_init(|| unsafe { Library::new("libcuda.so.1") });
        let library = match opened {
            Ok(library) => library,
            Err(source) => return Err(Error::DriverMissing { source }),
        };
        for name in NEEDED_BY_CUDARC {
            // SAFETY: looked for, not called.
            if unsafe { library.get::<*const c_void>(name) }.is_err() {
                return Err(Error::Symbol { name, since: "11.2" });
            }
        }
        let driver = DRIVER.get_or_init(|| Self::of(library));
        let (call, init) = call!(driver, cuInit)?;
        // SAFETY: may be called at any time, with flags of 0, by any number of threads.
        call.status(unsafe { init(0) })?;
        Ok(driver)
    }

    /// The same driver with another function that flushes writes: it gets the target and the scope of
    /// `cuFlushGPUDirectRDMAWrites` and returns a `CUresult`.
    ///
    /// # Safety
    ///
    /// `flush` may be called by any thread at any time, and leaves the context of the thread as it is.
    #[must_use]
    pub unsafe fn with_flush(self, flush: unsafe extern "C" fn(c_uint, c_uint) -> c_uint) -> Self {
        Self { cuFlushGPUDirectRDMAWrites: Some(flush), ..self }
    }

    /// What the driver can do at most: the CUDA release, major and minor number.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if it does not say.
    #[doc(alias = "cuDriverGetVersion")]
    pub fn version(&self) -> Result<(u32, u32)> {
        let (call, get) = call!(self, cuDriverGetVersion)?;
        let mut version = 0;
        // SAFETY: the place is valid for the write.
        call.status(unsafe { get(&raw mut version) })?;
        let version = u32::try_from(version).unwrap_or_default();
        Ok((version / 1000, version % 1000 / 10))
    }

    /// How many GPUs there are.
    pub(crate) fn count(&self) -> Result<usize> {
        let (call, get) = call!(self, cuDeviceGetCount)?;
        let mut count = 0;
        // SAFETY: the place is valid for the write.
        call.status(unsafe { get(&raw mut count) })?;
        Ok(usize::try_from(count).unwrap_or_default())
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_an_error_that_says_what_to_install() {
        match Driver::get() {
            Err(Error::DriverMissing { .. }) => {
                assert!(Driver::get().unwrap_err().to_string().contains("NVIDIA driver"));
            }
            Err(error) => assert!(error.code().is_some(), "{error}"),
            Ok(driver) => assert!(driver.version().unwrap() >= (11, 2)),
        }
    }

    #[test]
    fn a_function_that_is_missing_is_an_error_with_the_release_that_brought_it() {
        let error = call!(Driver::EMPTY, cuMemGetHandleForAddressRange).unwrap_err();
        assert!(error.to_string().contains("CUDA 11.7"), "{error}");
        Driver::EMPTY.version().unwrap_err();
    }
}
