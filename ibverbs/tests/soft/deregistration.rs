//! A buffer is freed after its deregistration, or never.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ibverbs::{
    Access, Buffer, HostBuffer, MemoryRegion, PageAligned, ProtectionDomain, Region, SendWr,
};
use soft_device::SoftDevice;

use crate::{
    common::{ALL, Shape, pattern},
    support::{assert_clean, in_child, log_lines::logged, open},
};

/// An unusual length, so that the allocator finds this block again at once when it is freed.
const LENGTH: usize = 12_360;

/// Whether an allocation of this length comes to lie at `address` again.
fn is_handed_out_again(address: usize) -> bool {
    // Not a vector of them, which might itself take the place.
    let kept: [Vec<u8>; 64] = std::array::from_fn(|_| Vec::with_capacity(LENGTH));
    kept.iter().any(|vec| (vec.as_ptr().addr()..vec.as_ptr().addr() + LENGTH).contains(&address))
}

/// Where the CPU finds the first byte.
fn place(region: &Region) -> usize {
    region.shared_bytes().unwrap().as_ptr().addr()
}

#[test]
fn a_buffer_is_freed_after_its_deregistration() {
    let device = SoftDevice::new();
    let host = open(&device);
    let region = host.region(vec![7; LENGTH], ALL);
    let address = place(&region);
    drop(region);
    assert!(is_handed_out_again(address), "or this test cannot tell a leak");
    assert_eq!(device.calls("ibv_dereg_mr"), 1);
}

fn leaks_when_refused<B: HostBuffer>(buffer: B) {
    let device = SoftDevice::new();
    let host = open(&device);
    let region = MemoryRegion::register(&host.domain, buffer, ALL).unwrap();
    let (address, remote) = (place(&region), region.remote());
    region.bytes().write(0, &pattern(3, LENGTH)).unwrap();
    device.fail_deregistrations(1);
    let ((), log) = logged(|| drop(region));
    assert!(log.contains("ibv_dereg_mr failed"), "{log}");
    assert!(log.contains(&format!("{LENGTH} bytes are leaked")), "{log}");
    assert!(!is_handed_out_again(address));
    // The device still reaches it, and finds what was there.
    let (a, b) = host.ends(Shape { memory: LENGTH, ..Shape::default() });
    a.post(SendWr::read(a.memory.segment(..).unwrap(), &remote.at(0).unwrap()).signaled());
    a.sent().outcome().unwrap();
    assert_eq!(a.get(0, LENGTH), pattern(3, LENGTH));
    drop((a, b));
    assert_eq!(device.leaks().iter().filter(|leak| leak.contains("memory region")).count(), 1);
}

#[test]
fn a_vector_whose_deregistration_is_refused_is_never_freed() {
    leaks_when_refused(vec![0_u8; LENGTH]);
}

#[test]
fn a_boxed_slice_whose_deregistration_is_refused_is_never_freed() {
    leaks_when_refused(vec![0_u64; LENGTH / 8].into_boxed_slice());
}

#[test]
fn pages_whose_deregistration_is_refused_are_never_freed() {
    leaks_when_refused(PageAligned::new(LENGTH).unwrap());
}

#[test]
fn asking_for_the_buffer_of_a_region_that_cannot_be_deregistered_leaks_it() {
    let device = SoftDevice::new();
    let host = open(&device);
    let region = host.region(vec![7; LENGTH], ALL);
    let address = place(&region);
    device.fail_deregistrations(1);
    let error = region.into_buffer().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY));
    assert!(error.to_string().contains("other objects still depend on it"), "{error}");
    assert!(!is_handed_out_again(address));
    assert_eq!(device.calls("ibv_dereg_mr"), 1, "the leak is not tried again");
}

#[test]
fn a_region_that_cannot_be_deregistered_can_be_had_back() {
    let device = SoftDevice::new();
    let host = open(&device);
    let region = host.region(pattern(4, LENGTH), ALL);
    device.fail_deregistrations(1);
    let refused = region.try_into_buffer().unwrap_err();
    assert_eq!(refused.error.errno(), Some(libc::EBUSY));
    assert_eq!(refused.object.bytes().to_vec(), pattern(4, LENGTH));
    assert_eq!(refused.object.try_into_buffer().unwrap(), pattern(4, LENGTH));
    drop(host);
    assert_clean(&device);
}

