//! What can go wrong: the driver call, the numbers, and what to do about it.

use std::{fmt, io};

use cudarc::driver::DriverError;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a call of this crate was refused for.
///
/// Messages do not repeat their cause; print the chain of [`source`](std::error::Error::source)s.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no CUDA driver on this machine.
    #[error(
        "the CUDA driver library libcuda.so.1 cannot be opened: install the NVIDIA driver, or start the container \
         with its GPUs (--gpus all)"
    )]
    DriverMissing {
        /// What the dynamic linker says.
        #[source]
        source: &'static libloading::Error,
    },

    /// The driver library lacks a function.
    #[error(
        "the CUDA driver has no {name}: it needs CUDA {since} or later; update the NVIDIA driver"
    )]
    Symbol {
        /// The C function.
        name: &'static str,
        /// The CUDA release that brought it.
        since: &'static str,
    },

    /// The driver ran a call and refused it.
    #[error("{call} failed with {code}{}", remedy.map(|text| format!(": {text}")).unwrap_or_default())]
    Cuda {
        /// The C function.
        call: &'static str,
        /// What it returned.
        code: CudaCode,
        /// What to do, for the causes that are well known.
        remedy: Option<&'static str>,
    },

    /// An address is not memory of a GPU that could be registered.
    #[error("{length} bytes at {address:#x} are not device memory to register: {reason}")]
    NotDeviceMemory {
        /// The first byte.
        address: u64,
        /// How many bytes.
        length: u64,
        /// What they are instead.
        reason: String,
    },

    /// A range does not lie inside of a buffer; nothing was called.
    #[error("elements {start}..{end} do not lie inside of a buffer of {length}")]
    OutOfBounds {
        /// The first element asked for.
        start: usize,
        /// One past the last element asked for.
        end: usize,
        /// How many elements there are.
        length: usize,
    },

    /// Arguments that contradict each other or the state of things; nothing was called.
    #[error("{what}: {remedy}")]
    Invalid {
        /// What was wrong.
        what: &'static str,
        /// What would be right.
        remedy: &'static str,
    },

    /// Memory could be registered neither through a dma-buf nor through a peer memory module.
    #[error("neither a dma-buf ({dma_buf}) nor peer memory ({peer_memory}) could be registered")]
    NoPath {
        /// Why not through a dma-buf.
        dma_buf: Box<Reason>,
        /// Why not through a peer memory module.
        peer_memory: Box<Reason>,
    },

    /// A verb failed, or its arguments were wrong.
    #[error(transparent)]
    Verbs(#[from] ibverbs::Error),

    /// A file that describes the machine cannot be read.
    #[error("{path} cannot be read")]
    Sysfs {
        /// The file or folder.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },

    /// A file or a text does not say what it should.
    #[error("{what} says {found:?}, expected {expected}")]
    Malformed {
        /// What was read.
        what: String,
        /// What it said.
        found: String,
        /// What it may say.
        expected: &'static str,
    },
}

impl Error {
    /// What the driver returned, if a driver call was refused.
    #[must_use]
    pub const fn code(&self) -> Option<CudaCode> {
        match self {
            Self::Cuda { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// A refusal that came through `cudarc`.
    pub(crate) fn cudarc(call: &'static str) -> impl Fn(DriverError) -> Self {
        move |DriverError(code)| Call(call).error(CudaCode(code as u32))
    }
}

/// An error with its causes, in one line each way.
#[derive(Debug)]
pub struct Reason(pub Error);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        let mut cause = std::error::Error::source(&self.0);
        while let Some(each) = cause {
            write!(f, ": {each}")?;
            cause = each.source();
        }
        Ok(())
    }
}

/// What a driver call returns (`CUresult`). Newer drivers know more codes than have names here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CudaCode(pub u32);

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl CudaCode {
            $(#[doc = concat!("`CUDA_", $text, "`")] pub const $name: Self = Self($value);)*

            fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(concat!("CUDA_", $text)),)*
                    _ => None,
                }
            }
        }
    };
}
codes! {
    SUCCESS = 0, "SUCCESS";
    INVALID_VALUE = 1, "ERROR_INVALID_VALUE";
    OUT_OF_MEMORY = 2, "ERROR_OUT_OF_MEMORY";
    NOT_INITIALIZED = 3, "ERROR_NOT_INITIALIZED";
    DEINITIALIZED = 4, "ERROR_DEINITIALIZED";
    STUB_LIBRARY = 34, "ERROR_STUB_LIBRARY";
    NO_DEVICE = 100, "ERROR_NO_DEVICE";
    INVALID_DEVICE = 101, "ERROR_INVALID_DEVICE";
    INVALID_CONTEXT = 201, "ERROR_INVALID_CONTEXT";
    OPERATING_SYSTEM = 304, "ERROR_OPERATING_SYSTEM";
    NOT_READY = 600, "ERROR_NOT_READY";
    ILLEGAL_ADDRESS = 700, "ERROR_ILLEGAL_ADDRESS";
    CONTEXT_IS_DESTROYED = 709, "ERROR_CONTEXT_IS_DESTROYED";
    LAUNCH_FAILED = 719, "ERROR_LAUNCH_FAILED";
    NOT_PERMITTED = 800, "ERROR_NOT_PERMITTED";
    NOT_SUPPORTED = 801, "ERROR_NOT_SUPPORTED";
    SYSTEM_DRIVER_MISMATCH = 803, "ERROR_SYSTEM_DRIVER_MISMATCH";
    UNKNOWN = 999, "ERROR_UNKNOWN";
}

