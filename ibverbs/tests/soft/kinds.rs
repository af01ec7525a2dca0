//! Memory of other kinds: on the device, fetched on demand, of no bytes at all, and out of a pool; and objects
//! of one thread or of another process.

use std::{
    fs,
    io::ErrorKind,
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
    thread,
};

use ibverbs::{
    Access, CompletionStatus, ConnectOptions, Context, DeviceMemory, DmaBufPart, Error,
    ForkSupport, ImportedRegion, MemoryRegion, Operation, PoolOptions, Prefetch, PrefetchMode,
    ProtectionDomain, Rc, RecvWr, RegionPool, SendWr, ThreadDomain, fork_support_of,
    protect_forks_of,
};
use soft_device::SoftDevice;

use crate::{
    common::{ALL, Shape, host::next, pattern},
    support::{assert_clean, open},
};

#[test]
fn device_memory_is_reached_by_peers_and_by_copying() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape::default());
    let memory = DeviceMemory::allocate(&host.context, 256, 3).unwrap();
    assert_eq!(memory.len(), 256);
    memory.write(0, &pattern(1, 256)).unwrap();
    memory.write(250, &[0; 7]).unwrap_err();

    let region = MemoryRegion::register_device_memory(&host.domain, memory, 64..192, ALL).unwrap();
    assert_eq!((region.address(), region.len()), (0, 128));
    assert!(region.shared_bytes().is_none());
    a.put(0, &pattern(2, 128));
    let write = SendWr::write(a.memory.segment(..128).unwrap(), &region.remote().at(0).unwrap());
    a.post(write.signaled());
    a.sent().outcome().unwrap();

    let memory = region.into_buffer().unwrap();
    let mut bytes = vec![0; 256];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes[..64], pattern(1, 256)[..64]);
    assert_eq!(bytes[64..192], pattern(2, 128));
    assert_eq!(bytes[192..], pattern(1, 256)[192..]);
    MemoryRegion::register_device_memory(&host.domain, memory, 0..257, ALL).unwrap_err();
    drop((a, b, host));
    assert_clean(&device);
}

#[test]
fn device_memory_is_registered_in_domains_of_its_own_context() {
    let (device, other) = (SoftDevice::new(), SoftDevice::new());
    let (host, foreign) = (open(&device), open(&other));
    let memory = DeviceMemory::allocate(&foreign.context, 64, 0).unwrap();
    let refused = MemoryRegion::register_device_memory(&host.domain, memory, .., ALL);
    assert!(refused.unwrap_err().to_string().contains("different contexts"));
    assert_eq!(device.calls("ibv_reg_dm_mr"), 0);
    drop((host, foreign));
    assert_clean(&device);
    assert_clean(&other);
}

#[test]
#[expect(unsafe_code, reason = "registers memory by its descriptor")]
fn device_memory_is_reached_by_another_device() {
    let (near, far) = (SoftDevice::new(), SoftDevice::new());
    let (owner, other) = (open(&near), open(&far));
    let memory = DeviceMemory::allocate(&owner.context, 4096, 12).unwrap();
    memory.write(8, &[7; 16]).unwrap();
    let file = memory.export_dma_buf().unwrap();
    let part = DmaBufPart { fd: file.as_fd(), offset: 0, length: 4096, address: 0 };
    // SAFETY: nobody else writes to the memory meanwhile.
    let region = unsafe { other.domain.register_dma_buf(vec![0_u8; 0], part, ALL) }.unwrap();
    let end = other.end(Shape::default());
    let options = ConnectOptions::new(&other.port).access(ALL);
    let to = end.pair.endpoint(&other.port);
    let end = end.connect(&to, &options);
    let into = end.memory.segment(..16).unwrap();
    end.post(SendWr::read(into, &region.remote().at(8).unwrap()).id(3).signaled());
    end.succeeded(3, Operation::READ);
    let mut bytes = [0; 16];
    end.memory.bytes().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 16]);
    near.refuse("ibv_dm_export_dmabuf_fd", 1, libc::EOPNOTSUPP);
    assert_eq!(memory.export_dma_buf().unwrap_err().errno(), Some(libc::EOPNOTSUPP));
    drop((region, end, file, memory));
    drop((owner, other));
    assert_clean(&near);
    assert_clean(&far);
}

