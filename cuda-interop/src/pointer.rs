//! What the driver knows about an address.
#![expect(unsafe_code, reason = "queries the driver")]

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::CUdeviceptr;

use crate::{Driver, Error, Result, driver::call};

/// What kind of memory an address belongs to (`CUmemorytype`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryKind(pub u32);

impl MemoryKind {
    /// None that CUDA knows.
    pub const UNKNOWN: Self = Self(0);
    /// Memory of the host.
    pub const HOST: Self = Self(1);
    /// Memory of a GPU.
    pub const DEVICE: Self = Self(2);
}

/// What the driver knows about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PointerInfo {
    /// Whose memory it is.
    pub kind: MemoryKind,
    /// The number of its GPU.
    pub ordinal: usize,
    /// Where its allocation begins.
    pub start: u64,
    /// The length of its allocation in bytes.
    pub length: u64,
    /// Whether it moves between host and GPU by itself (`cuMemAllocManaged`).
    pub managed: bool,
    /// Whether there is memory behind the address.
    pub mapped: bool,
    /// Whether the GPUDirect RDMA modules can map it.
    pub gpu_direct_rdma_capable: bool,
    /// Whether synchronous operations on it wait until they are done (`SYNC_MEMOPS`).
    pub synchronous: bool,
}

const MEMORY_TYPE: c_uint = 2;
const SYNC_MEMOPS: c_uint = 6;
const IS_MANAGED: c_uint = 8;
const DEVICE_ORDINAL: c_uint = 9;
const RANGE_START: c_uint = 11;
const RANGE_SIZE: c_uint = 12;
const MAPPED: c_uint = 13;
const GPU_DIRECT_RDMA_CAPABLE: c_uint = 15;
const MEMORY_POOL: c_uint = 17;
const MAPPING_BASE: c_uint = 19;

impl Driver {
    /// Asks about an address of any kind, in one call.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if the driver does not answer. An address that it does not know is an answer, of
    /// [`MemoryKind::UNKNOWN`].
    #[doc(alias = "cuPointerGetAttributes")]
    pub fn pointer_info(&self, address: CUdeviceptr) -> Result<PointerInfo> {
        let (call, get) = call!(self, cuPointerGetAttributes)?;
        let (mut kind, mut ordinal): (c_uint, c_int) = (0, -1);
        // Flags are an unsigned number for SYNC_MEMOPS, one byte or an int for the others, by release.
        let (mut managed, mut mapped, mut capable, mut synchronous) = (0_u64, 0_u64, 0_u64, 0_u64);
        let (mut start, mut length): (CUdeviceptr, usize) = (0, 0);
        let mut attributes = [
            MEMORY_TYPE,
            DEVICE_ORDINAL,
            IS_MANAGED,
            MAPPED,
            GPU_DIRECT_RDMA_CAPABLE,
            SYNC_MEMOPS,
            RANGE_START,
            RANGE_SIZE,
        ];
        let mut values: [*mut c_void; 8] = [
            (&raw mut kind).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut managed).cast(),
            (&raw mut mapped).cast(),
            (&raw mut capable).cast(),
            (&raw mut synchronous).cast(),
            (&raw mut start).cast(),
            (&raw mut length).cast(),
        ];
        let (attributes, values) = (attributes.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: eight attributes, and for each a place at least as large as its value.
        call.status(unsafe { get(8, attributes, values, address) })?;
        Ok(PointerInfo {
            kind: MemoryKind(kind),
            ordinal: usize::try_from(ordinal).unwrap_or(usize::MAX),
            start,
            length: length as u64,
            managed: managed != 0,
            mapped: mapped != 0,
            gpu_direct_rdma_capable: capable != 0,
            synchronous: synchronous != 0,
        })
    }

    /// Where the chunk of a memory pool begins that an address lies in; `None` for memory that is of no pool.
    pub(crate) fn pool_chunk(&self, address: CUdeviceptr) -> Option<CUdeviceptr> {
        let (call, get) = call!(self, cuPointerGetAttributes).ok()?;
        let (mut pool, mut base): (u64, CUdeviceptr) = (0, 0);
        let mut attributes = [MEMORY_POOL, MAPPING_BASE];
        let mut values: [*mut c_void; 2] = [(&raw mut pool).cast(), (&raw mut base).cast()];
        let (attributes, values) = (attributes.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: two attributes, and for each a place as large as its value.
        call.status(unsafe { get(2, attributes, values, address) }).ok()?;
        (pool != 0 && base != 0 && base <= address).then_some(base)
    }

    /// Makes synchronous copies and fills of an allocation wait until they are done, so that a device that is told
    /// of the memory afterwards sees them. Stays for the life of the allocation.
    pub(crate) fn synchronize_memory_operations(&self, address: CUdeviceptr) -> Result<()> {
        let (call, set) = call!(self, cuPointerSetAttribute)?;
        let on: c_uint = 1;
        // SAFETY: SYNC_MEMOPS reads one unsigned number, which is there.
        call.status(unsafe { set((&raw const on).cast(), SYNC_MEMOPS, address) })
    }
}

impl PointerInfo {
    /// Refuses what is not exportable device memory of one GPU, from end to end.
    pub(crate) fn check(&self, ordinal: usize, address: u64, length: u64) -> Result<()> {
        let end = address.checked_add(length);
        let reason = if self.kind == MemoryKind::UNKNOWN {
            "CUDA does not know the address".to_owned()
        } else if self.managed {
            "it is managed memory, which moves; allocate it with cuMemAlloc".to_owned()
        } else if self.kind != MemoryKind::DEVICE {
            "it is memory of the host; register it with ibverbs".to_owned()
        } else if self.ordinal != ordinal {
            format!("it belongs to GPU {}, not to GPU {ordinal}", self.ordinal)
        } else if end.is_none_or(|end| address < self.start || end > self.start + self.length) {
            format!("the allocation there is {} bytes at {:#x}", self.length, self.start)
        } else if length == 0 {
            "there is nothing to register".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::NotDeviceMemory { address, length, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: PointerInfo = PointerInfo {
        kind: MemoryKind::DEVICE,
        ordinal: 1,
        start: 0x1000,
        length: 0x2000,
        managed: false,
        mapped: true,
        gpu_direct_rdma_capable: true,
        synchronous: false,
    };

    #[test]
    fn only_device_memory_of_the_right_gpu_passes_and_each_refusal_says_why() {
        DEVICE.check(1, 0x1000, 0x2000).unwrap();
        DEVICE.check(1, 0x2fff, 1).unwrap();
        let refused = |info: PointerInfo, ordinal, address, length| {
            info.check(ordinal, address, length).unwrap_err().to_string()
        };
        assert!(refused(DEVICE, 0, 0x1000, 1).contains("belongs to GPU 1"));
        assert!(refused(DEVICE, 1, 0x1000, 0x2001).contains("8192 bytes at 0x1000"));
        assert!(refused(DEVICE, 1, 0xfff, 2).contains("8192 bytes"));
        assert!(refused(DEVICE, 1, u64::MAX, 2).contains("8192 bytes"));
        assert!(refused(DEVICE, 1, 0x1000, 0).contains("nothing"));
        let managed = PointerInfo { managed: true, ..DEVICE };
        assert!(refused(managed, 1, 0x1000, 1).contains("managed"));
        let host = PointerInfo { kind: MemoryKind::HOST, ..DEVICE };
        assert!(refused(host, 1, 0x1000, 1).contains("host"));
        let unknown = PointerInfo { kind: MemoryKind::UNKNOWN, ..DEVICE };
        assert!(refused(unknown, 1, 0x1000, 1).contains("does not know"));
    }
}
