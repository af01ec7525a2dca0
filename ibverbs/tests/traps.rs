//! One test for each trap that other bindings fell into, and that exists in what this crate wraps.
//!
//! | trap | test |
//! |---|---|
//! | a region does not keep its domain, a domain not its context | `parents_outlive_their_children_in_whatever_order_handles_go` |
//! | a region is cloned apart from the buffer that it covers | `a_region_and_its_buffer_are_one_and_end_once` |
//! | a registered vector reallocates or moves | `a_registered_vector_stays_where_it_is` |
//! | a handle is cloned and destroyed twice | `each_object_is_destroyed_once` |
//! | a completion changes when the next one is polled | `completions_keep_what_they_say` |
//! | a provider's function that is not there is called | `an_operation_that_is_not_there_is_refused` |
//! | an empty batch passes a dangling list | `an_empty_batch_is_no_call_at_all` |
//! | the provider's lock is held across the caller's code | `no_lock_outlives_a_call` |
//! | objects are destroyed before what uses them | `parents_outlive_their_children_in_whatever_order_handles_go` |
//! | a connection's identifier or channel is destroyed before what uses it | `connection_manager.rs`: `a_channel_is_destroyed_after_its_identifiers_whatever_is_dropped_first` |
//! | an event that is not acknowledged blocks a destructor | `connection_manager.rs`: `an_event_is_acknowledged_in_the_call_that_returns_it` |
//! | a destructor panics | `no_destructor_panics` |
//! | a buffer is freed although its deregistration failed | `a_buffer_whose_deregistration_failed_is_not_freed` |
//! | the offset of a dma-buf is taken for its address | `a_dma_buf_is_called_what_it_was_registered_as` |
//! | a descriptor is a bare number | `compile_fail/dma_buf_of_a_bare_number.rs`, `a_descriptor_is_used_once_and_not_kept` |
//! | memory of a GPU is freed before its region | `the_owner_of_memory_outlives_its_registration` |
//! | memory is given back only by a call that may not come | `dropping_gives_everything_back_at_once` |
//! | memory that a peer writes is seen as `&[u8]` | `memory_that_a_peer_writes_is_copied_only` |
//! | a scope ends although its requests could not be drained | `a_scope_ends_its_regions_whatever_its_queue_says` |
//! | a scope waits for a receive that nothing matches | `a_scope_does_not_wait_for_what_never_comes` |
//! | a number that is newer than the binding panics | `numbers_of_a_newer_library_are_values` |
//! | local keys, remote keys and addresses are mistaken for one another | `compile_fail/local_key_given_to_a_peer.rs`, `the_keys_of_a_region_are_told_apart` |
//! | lengths are cut to 32 bits | `a_region_of_more_than_four_gibibytes_is_whole` |
//! | a device without the extended verbs makes it panic | `a_device_without_extended_posting_is_used_without_it` |
//! | a future is dropped while its buffer is written | `events/asynchronous.rs`: `dropping_a_future_neither_frees_memory_in_flight_nor_loses_its_completion` |
//! | a completion comes between the last look and the sleep | `completion_queue/wait.rs`, `events/channels.rs`, `kernel_events.rs` |
//! | an address handle is dropped while datagrams that name it are queued | `transports/scenarios/datagrams.rs`: `a_handle_can_be_dropped_as_soon_as_its_datagrams_are_posted` |
//! | a flow, its counters, a table or its work queues end before what uses them | `raw_packets/owners.rs` |
//! | a flow is forgotten, or its end refused, and frames come to freed memory | `raw_packets/owners.rs`: `a_forgotten_flow_keeps_what_it_leads_to_and_frees_no_memory_under_the_device` |
//! | a fork moves pages away from under a device | `soft/kinds.rs`: `forks_are_protected_or_need_no_protection` |

#[cfg(test)]
#[expect(dead_code, reason = "each program uses a part of it")]
mod common;
#[cfg(test)]
#[expect(dead_code, reason = "each program uses a part of it")]
#[path = "common/soft.rs"]
mod support;
#[cfg(test)]
#[expect(dead_code, reason = "each program uses a part of it")]
#[path = "common/udmabuf.rs"]
mod udmabuf;

#[cfg(test)]
mod tests {
    #![expect(unsafe_code, reason = "registers memory by its descriptor")]

    use std::{
        mem::ManuallyDrop,
        os::unix::fs::FileExt,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread,
        time::{Duration, Instant},
    };