#[test]
fn device_memory_that_a_device_does_not_have_is_an_error() {
    let device = SoftDevice::new();
    let host = open(&device);
    device.refuse("ibv_alloc_dm", 1, libc::ENOMEM);
    let error = DeviceMemory::allocate(&host.context, 64, 0).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOMEM));
}

#[test]
fn rights_are_changed_and_the_region_stays_owned() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, _b) = host.ends(Shape::default());
    let mut region = host.region(vec![0; 64], Access::LOCAL_WRITE);
    let attempt = |region: &MemoryRegion<'_, Vec<u8>>| {
        let write = SendWr::write(a.memory.segment(..64).unwrap(), &region.remote().at(0).unwrap());
        a.post(write.signaled());
        a.sent().status()
    };
    region.change_access(ALL).unwrap();
    assert_eq!(region.access(), ALL);
    assert_eq!(attempt(&region), CompletionStatus::SUCCESS);

    region.change_access(Access::REMOTE_WRITE).unwrap_err();
    region.change_access(Access::LOCAL_WRITE).unwrap();
    assert_eq!(attempt(&region), CompletionStatus::REMOTE_ACCESS_ERROR);

    device.refuse("ibv_rereg_mr", 1, libc::ENOMEM);
    let error = region.change_access(Access::READ_ONLY).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    assert!(region.as_mut_slice().is_none(), "after a failure either set of rights may hold");
    region.change_access(Access::READ_ONLY).unwrap();
    assert!(region.as_mut_slice().is_none(), "what was under way may still use the right");
    assert_eq!(region.into_buffer().unwrap().len(), 64);
}

#[test]
fn pages_are_prefetched_for_regions_that_are_on_demand() {
    let device = SoftDevice::new();
    let host = open(&device);
    let region = host.region(vec![0; 8192], Access::LOCAL_WRITE | Access::ON_DEMAND);
    let halves = [region.segment(..4096).unwrap(), region.segment(4096..).unwrap()];
    for access in [Prefetch::Read, Prefetch::Write, Prefetch::Present] {
        for mode in [PrefetchMode::Start, PrefetchMode::Wait] {
            host.domain.prefetch(&halves, access, mode).unwrap();
        }
    }
    device.refuse("ibv_advise_mr", 1, libc::EFAULT);
    let error = host.domain.prefetch(&halves, Prefetch::Read, PrefetchMode::Start).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EFAULT));
}

#[test]
fn what_is_written_to_a_null_region_is_dropped() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape::default());
    let nothing = MemoryRegion::null(&host.domain).unwrap();
    b.put(0, &pattern(3, 64));
    // The middle of what is read is not wanted.
    let pieces = [
        a.memory.segment(..16).unwrap(),
        nothing.segment(..32).unwrap(),
        a.memory.segment(16..32).unwrap(),
    ];
    let read = SendWr::read(&pieces, &b.memory.remote().part(0..64).unwrap());
    a.post(read.signaled());
    a.sent().outcome().unwrap();
    assert_eq!(a.memory.bytes().to_vec()[..16], pattern(3, 64)[..16]);
    assert_eq!(a.memory.bytes().to_vec()[16..32], pattern(3, 64)[48..]);
}

#[test]
fn the_rights_of_a_null_region_are_not_changed_in_the_place_of_anothers() {
    let device = SoftDevice::new();
    let host = open(&device);
    let mut nothing = MemoryRegion::null(&host.domain).unwrap();
    let error = nothing.change_access(ALL).unwrap_err();
    assert!(error.to_string().contains("without memory"), "{error}");
    // Providers that keep it from the kernel leave its number 0, which may be that of another region.
    assert_eq!(device.calls("ibv_rereg_mr"), 0);
    assert_eq!(nothing.access(), Access::LOCAL_WRITE);
}

