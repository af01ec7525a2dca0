//! Which memory can be registered, as what, and that nothing is kept.

use cuda_interop::{
    CudaCode, DeviceBuffer, Error, ForeignMemory, Gpu, Mapping, MemoryKind, Path, PeerMemory,
    Registration, Topology, VirtualMemory, Visibility,
    cudarc::driver::{DevicePtr, result, sys},
    register,
};
use ibverbs::Access;

use crate::support::{BOTH_WAYS, Worker, alone, contents, counting, ends, gpus};

const PAGE: u64 = 4096;

/// Registers a buffer; what the device was told is the range, within whole pages.
fn check_registration<B: DeviceBuffer>(buffer: B) {
    let (one, _other, bench) = ends(0);
    let slice = buffer.memory();
    let (address, bytes) = (slice.device_ptr(slice.stream()).0, slice.num_bytes());
    let region = register(&one.domain, buffer, BOTH_WAYS).unwrap();
    assert_eq!((region.address(), region.len(), region.path()), (address, bytes, Path::DmaBuf));
    let told = bench.engine.last_attachment().unwrap();
    assert_eq!(told.address, address);
    assert_eq!(told.length, bytes as u64);
    assert_eq!(told.dma_buf_length, (told.offset + bytes as u64).next_multiple_of(PAGE));
    assert_eq!(told.offset % PAGE, address % PAGE);
    region.landing_after(region.stream()).unwrap().segment(bytes..).unwrap();
    region.landing_after(region.stream()).unwrap().segment(..=bytes).unwrap_err();
    region.into_buffer().unwrap();
}

#[test]
fn memory_of_each_kind_and_size_is_registered_as_it_is() {
    let _alone = alone();
    for gpu in gpus(1) {
        let worker = Worker::new(&gpu);
        for count in [1, 1000, 1024, 4096 + 1, 16384, 262_144, 1 << 20] {
            check_registration(worker.zeros(count));
            // Allocations after the first come from the middle of the pool's memory.
            let several: Vec<_> = (0..5).map(|_| worker.zeros(count)).collect();
            several.into_iter().for_each(check_registration);
            let virtual_memory =
                VirtualMemory::<u32>::allocate(&gpu, &worker.stream, count).unwrap();
            assert!(virtual_memory.reserved_bytes() >= count * 4);
            let address = virtual_memory.memory().device_ptr(&worker.stream).0;
            // SAFETY: the memory lives until the alias is gone.
            let alias = unsafe { ForeignMemory::<u32>::new(&gpu, &worker.stream, address, count) };
            check_registration(alias.unwrap());
            check_registration(virtual_memory);

            gpu.context().bind_to_thread().unwrap();
            // SAFETY: freed below.
            let address = unsafe { result::malloc_sync(count * 4) }.unwrap();
            // SAFETY: allocated above, and freed after the region is gone.
            let foreign =
                unsafe { ForeignMemory::<u32>::new(&gpu, &worker.stream, address, count) }.unwrap();
            assert_eq!(foreign.info().kind, MemoryKind::DEVICE);
            assert!(foreign.info().length >= count as u64 * 4);
            assert!(gpu.driver().pointer_info(address).unwrap().synchronous);
            check_registration(foreign);
            // SAFETY: allocated above.
            unsafe { result::free_sync(address) }.unwrap();
        }
    }
}

#[test]
fn a_part_is_registered_by_itself() {
    let _alone = alone();
    for gpu in gpus(1) {
        let worker = Worker::new(&gpu);
        let (one, _other, bench) = ends(0);
        let buffer = worker.counting(0, 10_000);
        let start = buffer.device_ptr(&worker.stream).0;
        let part = Registration::new(BOTH_WAYS).part(1500..1600);
        let region = part.register_on(&gpu, &one.domain, buffer).unwrap();
        assert_eq!((region.address(), region.len()), (start + 6000, 400));
        assert_eq!(contents(&worker, &region), counting(1500, 100));
        let told = bench.engine.last_attachment().unwrap();
        assert_eq!((told.address, told.offset % PAGE), (start + 6000, (start + 6000) % PAGE));

        let buffer = region.into_buffer().unwrap();
        let beyond = Registration::new(BOTH_WAYS).part(9_990..10_001);
        let refused = beyond.register(&one.domain, buffer).unwrap_err();
        assert!(refused.to_string().contains("9990..10001"), "{refused}");
    }
}