/// Counts how often it is dropped.
#[derive(Clone)]
struct Witness(Arc<AtomicUsize>);

#[expect(unsafe_code, reason = "a buffer without memory of its own")]
// SAFETY: it owns no memory, and an `Arc` taken apart by moving it is still whole.
unsafe impl Buffer for Witness {
    type Raw = std::mem::ManuallyDrop<Self>;

    fn into_raw(self) -> Self::Raw {
        std::mem::ManuallyDrop::new(self)
    }

    unsafe fn from_raw(raw: Self::Raw) -> Self {
        std::mem::ManuallyDrop::into_inner(raw)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, reason = "registers memory by its descriptor")]
fn witnessed(
    domain: &Arc<ProtectionDomain<'static>>,
    dropped: &Arc<AtomicUsize>,
) -> MemoryRegion<'static, Witness> {
    let file = crate::support::memory_file(4096);
    let part = crate::support::part_of(&file, 0, 4096, 0x1000);
    // SAFETY: nobody else reaches the file.
    unsafe { MemoryRegion::register_dma_buf(domain, Witness(Arc::clone(dropped)), part, ALL) }
        .unwrap()
}

#[test]
fn the_owner_of_foreign_memory_is_dropped_after_its_deregistration_and_once() {
    let device = SoftDevice::new();
    let host = open(&device);
    let dropped = Arc::new(AtomicUsize::new(0));
    drop(witnessed(&host.domain, &dropped));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    let owner = witnessed(&host.domain, &dropped).into_buffer().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    drop(owner);
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    device.fail_deregistrations(1);
    drop(witnessed(&host.domain, &dropped));
    assert_eq!(dropped.load(Ordering::Relaxed), 2, "the device may still use the memory");
}

#[test]
fn a_registration_that_is_refused_drops_the_buffer() {
    let device = SoftDevice::new();
    let host = open(&device);
    for (verb, access) in [("ibv_reg_mr", ALL), ("ibv_reg_mr", ALL | Access::RELAXED_ORDERING)] {
        let buffer = vec![1_u8; LENGTH];
        let address = buffer.as_ptr().addr();
        device.refuse(verb, 1, libc::ENOMEM);
        MemoryRegion::register(&host.domain, buffer, access).unwrap_err();
        assert!(is_handed_out_again(address));
    }
    drop(host);
    assert_clean(&device);
}

#[test]
fn regions_that_leak_keep_their_addresses_apart() {
    let device = SoftDevice::new();
    let host = open(&device);
    let mut places = BTreeSet::new();
    for _ in 0..32 {
        device.fail_deregistrations(1);
        let region = host.region(vec![0; LENGTH], ALL);
        assert!(places.insert(place(&region)), "a leaked buffer was handed out");
        drop(region);
    }
}

#[test]
fn a_scope_that_cannot_deregister_aborts_the_process() {
    let name = "deregistration::a_scope_that_cannot_deregister_aborts_the_process";
    let Some(output) = in_child(name, &[]) else {
        let device = SoftDevice::new();
        let host = open(&device);
        let mut memory = [0_u8; 64];
        device.fail_deregistrations(1);
        host.domain.scope(|scope| scope.register(&mut memory, ALL).map(Region::len)).unwrap();
        return;
    };
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
}

/// A logger that panics.
struct Panicking;

impl log::Log for Panicking {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        panic!("{}", record.args());
    }

    fn flush(&self) {}
}

#[test]
fn a_scope_that_cannot_deregister_aborts_the_process_whatever_its_logger_does() {
    let name = "deregistration::\
                a_scope_that_cannot_deregister_aborts_the_process_whatever_its_logger_does";
    let Some(output) = in_child(name, &[]) else {
        let device = SoftDevice::new();
        let host = open(&device);
        let mut memory = [0_u8; 64];
        log::set_logger(&Panicking).unwrap();
        log::set_max_level(log::LevelFilter::Error);
        device.fail_deregistrations(1);
        host.domain.scope(|scope| scope.register(&mut memory, ALL).map(Region::len)).unwrap();
        return;
    };
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
}