#[test]
fn a_pool_refuses_what_has_no_power_of_two_above_it() {
    let device = SoftDevice::new();
    let host = open(&device);
    let endless = PoolOptions::new(ALL).most_registered(usize::MAX);
    for (options, length) in [(endless, usize::MAX), (endless.smallest_block(usize::MAX), 1)] {
        let error = RegionPool::new(&host.domain, options).lend(length).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    }
    let none =
        RegionPool::new(&host.domain, PoolOptions::new(ALL).smallest_block(0).slab_length(0));
    assert_eq!(none.lend(3).unwrap().len(), 3);
}

#[test]
fn a_pool_registers_once_and_lends_again() {
    let device = SoftDevice::new();
    let host = open(&device);
    let options = PoolOptions::new(ALL).smallest_block(1000).slab_length(1 << 16);
    let pool = RegionPool::new(&host.domain, options);
    let first = pool.lend(100).unwrap();
    assert_eq!((first.len(), first.bytes().len()), (100, 100));
    assert_eq!(first.segment(..).unwrap().len(), 100);
    assert_eq!(first.segment(4..=9).unwrap().address(), first.segment(..).unwrap().address() + 4);
    first.segment(0..101).unwrap_err();
    let address = first.remote().address();
    drop(first);
    let second = pool.lend(1024).unwrap();
    assert_eq!(second.remote().address(), address, "the block that came back is lent first");
    let statistics = pool.statistics();
    assert_eq!((statistics.registrations, statistics.reused), (1, 1));
    assert_eq!((statistics.registered, statistics.lent), (1 << 16, 1024));
    drop(second);
    pool.release_idle();
    assert_eq!(pool.statistics().registered, 0);
    drop((pool, host));
    assert_clean(&device);
}

#[test]
fn a_pool_keeps_to_its_bound_and_makes_room_out_of_what_is_idle() {
    let device = SoftDevice::new();
    let host = open(&device);
    let options = PoolOptions::new(ALL).slab_length(8192).most_registered(16384);
    let pool = RegionPool::new(&host.domain, options);
    let held: Vec<_> = (0..4).map(|_| pool.lend(4096).unwrap()).collect();
    let error = pool.lend(4096).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { maximum: 16384, .. }), "{error}");
    drop(held);
    // Another size of block needs a slab of its own, for which an idle one goes.
    let large = pool.lend(16384).unwrap();
    assert_eq!(large.len(), 16384);
    assert_eq!(pool.statistics().released, 2);
    pool.lend(0).unwrap_err();
    pool.lend(16385).unwrap_err();
}

#[test]
fn blocks_of_a_pool_do_not_overlap_whoever_borrows_them() {
    let device = SoftDevice::new();
    let host = open(&device);
    let pool = RegionPool::new(&host.domain, PoolOptions::new(ALL).slab_length(1 << 16));
    thread::scope(|scope| {
        for seed in 0..4_u8 {
            let pool = pool.clone();
            scope.spawn(move || {
                for round in 0..200_usize {
                    let block = pool.lend(64 + round * 16).unwrap();
                    block.bytes().write(0, &pattern(seed, block.len())).unwrap();
                    thread::yield_now();
                    assert_eq!(block.bytes().to_vec(), pattern(seed, block.len()));
                }
            });
        }
    });
    assert_eq!(pool.statistics().lent, 0);
}

#[test]
fn memory_out_of_a_pool_is_written_by_peers_within_its_bounds() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, _b) = host.ends(Shape::default());
    let pool = RegionPool::new(Arc::clone(&host.domain), PoolOptions::new(ALL));
    let (before, block) = (pool.lend(4096).unwrap(), pool.lend(4096).unwrap());
    a.put(0, &pattern(5, 4096));
    let write = SendWr::write(a.memory.segment(..4096).unwrap(), &block.remote().at(0).unwrap());
    a.post(write.signaled());
    a.sent().outcome().unwrap();
    assert_eq!(block.bytes().to_vec(), pattern(5, 4096));
    assert_eq!(before.bytes().to_vec(), [0; 4096]);
}