impl fmt::Display for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}

impl fmt::Debug for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The name of a driver function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call(pub(crate) &'static str);

impl Call {
    /// Reads what the function returned.
    pub(crate) fn status(self, returned: u32) -> Result<()> {
        match CudaCode(returned) {
            CudaCode::SUCCESS => Ok(()),
            code => Err(self.error(code)),
        }
    }

    pub(crate) fn error(self, code: CudaCode) -> Error {
        Error::Cuda { call: self.0, code, remedy: remedy(self.0, code) }
    }

    /// For destructors: a refusal is logged, never a panic.
    pub(crate) fn log_refusal(self, returned: u32) {
        if let Err(error) = self.status(returned) {
            log::warn!("{error}; the memory is leaked");
        }
    }
}

fn remedy(call: &str, code: CudaCode) -> Option<&'static str> {
    Some(match (call, code) {
        (_, CudaCode::STUB_LIBRARY) => {
            "the stub library of the CUDA toolkit was loaded; take its folder `stubs` out of LD_LIBRARY_PATH"
        }
        (_, CudaCode::NO_DEVICE) => {
            "no GPU is visible; look at nvidia-smi and at CUDA_VISIBLE_DEVICES, and start a container with its GPUs"
        }
        (_, CudaCode::INVALID_DEVICE) => "there is no GPU of that number",
        (_, CudaCode::SYSTEM_DRIVER_MISMATCH) => {
            "the driver library and the kernel module are of different releases; reboot after an update"
        }
        ("cuMemGetHandleForAddressRange", CudaCode::NOT_SUPPORTED) => {
            "this GPU or driver cannot export this memory as a dma-buf in the way asked for; it needs the open kernel \
             modules on Turing or later, and DMA_BUF_SUPPORTED among the capabilities"
        }
        ("cuMemGetHandleForAddressRange", CudaCode::INVALID_VALUE) => {
            "only allocated device memory is exported: not managed memory, pinned host memory, freed memory, or bytes \
             past the end of an allocation"
        }
        (_, CudaCode::ILLEGAL_ADDRESS | CudaCode::LAUNCH_FAILED) => {
            "a kernel that ran before this call failed, and its context cannot be used any more"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_call_the_code_and_the_remedy() {
        let error = Call("cuMemGetHandleForAddressRange").status(801).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(
                "cuMemGetHandleForAddressRange failed with CUDA_ERROR_NOT_SUPPORTED: "
            ),
            "{text}"
        );
        assert!(text.contains("open kernel"), "{text}");
        assert_eq!(error.code(), Some(CudaCode::NOT_SUPPORTED));
    }

    #[test]
    fn a_code_that_has_no_name_here_is_a_number() {
        assert_eq!(
            Call("cuInit").status(4711).unwrap_err().to_string(),
            "cuInit failed with CUDA error 4711"
        );
        Call("cuInit").status(0).unwrap();
    }
}