#[test]
fn memory_that_is_not_the_gpus_own_is_refused_with_what_it_is() {
    let _alone = alone();
    for gpu in gpus(1) {
        let worker = Worker::new(&gpu);
        let refused = |address, count| {
            // SAFETY: refused before anything is done with the address.
            match unsafe { ForeignMemory::<u8>::new(&gpu, &worker.stream, address, count) } {
                Err(error @ Error::NotDeviceMemory { .. }) => error.to_string(),
                other => panic!("{other:?}"),
            }
        };
        gpu.context().bind_to_thread().unwrap();
        let host = [0_u8; 64];
        assert!(refused(host.as_ptr().expose_provenance() as u64, 64).contains("does not know"));
        // SAFETY: freed below.
        let pinned = unsafe { result::malloc_host(4096, 0) }.unwrap();
        assert!(refused(pinned.expose_provenance() as u64, 4096).contains("host"));
        // SAFETY: allocated above.
        unsafe { result::free_host(pinned) }.unwrap();
        let flags = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
        // SAFETY: freed below.
        let managed = unsafe { result::malloc_managed(4096, flags) }.unwrap();
        assert!(refused(managed, 4096).contains("managed"));
        // SAFETY: allocated above.
        unsafe { result::memory_free(managed) }.unwrap();
        // SAFETY: freed below.
        let plain = unsafe { result::malloc_sync(1 << 22) }.unwrap();
        assert!(refused(plain, (1 << 22) + 1).contains("4194304 bytes"));
        // SAFETY: allocated above.
        unsafe { result::free_sync(plain) }.unwrap();
    }
}

#[test]
fn another_door_and_peer_memory_are_refused_with_reasons() {
    let _alone = alone();
    for gpu in gpus(1) {
        let worker = Worker::new(&gpu);
        let (one, _other, bench) = ends(0);
        let over_pcie = Registration::new(BOTH_WAYS).mapping(Mapping::Pcie);
        match over_pcie.register(&one.domain, worker.zeros(1024)) {
            Ok(region) => println!("the driver exports over PCIe: {region:?}"),
            Err(error) => assert_eq!(error.code(), Some(CudaCode::NOT_SUPPORTED), "{error}"),
        }
        let if_available = Registration::new(BOTH_WAYS).mapping(Mapping::PcieIfAvailable);
        if_available.register(&one.domain, worker.zeros(1024)).unwrap();

        let module = Registration::new(BOTH_WAYS).peer_memory(PeerMemory::IfNeeded);
        // As a NIC without the one and a machine without the other refuse.
        bench.device.refuse("ibv_reg_dmabuf_mr", 1, 95);
        bench.device.refuse("ibv_reg_mr", 1, 14);
        let refused = module.register(&one.domain, worker.zeros(1024)).unwrap_err().to_string();
        assert!(refused.contains("ibv_reg_dmabuf_mr failed"), "{refused}");
        assert!(refused.contains("ibv_reg_mr failed"), "{refused}");
    }
}

#[test]
fn ten_thousand_registrations_keep_no_memory() {
    let _alone = alone();
    for gpu in gpus(1) {
        let worker = Worker::new(&gpu);
        let (one, _other, _device) = ends(0);
        let mut buffer = worker.zeros(1 << 20);
        let before = worker.free_memory();
        for _ in 0..10_000 {
            let region =
                Registration::new(BOTH_WAYS).register_on(&gpu, &one.domain, buffer).unwrap();
            buffer = region.into_buffer().unwrap();
        }
        let after = worker.free_memory();
        println!("free before {before}, after 10000 registrations {after}");
        assert_eq!(after, before);
        // Allocations too: each is given back with its region.
        for _ in 0..200 {
            let memory = VirtualMemory::<u8>::allocate(&gpu, &worker.stream, 64 << 20).unwrap();
            drop(register(&one.domain, memory, Access::LOCAL_WRITE).unwrap());
        }
        assert_eq!(worker.free_memory(), before);
    }
}

#[test]
fn the_machine_says_what_it_can_do() {
    let _alone = alone();
    for gpu in gpus(1) {
        let can = gpu.capabilities().unwrap();
        println!("{can:?}\n{:?}", can.lacks());
        assert!(can.dma_buf && !can.name.is_empty());
        let topology = Topology::read().unwrap();
        println!("{topology:?}");
        assert!(topology.gpus.iter().any(|each| each.address == can.pci_address));
        // A flush is allowed whether or not it is needed.
        let worker = Worker::new(&gpu);
        let (one, _other, _device) = ends(0);
        let region = register(&one.domain, worker.zeros(1024), BOTH_WAYS).unwrap();
        for visibility in [Visibility::Owner, Visibility::AllDevices] {
            region.flush(visibility).unwrap();
        }
    }
    if Gpu::count().is_ok() {
        let beyond = Gpu::open(4711).unwrap_err();
        assert_eq!(beyond.code(), Some(CudaCode::INVALID_DEVICE));
    }
}

#[test]
fn streams_of_another_gpu_are_refused() {
    let _alone = alone();
    if let [one, other, ..] = gpus(2).as_slice() {
        let stream = other.context().new_stream().unwrap();
        let allocated = one.allocate::<u32>(&stream, 16).map(drop);
        let mapped = VirtualMemory::<u32>::allocate(one, &stream, 16).map(drop);
        for refused in [allocated, mapped] {
            let error = refused.unwrap_err();
            assert!(error.to_string().contains("another GPU"), "{error}");
        }
    }
}
