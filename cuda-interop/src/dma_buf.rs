//! Device memory as a dma-buf, which is what a NIC's driver can map.
#![expect(unsafe_code, reason = "takes over the descriptor that the driver makes")]

use std::{
    ffi::{c_int, c_ulonglong},
    os::fd::{FromRawFd, OwnedFd},
    sync::OnceLock,
};

use crate::{CudaCode, Driver, Error, Result, driver::call};

/// Through which of its doors a GPU's memory is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mapping {
    /// As the driver chooses.
    #[default]
    Default,
    /// Over PCIe (`DMA_BUF_MAPPING_TYPE_PCIE`), for GPUs that have another way to the processor, such as those of
    /// Grace machines. Refused where the driver does not have the choice (CUDA 12.8 and later on such machines).
    Pcie,
    /// Over PCIe where the driver has the choice, else as it chooses.
    PcieIfAvailable,
}

/// A range of device memory that was exported.
#[derive(Debug)]
pub(crate) struct Exported {
    pub(crate) fd: OwnedFd,
    /// Where the range starts in the dma-buf, which starts at a page.
    pub(crate) offset: u64,
}

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: u32 = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`.
const OVER_PCIE: c_ulonglong = 1;

/// Exports the pages around a range.
///
/// The driver takes whole pages only, and gives out small allocations from the middle of a page. Memory of a pool it
/// exports from the beginning of the pool's chunk on, and refuses other ranges within one (seen with 580.159.04). The
/// dma-buf then covers bytes of neighbours too; the region that is made of it must not.
pub(crate) fn export(
    driver: &Driver,
    address: u64,
    length: u64,
    mapping: Mapping,
) -> Result<Exported> {
    let page = page_size();
    let first = driver.pool_chunk(address).unwrap_or(address);
    let start = first - first % page;
    let end = address.checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
    let size = end.map(|end| end - start).and_then(|size| usize::try_from(size).ok());
    let Some(size) = size.filter(|_| length > 0) else {
        return Err(Error::NotDeviceMemory {
            address,
            length,
            reason: "no range of addresses is like that".to_owned(),
        });
    };
    let fd = match mapping {
        Mapping::Default => export_pages(driver, start, size, 0),
        Mapping::Pcie => export_pages(driver, start, size, OVER_PCIE),
        Mapping::PcieIfAvailable => match export_pages(driver, start, size, OVER_PCIE) {
            // A driver that is too old for the flag calls it invalid.
            Err(error)
                if matches!(
                    error.code(),
                    Some(CudaCode::NOT_SUPPORTED | CudaCode::INVALID_VALUE)
                ) =>
            {
                export_pages(driver, start, size, 0)
            }
            result => result,
        },
    }?;
    Ok(Exported { fd, offset: address - start })
}

fn export_pages(driver: &Driver, start: u64, size: usize, flags: c_ulonglong) -> Result<OwnedFd> {
    let (call, get) = call!(driver, cuMemGetHandleForAddressRange)?;
    let mut fd: c_int = -1;
    // SAFETY: a descriptor is an int, for which the place has room; the driver checks the range.
    call.status(unsafe { get((&raw mut fd).cast(), start, size, DMA_BUF_FD, flags) })?;
    if fd < 0 {
        return Err(call.error(CudaCode::UNKNOWN));
    }
    // SAFETY: the driver made the descriptor for this call, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The pages of this machine, which the driver's ranges are made of.
fn page_size() -> u64 {
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(|| {
        // SAFETY: asks a question that has no conditions.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        cell::RefCell,
        ffi::{c_uint, c_void},
        os::fd::AsRawFd,
    };

    use super::*;

    thread_local! {
        /// What the fake driver was asked for.
        pub(crate) static ASKED: RefCell<Vec<(u64, usize, u64)>> = const { RefCell::new(Vec::new()) };
    }

    /// Exports a file of zeros in place of device memory; refuses the flag for PCIe.
    unsafe extern "C" fn file_in_memory(
        handle: *mut c_void,
        address: u64,
        size: usize,
        kind: c_uint,
        flags: c_ulonglong,
    ) -> c_uint {
        ASKED.with_borrow_mut(|asked| asked.push((address, size, flags)));
        if kind != DMA_BUF_FD || !address.is_multiple_of(4096) || !size.is_multiple_of(4096) {
            return CudaCode::INVALID_VALUE.0;
        }
        if flags != 0 {
            return CudaCode::NOT_SUPPORTED.0;
        }
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe { libc::memfd_create(c"device memory".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: any descriptor and size may be asked for.
        assert_eq!(unsafe { libc::ftruncate(fd, i64::try_from(size).unwrap()) }, 0);
        // SAFETY: the contract of the driver's function: a place for an int.
        unsafe { handle.cast::<c_int>().write(fd) };
        0
    }

    unsafe extern "C" fn refuse(
        _: *mut c_void,
        _: u64,
        _: usize,
        _: c_uint,
        _: c_ulonglong,
    ) -> c_uint {
        CudaCode::NOT_SUPPORTED.0
    }

    /// Says of each address that it is in the chunk of a pool, of 32 MiB.
    unsafe extern "C" fn in_a_pool(
        count: c_uint,
        _: *mut c_uint,
        values: *mut *mut c_void,
        address: u64,
    ) -> c_uint {
        assert_eq!(count, 2);
        // SAFETY: the contract of the driver's function: a place for each attribute.
        let places = unsafe { values.cast::<[*mut u64; 2]>().read() };
        for (place, value) in places.into_iter().zip([1, address & !0x1ff_ffff]) {
            // SAFETY: as above, of eight bytes here.
            unsafe { place.write(value) };
        }
        0
    }

    pub(crate) const FILES: Driver =
        Driver { cuMemGetHandleForAddressRange: Some(file_in_memory), ..Driver::EMPTY };
    pub(crate) const NO_DMA_BUF: Driver =
        Driver { cuMemGetHandleForAddressRange: Some(refuse), ..Driver::EMPTY };

    fn asked() -> Vec<(u64, usize, u64)> {
        ASKED.with_borrow_mut(std::mem::take)
    }

    #[test]
    fn the_pages_around_a_range_are_exported_and_the_offset_leads_to_it() {
        for (address, length, start, size, offset) in [
            (0x7000_0000, 4096, 0x7000_0000, 4096, 0),
            (0x7000_0200, 4096, 0x7000_0000, 8192, 0x200),
            (0x7000_0fff, 1, 0x7000_0000, 4096, 0xfff),
            (0x7000_0fff, 2, 0x7000_0000, 8192, 0xfff),
        ] {
            let exported = export(&FILES, address, length, Mapping::Default).unwrap();
            assert_eq!(exported.offset, offset);
            assert_eq!(asked(), [(start, size, 0)]);
            assert!(exported.fd.as_raw_fd() >= 0);
        }
    }

    #[test]
    fn memory_of_a_pool_is_exported_from_the_beginning_of_its_chunk() {
        let pool = Driver { cuPointerGetAttributes: Some(in_a_pool), ..FILES };
        let exported = export(&pool, 0x3_0200_4200, 5000, Mapping::Default).unwrap();
        assert_eq!(exported.offset, 0x4200);
        assert_eq!(asked(), [(0x3_0200_0000, 0x6000, 0)]);
        // A range that begins in one chunk and ends in another.
        let exported = export(&pool, 0x3_03ff_f000, 0x3000, Mapping::Default).unwrap();
        assert_eq!((exported.offset, asked()), (0x1ff_f000, vec![(0x3_0200_0000, 0x200_2000, 0)]));
    }

    #[test]
    fn the_way_over_pcie_is_refused_or_done_without_as_asked() {
        let refused = export(&FILES, 4096, 4096, Mapping::Pcie).unwrap_err();
        assert_eq!(refused.code(), Some(CudaCode::NOT_SUPPORTED));
        assert_eq!(asked(), [(4096, 4096, 1)]);
        export(&FILES, 4096, 4096, Mapping::PcieIfAvailable).unwrap();
        assert_eq!(asked(), [(4096, 4096, 1), (4096, 4096, 0)]);
    }

    #[test]
    fn ranges_that_cannot_be_never_reach_the_driver() {
        for (address, length) in [(4096, 0), (u64::MAX, 2), (u64::MAX - 4095, 4000), (1, u64::MAX)]
        {
            let refused = export(&FILES, address, length, Mapping::Default).unwrap_err();
            assert!(matches!(refused, Error::NotDeviceMemory { .. }), "{refused}");
        }
        assert_eq!(asked(), []);
    }
}
