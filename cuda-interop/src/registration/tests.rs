//! Registrations with a driver that exports files, on a device in software.

use std::{cell::Cell, fs, mem::ManuallyDrop, rc::Rc};

use ibverbs::{Context, Devices};
use soft_device::SoftDevice;

use super::*;
use crate::dma_buf::tests::{ASKED, FILES, NO_DMA_BUF};

/// An owner that counts how often it was given back.
struct Counted(Rc<Cell<u32>>);

// SAFETY: there is no memory to keep; the device in software maps the file that was exported.
unsafe impl Buffer for Counted {
    type Raw = ManuallyDrop<Self>;

    fn into_raw(self) -> ManuallyDrop<Self> {
        ManuallyDrop::new(self)
    }

    unsafe fn from_raw(raw: ManuallyDrop<Self>) -> Self {
        ManuallyDrop::into_inner(raw)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

fn context(device: &SoftDevice) -> Context {
    let devices = Devices::of(soft_device::library()).unwrap();
    devices.by_name(device.name()).unwrap().open().unwrap()
}

type Registered<'a> = Result<(MemoryRegion<'a, Counted>, Path)>;

/// Registers a range in the ways that are allowed; how often the owner was given back until now.
fn attempt<'a>(
    domain: &'a ProtectionDomain<'a>,
    driver: &Driver,
    range: DeviceRange,
    peer_memory: PeerMemory,
) -> (Registered<'a>, Rc<Cell<u32>>) {
    let count = Rc::new(Cell::new(0));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let owner = || Counted(Rc::clone(&count));
    // SAFETY: nobody has the files that the driver exports.
    let result = unsafe {
        register_range(driver, domain.into(), owner, range, access, peer_memory, Mapping::Default)
    };
    (result, count)
}

const RANGE: DeviceRange = DeviceRange { address: 0x7fab_0000_0200, length: 5000 };

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_region_is_its_range_and_not_the_pages_around_it() {
    let device = SoftDevice::new();
    let context = context(&device);
    let domain = context.allocate_protection_domain().unwrap();
    let (registered, dropped) = attempt(&domain, &FILES, RANGE, PeerMemory::Never);
    let (region, path) = registered.unwrap();
    assert_eq!(path, Path::DmaBuf);
    assert_eq!((region.address(), region.len()), (RANGE.address, RANGE.length));
    assert_eq!(ASKED.with_borrow(Clone::clone), [(0x7fab_0000_0000, 8192, 0)]);
    assert_eq!(region.segment(0x100..0x110).unwrap().address(), RANGE.address + 0x100);
    region.segment(0..5001).unwrap_err();
    assert!(region.shared_bytes().is_none());
    assert_eq!(dropped.get(), 0);
    drop(region.into_buffer().unwrap());
    assert_eq!(dropped.get(), 1);
}

#[test]
fn the_descriptor_is_closed_after_registration_and_after_a_refusal() {
    let device = SoftDevice::new();
    let context = context(&device);
    let domain = context.allocate_protection_domain().unwrap();
    let before = descriptors();
    // Other tests of this process open and close descriptors too, a few at a time.
    let regions: Vec<_> =
        (0..200).map(|_| attempt(&domain, &FILES, RANGE, PeerMemory::Never).0.unwrap()).collect();
    assert!(descriptors() < before + 100, "{before} became {}", descriptors());
    drop(regions);
    for _ in 0..200 {
        device.refuse("ibv_reg_dmabuf_mr", 1, libc::EOPNOTSUPP);
        attempt(&domain, &FILES, RANGE, PeerMemory::Never).0.unwrap_err();
    }
    assert!(descriptors() < before + 100, "{before} became {}", descriptors());
}

#[test]
fn peer_memory_is_used_only_when_asked_for() {
    let device = SoftDevice::new();
    let context = context(&device);
    let domain = context.allocate_protection_domain().unwrap();
    let host = vec![0_u8; RANGE.length];
    let range = DeviceRange { address: host.as_ptr().expose_provenance() as u64, ..RANGE };

    let (refused, dropped) = attempt(&domain, &NO_DMA_BUF, range, PeerMemory::Never);
    assert_eq!(refused.unwrap_err().code(), Some(crate::CudaCode::NOT_SUPPORTED));
    assert_eq!(dropped.get(), 0);
    // Memory of the host stands in for pages that a module knows.
    for allowed in [PeerMemory::IfNeeded, PeerMemory::Only] {
        let (region, path) = attempt(&domain, &NO_DMA_BUF, range, allowed).0.unwrap();
        assert_eq!((path, region.address()), (Path::PeerMemory, range.address));
        assert!(region.shared_bytes().is_none(), "the processor is not to touch it");
    }
    let (_, path) = attempt(&domain, &FILES, range, PeerMemory::IfNeeded).0.unwrap();
    assert_eq!(path, Path::DmaBuf);
}

#[test]
fn when_both_ways_fail_both_reasons_are_told() {
    let device = SoftDevice::new();
    let context = context(&device);
    let domain = context.allocate_protection_domain().unwrap();
    device.refuse("ibv_reg_mr", 1, libc::EFAULT);
    let (refused, dropped) = attempt(&domain, &NO_DMA_BUF, RANGE, PeerMemory::IfNeeded);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("CUDA_ERROR_NOT_SUPPORTED"), "{text}");
    assert!(text.contains("ibv_reg_mr failed"), "{text}");
    assert!(text.contains("Bad address"), "{text}");
    assert_eq!(dropped.get(), 1, "the owner of the second attempt");
}
