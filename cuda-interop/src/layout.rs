//! Structs of cuda.h that this crate fills, with plain numbers where C has enums that grow.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

/// `CUmemLocation`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: c_uint,
    pub(crate) number: c_int,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    pub(crate) const fn device(number: c_int) -> Self {
        Self { kind: 1, number }
    }
}

/// `CUmemAllocationProp`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location: Location,
    pub(crate) windows_security: *mut c_void,
    pub(crate) compression: u8,
    pub(crate) gpu_direct_rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: c_uint,
}

/// `CUstreamBatchMemOpParams`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryOperation {
    /// The operation in the lower half of the first word, its flags in the upper half.
    pub(crate) words: [c_ulonglong; 6],
}

impl MemoryOperation {
    /// `CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES`, without flags.
    pub(crate) const FLUSH_REMOTE_WRITES: Self = Self { words: [3, 0, 0, 0, 0, 0] };
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys;

    use super::*;

    #[test]
    fn the_structs_have_the_layout_of_the_header() {
        assert_eq!(size_of::<AllocationProperties>(), size_of::<sys::CUmemAllocationProp>());
        assert_eq!(size_of::<AccessDescription>(), size_of::<sys::CUmemAccessDesc>());
        assert_eq!(size_of::<MemoryOperation>(), size_of::<sys::CUstreamBatchMemOpParams>());
        assert_eq!(size_of::<Location>(), size_of::<sys::CUmemLocation>());
        let flags = std::mem::offset_of!(AllocationProperties, compression);
        assert_eq!(flags, std::mem::offset_of!(sys::CUmemAllocationProp, allocFlags));
        let location = std::mem::offset_of!(AllocationProperties, location);
        assert_eq!(location, std::mem::offset_of!(sys::CUmemAllocationProp, location));
        let flags = std::mem::offset_of!(AccessDescription, flags);
        assert_eq!(flags, std::mem::offset_of!(sys::CUmemAccessDesc, flags));
    }
}