#[test]
fn forks_are_protected_or_need_no_protection() {
    let library = soft_device::library();
    let before = fork_support_of(library).unwrap();
    match protect_forks_of(library) {
        Ok(()) => assert_ne!(fork_support_of(library).unwrap(), ForkSupport::Disabled),
        Err(error) => {
            // Too late once memory is registered, by whichever test came first.
            let kind = std::error::Error::source(&error).map(ToString::to_string);
            assert_eq!(error.errno(), Some(libc::EINVAL), "{kind:?} {:?}", ErrorKind::InvalidInput);
            assert_eq!(fork_support_of(library).unwrap(), before);
        }
    }
}

#[test]
fn a_refused_import_closes_no_descriptor_that_may_be_somebody_elses_by_then() {
    let device = SoftDevice::new();
    let host = open(&device);
    device.refuse("ibv_import_device", 1, libc::EIO);
    let descriptor = host.context.command_fd().try_clone_to_owned().unwrap();
    let place = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let file = fs::read_link(&place).unwrap();
    Context::import(soft_device::library(), descriptor).unwrap_err();
    assert_eq!(fs::read_link(&place).unwrap(), file);
}

#[test]
fn objects_are_imported_by_their_numbers_and_live_on_where_they_came_from() {
    let device = SoftDevice::new();
    let host = open(&device);
    let region = host.region(vec![7; 64], ALL);
    let descriptor = host.context.command_fd().try_clone_to_owned().unwrap();
    let context = Context::import(soft_device::library(), descriptor).unwrap();
    assert_eq!(context.device().name(), device.name());
    let domain = ProtectionDomain::import(&context, host.domain.handle()).unwrap();
    let imported = ImportedRegion::import(&domain, region.handle()).unwrap();
    assert_eq!(imported.local_key(), region.local_key());
    assert_eq!(imported.remote_key(), region.remote_key());
    ImportedRegion::import(&domain, u32::MAX).unwrap_err();
    ProtectionDomain::import(&context, u32::MAX).unwrap_err();
    drop(imported);
    drop(domain);
    drop(context);
    assert_eq!(region.into_buffer().unwrap(), [7; 64]);
    drop(host);
    assert_clean(&device);
}

#[test]
fn queue_pairs_of_one_thread_move_bytes() {
    let device = SoftDevice::new();
    let host = open(&device);
    {
        let thread = ThreadDomain::allocate(&host.domain).unwrap();
        let queue = host.queue(16);
        let pair = |_| thread.queue_pair::<Rc>(&queue, &queue).max_inline(8).create().unwrap();
        let (a, b) = (pair(0), pair(1));
        let (a_info, b_info) = (a.endpoint(&host.port), b.endpoint(&host.port));
        let options = ConnectOptions::new(&host.port).access(ALL);
        let b = b.initialize(&options).unwrap();
        let (from, to) = (host.region(pattern(6, 64), ALL), host.region(vec![0; 64], ALL));
        b.post_receive(&mut [RecvWr::new(1)]).unwrap();
        let a = a.connect(&b_info, &options).unwrap();
        let b = b.connect(&a_info, &options).unwrap();
        assert_ne!(a.number(), b.number());
        let part = to.remote().at(0).unwrap();
        let write = SendWr::write_with_imm(from.segment(..).unwrap(), &part, 9);
        a.post_send(&mut [write.id(2).signaled()]).unwrap();
        let mut seen = [next(&queue).id(), next(&queue).id()];
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert_eq!(to.bytes().to_vec(), pattern(6, 64));
        a.fail().unwrap();
    }
    drop(host);
    assert_clean(&device);
}