    use ibverbs::{
        Access, Buffer, Completion, CompletionQueue, CompletionStatus, Inline, MemoryRegion,
        Operation, Operations, Posting, ProtectionDomain, QueuePair, Rc, RecvWr, Reset, SendWr,
    };
    use soft_device::{CompletionFault, SoftDevice};

    use crate::{
        common::{ALL, Shape, is_quiet, orders, pattern},
        support::{POSTINGS, assert_clean, listed, memory_file, open, part_of},
    };

    #[test]
    fn parents_outlive_their_children_in_whatever_order_handles_go() {
        let device = SoftDevice::new();
        for order in orders::orders() {
            let host = open(&device);
            let end = host.end(Shape::default());
            let other = host.end(Shape::default());
            let end = end.connect(
                &other.pair.endpoint(&host.port),
                &ibverbs::ConnectOptions::new(&host.port),
            );
            drop(other);
            orders::drop_in(&order, orders::parts(host, end), None);
            assert_clean(&device);
        }
    }

    #[test]
    fn a_region_and_its_buffer_are_one_and_end_once() {
        let device = SoftDevice::new();
        let host = open(&device);
        let region = Arc::new(host.region(pattern(1, 64), ALL));
        let other = Arc::clone(&region);
        drop(region);
        assert_eq!(device.calls("ibv_dereg_mr"), 0, "somebody still has it");
        let region = Arc::into_inner(other).unwrap();
        assert_eq!(region.into_buffer().unwrap(), pattern(1, 64));
        assert_eq!(device.calls("ibv_dereg_mr"), 1);
    }

    #[test]
    fn a_registered_vector_stays_where_it_is() {
        let device = SoftDevice::new();
        let host = open(&device);
        let mut vec = Vec::with_capacity(64);
        vec.extend_from_slice(&pattern(1, 16));
        let address = vec.as_ptr();
        let region = host.region(vec, ALL);
        // Moving the region moves neither the bytes nor what the device knows.
        let boxed = Box::new(region);
        let region = thread::spawn(move || *boxed).join().unwrap();
        assert_eq!(region.address(), address.expose_provenance() as u64);
        let vec = region.into_buffer().unwrap();
        assert_eq!((vec.as_ptr(), vec.capacity()), (address, 64));
    }

    #[test]
    fn each_object_is_destroyed_once() {
        let device = SoftDevice::new();
        let host = open(&device);
        drop(host.ends(Shape::default()));
        drop(host);
        for (verb, count) in [
            ("ibv_destroy_qp", 2),
            ("ibv_destroy_cq", 4),
            ("ibv_dereg_mr", 2),
            ("ibv_dealloc_pd", 1),
            ("ibv_close_device", 1),
        ] {
            assert_eq!(device.calls(verb), count, "{verb}");
        }
        assert_clean(&device);
    }

    #[test]
    fn completions_keep_what_they_say() {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = host.ends(Shape::default());
        let to = b.memory.remote().at(0).unwrap();
        for id in 10..14 {
            a.post(SendWr::write(a.memory.segment(..8).unwrap(), &to).id(id).signaled());
        }
        let mut slots = Completion::slots::<3>();
        let first = a.sends.poll(&mut slots).unwrap();
        let mut others = Completion::slots::<4>();
        let second = a.sends.poll(&mut others).unwrap();
        assert!(is_quiet(&a.sends));
        let ids = |found: &[Completion]| found.iter().map(Completion::id).collect::<Vec<_>>();
        assert_eq!((ids(first), ids(second)), (vec![10, 11, 12], vec![13]));
    }

    #[test]
    fn an_operation_that_is_not_there_is_refused() {
        let device = SoftDevice::new();
        let host = open(&device);
        let queue = host.queue(8);
        let make = || {
            let builder = QueuePair::<Rc, Reset>::builder(&host.domain, &queue, &queue);
            let builder = builder.posting(Posting::Extended).operations(Operations::WRITE);
            builder.create().unwrap()
        };
        let (a, b) = (make(), make());
        let options = ibverbs::ConnectOptions::new(&host.port).access(ALL);
        let a = a.connect(&b.endpoint(&host.port), &options).unwrap();
        let memory = host.region(vec![0; 8], ALL);
        let (part, word) = (memory.segment(..).unwrap(), memory.remote().at(0).unwrap());
        for request in [SendWr::fetch_and_add(part, &word, 1), SendWr::send(Inline(&[]))] {
            let error = a.post_send(&mut [request]).unwrap_err();
            assert_eq!(error.refused(), Some(0));
            assert!(error.to_string().contains("the queue pair was not made for a"), "{error}");
        }
        assert_eq!(device.calls("ibv_wr_complete"), 0);
    }

    #[test]
    fn an_empty_batch_is_no_call_at_all() {
        for posting in POSTINGS {
            let device = SoftDevice::new();
            let host = open(&device);
            let (a, _b) = host.ends(posting.into());
            a.pair.post_send(&mut []).unwrap();
            a.pair.post_receive(&mut []).unwrap();
            a.pair.post_receive(&mut Vec::new()).unwrap();
            for verb in ["ibv_post_send", "ibv_wr_complete", "ibv_post_recv"] {
                assert_eq!(device.calls(verb), 0, "{verb}");
            }
            // An empty list of segments is a message without bytes, not a dangling list.
            a.post(SendWr::send(&[][..]));
            assert!(is_quiet(&a.sends));
        }
    }

    #[test]
    #[expect(clippy::mem_forget, reason = "safe code may")]
    fn no_lock_outlives_a_call() {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = host.ends(Posting::Extended.into());
        let (part, to) = (a.memory.segment(..8).unwrap(), b.memory.remote().at(0).unwrap());
        // A batch that is given up in the middle, one that is forgotten, one that is never posted.
        let wrong =
            SendWr::write(a.memory.segment(..9).unwrap(), &b.memory.remote().part(0..8).unwrap());
        a.pair.post_send(&mut [SendWr::write(part, &to), wrong]).unwrap_err();
        std::mem::forget(vec![SendWr::<Rc>::write(part, &to)]);
        let unposted = vec![SendWr::<Rc>::write(part, &to)];
        let mut slots = Completion::slots::<1>();
        let found = a.sends.poll(&mut slots).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                a.post(SendWr::write(a.memory.segment(..8).unwrap(), &to).signaled());
                a.succeeded(0, Operation::WRITE);
            });
        });
        drop((unposted, found.len()));
        assert_eq!(device.violations(), [""; 0]);
    }

    #[test]
    fn no_destructor_panics() {
        for verb in [
            "ibv_destroy_qp",
            "ibv_destroy_cq",
            "ibv_dereg_mr",
            "ibv_dealloc_pd",
            "ibv_close_device",
        ] {
            let device = SoftDevice::new();
            let host = open(&device);
            let ends = host.ends(Shape::default());
            for nth in 1..=4 {
                device.refuse(verb, nth, libc::EIO);
            }
            drop(ends);
            drop(host);
            assert_ne!(device.leaks(), [""; 0], "{verb}");
        }
    }

    #[test]
    fn a_buffer_whose_deregistration_failed_is_not_freed() {
        let device = SoftDevice::new();
        let host = open(&device);
        let region = host.region(vec![0; 9_999], ALL);
        let address = region.bytes().as_ptr().addr();
        device.fail_deregistrations(1);
        drop(region);
        for _ in 0..64 {
            // Kept, so that the allocator looks further.
            let other = ManuallyDrop::new(vec![1_u8; 9_999]);
            assert!(!(other.as_ptr().addr()..other.as_ptr().addr() + 9_999).contains(&address));
        }
    }

    #[test]
    fn a_dma_buf_is_called_what_it_was_registered_as() {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, _b) = host.ends(Shape::default());
        let file = memory_file(8192);
        let part = part_of(&file, 4096 + 128, 256, 0x1234_5000_0080);
        // SAFETY: the file is used through the region and through file I/O only.
        let region = unsafe { host.domain.register_dma_buf(Vec::<u8>::new(), part, ALL) }.unwrap();
        // SAFETY: the region lives.
        assert_eq!(unsafe { (*region.as_raw()).addr }.addr(), 4096 + 128, "what C says");
        assert_eq!(region.address(), 0x1234_5000_0080);
        a.put(0, b"to the right place");
        let (part, to) = (a.memory.segment(..18).unwrap(), region.remote().at(100).unwrap());
        a.post(SendWr::write(part, &to).signaled());
        a.sent().outcome().unwrap();
        let mut found = [0; 18];
        file.read_exact_at(&mut found, 4096 + 128 + 100).unwrap();
        assert_eq!(&found, b"to the right place");
    }

    #[test]
    fn a_descriptor_is_used_once_and_not_kept() {
        let device = SoftDevice::new();
        let host = open(&device);
        let file = memory_file(4096);
        // SAFETY: the file is used through the region only.
        let region = unsafe {
            host.domain.register_dma_buf(Vec::<u8>::new(), part_of(&file, 0, 4096, 0), ALL)
        };
        drop(file);
        assert_eq!(region.unwrap().len(), 4096);
    }

    /// Memory of a device, as far as this crate can see: an owner that notices when it is dropped.
    #[derive(Debug)]
    struct DeviceMemory(Arc<AtomicBool>);

    impl Drop for DeviceMemory {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    // SAFETY: it owns no memory of the CPU, and taken apart it is not dropped.
    unsafe impl Buffer for DeviceMemory {
        type Raw = ManuallyDrop<Self>;

        fn into_raw(self) -> Self::Raw {
            ManuallyDrop::new(self)
        }

        unsafe fn from_raw(raw: Self::Raw) -> Self {
            ManuallyDrop::into_inner(raw)
        }
    }

    #[test]
    fn the_owner_of_memory_outlives_its_registration() {
        let device = SoftDevice::new();
        let host = open(&device);
        let freed = Arc::new(AtomicBool::new(false));
        let file = memory_file(4096);
        let (owner, part) = (DeviceMemory(Arc::clone(&freed)), part_of(&file, 0, 4096, 0));
        // SAFETY: the file is used through the region only.
        let region = unsafe { host.domain.register_dma_buf(owner, part, ALL) }.unwrap();
        assert!(!freed.load(Ordering::Relaxed));
        device.fail_deregistrations(1);
        let region = region.try_into_buffer().unwrap_err().object;
        assert!(!freed.load(Ordering::Relaxed));
        drop(region);
        assert!(freed.load(Ordering::Relaxed));
    }

    #[test]
    fn dropping_gives_everything_back_at_once() {
        let device = SoftDevice::new();
        for _ in 0..100 {
            let host = open(&device);
            let (a, b) = host.ends(Shape::default());
            a.post(SendWr::send(a.memory.segment(..).unwrap()).signaled());
            drop((a, b, host));
            assert_clean(&device);
        }
    }

    #[test]
    fn memory_that_a_peer_writes_is_copied_only() {
        let device = SoftDevice::new();
        let host = open(&device);
        for access in [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            let mut region = host.region(vec![0; 8], access | Access::LOCAL_WRITE);
            assert!(region.as_mut_slice().is_none(), "{access:?}");
            region.bytes().write(0, b"a copy  ").unwrap();
            assert_eq!(region.bytes().to_vec(), b"a copy  ");
        }
    }

    #[test]
    fn a_scope_ends_its_regions_whatever_its_queue_says() {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = host.ends(Shape::default());
        let mut memory = [5_u8; 64];
        let polled = host.domain.scope(|scope| {
            let region = scope.register(&mut memory, Access::LOCAL_WRITE).unwrap();
            b.pair.post_receive(&mut [RecvWr::to(1, region.segment(..).unwrap())]).unwrap();
            device.refuse("ibv_poll_cq", 1, libc::EIO);
            b.receives.poll(&mut Completion::slots::<1>()).map(<[_]>::len)
        });
        polled.unwrap_err();
        a.post(SendWr::send(a.memory.segment(..64).unwrap()).signaled());
        assert_eq!(a.sent().status(), CompletionStatus::REMOTE_OPERATION_ERROR);
        assert_eq!(memory, [5; 64]);
    }

    #[test]
    fn a_scope_does_not_wait_for_what_never_comes() {
        let device = SoftDevice::new();
        let host = open(&device);
        let (_a, b) = host.ends(Shape::default());
        let mut memory = [5_u8; 64];
        let start = Instant::now();
        host.domain.scope(|scope| {
            let region = scope.register(&mut memory, Access::LOCAL_WRITE).unwrap();
            b.pair.post_receive(&mut [RecvWr::to(1, region.segment(..).unwrap())]).unwrap();
        });
        assert!(start.elapsed() < Duration::from_secs(60));
        assert!(is_quiet(&b.receives), "the receive is still posted");
        b.pair.fail().unwrap();
        assert_eq!(b.received().status(), CompletionStatus::WORK_FLUSHED);
    }

    #[test]
    fn numbers_of_a_newer_library_are_values() {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = host.ends(Shape::default());
        let to = b.memory.remote().at(0).unwrap();
        let broken = |fault| {
            device.break_completion(1, fault);
            a.post(SendWr::write(a.memory.segment(..8).unwrap(), &to).signaled());
            a.sent()
        };
        let status = broken(CompletionFault::Status(4711)).outcome().unwrap_err().status;
        assert_eq!(status.to_string(), "completion status 4711");
        let completion = broken(CompletionFault::Opcode(77));
        assert_eq!(completion.outcome().unwrap().operation(), Operation(77));
        let completion = broken(CompletionFault::QueuePairNumber(u32::MAX));
        assert_eq!(completion.queue_pair().get(), 0x00ff_ffff);
        device.set_port_active(1, false);
        assert_eq!(ibverbs::PortState(99).to_string(), "in state 99");
    }

    #[test]
    fn the_keys_of_a_region_are_told_apart() {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = host.ends(Shape::default());
        assert_ne!(b.memory.local_key().0, b.memory.remote_key().0);
        assert_eq!(b.memory.segment(..).unwrap().local_key(), b.memory.local_key());
        assert_eq!(b.memory.remote().key(), b.memory.remote_key());
        // The local key opens nothing for a peer.
        let key = ibverbs::RemoteKey(b.memory.local_key().0);
        let wrong = ibverbs::RemoteMemory::new(b.memory.address(), 64, key).unwrap();
        let request = SendWr::write(a.memory.segment(..8).unwrap(), &wrong.at(0).unwrap());
        a.post(request.signaled());
        assert_eq!(a.sent().status(), CompletionStatus::REMOTE_ACCESS_ERROR);
    }

    #[test]
    fn a_region_of_more_than_four_gibibytes_is_whole() {
        const LENGTH: u64 = (4 << 30) + 4096;
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, _b) = host.ends(Shape::default());
        let file = memory_file(LENGTH);
        let part = part_of(&file, 0, usize::try_from(LENGTH).unwrap(), 0);
        // SAFETY: the file is used through the region and through file I/O only.
        let region = unsafe { host.domain.register_dma_buf(Vec::<u8>::new(), part, ALL) }.unwrap();
        assert_eq!((region.len() as u64, region.remote().len()), (LENGTH, LENGTH));
        let text = region.segment(..).unwrap_err().to_string();
        assert!(text.contains("the length of a segment in bytes cannot be 4294971392"), "{text}");
        let longest = region.segment(..usize::try_from(u32::MAX).unwrap()).unwrap();
        assert_eq!(longest.len(), u32::MAX);
        // A request that would have to be longer than it can say is refused, not cut.
        let to = region.remote().part(0..8).unwrap();
        a.pair.post_send(&mut [SendWr::write(longest, &to)]).unwrap_err();
        a.put(0, &pattern(3, 64));
        let to = region.remote().at(LENGTH - 64).unwrap();
        a.post(SendWr::write(a.memory.segment(..64).unwrap(), &to).signaled());
        a.sent().outcome().unwrap();
        let mut found = [0; 64];
        file.read_exact_at(&mut found, LENGTH - 64).unwrap();
        assert_eq!(found[..], pattern(3, 64));
    }

    #[test]
    fn a_device_without_extended_posting_is_used_without_it() {
        let device = SoftDevice::builder().extended_posting(false).build();
        let host = open(&device);
        let (a, b) = host.ends(Shape::default());
        assert_eq!(a.pair.posting(), Posting::Classic);
        a.put(0, &pattern(1, 8));
        let to = b.memory.remote().at(0).unwrap();
        a.post(SendWr::write(a.memory.segment(..8).unwrap(), &to).signaled());
        a.succeeded(0, Operation::WRITE);
        assert_eq!(b.get(0, 8), pattern(1, 8));
        // Nor does a creation that fails for another reason leave anything behind.
        let device = SoftDevice::new();
        let context = Arc::new(listed(&device).open().unwrap());
        let domain = Arc::new(ProtectionDomain::allocate(&context).unwrap());
        let queue = Arc::new(CompletionQueue::create(&context, 4).unwrap());
        device.refuse("ibv_create_qp_ex", 1, libc::EINVAL);
        device.refuse("ibv_create_qp", 1, libc::EINVAL);
        QueuePair::<Rc, Reset>::builder(&domain, &queue, &queue).create().unwrap_err();
        assert_eq!(MemoryRegion::register(&domain, vec![0_u8; 8], ALL).unwrap().len(), 8);
        drop((domain, queue, context));
        assert_clean(&device);
    }
}
