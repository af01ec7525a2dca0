//! Moving blocks.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::{connect, options};
use crate::{
    Buffer, Error, Memory, Part, Request,
    fake::{FakeTarget, namespace},
    testing::Random,
    wire::{block_format::ProtectionType, command::Opcode, nvm::Range},
};

pub(super) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Random::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn what_was_written_is_read_at_every_length() {
    let target = FakeTarget::new(8192);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    for (round, blocks) in [1, 2, 7, 8, 9, 63, 64, 65, 1000, 4096].into_iter().enumerate() {
        let bytes = pattern(blocks * 512, round as u64);
        let buffer = controller.allocate(bytes.len()).unwrap();
        buffer.write_at(0, &bytes).unwrap();
        namespace.write(round as u64, &buffer).unwrap();
        assert_eq!(target.lock().storage[round * 512..][..bytes.len()], bytes);
        buffer.write_at(0, &vec![0; bytes.len()]).unwrap();
        namespace.read(round as u64, &buffer).unwrap();
        assert_eq!(buffer.to_vec(), bytes);
    }
}

#[test]
fn long_requests_are_cut_and_in_flight_at_once() {
    let target = FakeTarget::new(8192);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    // 32 commands of 32 KiB; the target answers none before it has all.
    target.lock().batch = 32;
    let buffer = controller.allocate(1 << 20).unwrap();
    namespace.read(0, &buffer).unwrap();
    assert_eq!(target.lock().most_in_flight, 32);
    assert_eq!(target.count(Opcode::READ), 32);
}

#[test]
fn small_writes_travel_in_their_capsule_unless_that_is_switched_off() {
    for (in_capsule, expected) in [(true, 4096), (false, 0)] {
        let target = FakeTarget::new(64);
        let controller = connect(&target, options().in_capsule_data(in_capsule)).unwrap();
        let namespace = controller.namespace(1).unwrap();
        let buffer = controller.allocate(8192).unwrap();
        let bytes = pattern(8192, 1);
        buffer.write_at(0, &bytes).unwrap();
        let small = Part::new(&buffer, 0..4096).unwrap();
        namespace.write(8, &small).unwrap();
        namespace.write(0, &buffer).unwrap();
        assert_eq!(target.lock().in_capsule_bytes, expected);
        assert_eq!(target.lock().storage[..8192], bytes);
    }
}

#[test]
fn memory_out_of_the_processors_reach_is_written_without_the_capsule() {
    struct Device(Buffer);
    impl Memory for Device {
        fn address(&self) -> u64 {
            self.0.address()
        }
        fn remote_key(&self) -> u32 {
            self.0.remote_key()
        }
        fn length(&self) -> usize {
            self.0.len()
        }
        fn copy_to(&self, _: usize, _: &mut [u8]) -> bool {
            false
        }
    }
    let target = FakeTarget::new(64);
    let controller = connect(&target, options()).unwrap();
    let device = Device(controller.allocate(512).unwrap());
    device.0.write_at(0, &[9; 512]).unwrap();
    controller.namespace(1).unwrap().write(3, &device).unwrap();
    assert_eq!(target.lock().in_capsule_bytes, 0);
    assert_eq!(target.lock().storage[3 * 512..][..512], [9; 512]);
}

#[test]
fn memory_that_panics_while_it_is_copied_costs_no_place() {
    #[derive(Debug)]
    struct Broken(Buffer);
    impl Memory for Broken {
        fn address(&self) -> u64 {
            self.0.address()
        }
        fn remote_key(&self) -> u32 {
            self.0.remote_key()
        }
        fn length(&self) -> usize {
            self.0.len()
        }
        fn copy_to(&self, _: usize, _: &mut [u8]) -> bool {
            panic!("a fault of the user's")
        }
    }
    let target = FakeTarget::new(64);
    let controller = connect(&target, options().io_queues(1).queue_entries(2)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mut queue = controller.take_queue().unwrap();
    for _ in 0..100 {
        let broken = Broken(controller.allocate(512).unwrap());
        let request = Request::write(&namespace, 0, broken);
        catch_unwind(AssertUnwindSafe(|| drop(queue.submit(request)))).unwrap_err();
        assert_eq!(queue.pending(), 0);
    }
    let broken = Broken(controller.allocate(512).unwrap());
    queue.submit(Request::read(&namespace, 0, broken)).unwrap();
    queue.wait(Duration::from_secs(10)).unwrap().result.unwrap();
    assert_eq!(target.count(Opcode::WRITE), 0);
}

#[test]
fn ranges_and_lengths_that_do_not_fit_are_refused_before_anything_is_sent() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    let odd = controller.allocate(513).unwrap();
    let none = controller.allocate(0).unwrap();
    namespace.read(15, &block).unwrap();
    let before = target.lock().seen.len();
    assert!(matches!(namespace.read(16, &block), Err(Error::OutOfRange { .. })));
    assert!(matches!(namespace.read(u64::MAX, &block), Err(Error::OutOfRange { .. })));
    assert!(matches!(namespace.read(0, &odd), Err(Error::InvalidArgument { .. })));
    assert!(matches!(namespace.write(0, &none), Err(Error::InvalidArgument { .. })));
    assert!(matches!(namespace.write_zeroes(0, 0), Err(Error::OutOfRange { .. })));
    assert!(matches!(namespace.write_zeroes(0, 17), Err(Error::OutOfRange { .. })));
    assert!(matches!(namespace.deallocate(&[]), Err(Error::OutOfRange { .. })));
    let many = [Range { first_block: 0, blocks: 1 }; 257];
    assert!(matches!(namespace.deallocate(&many), Err(Error::OutOfRange { .. })));
    assert_eq!(target.lock().seen.len(), before);
}

#[test]
fn blocks_of_4096_bytes_are_moved_and_counted_as_such() {
    let target = FakeTarget::new(8 * 512);
    target.lock().namespace = namespace(512, 12, 0, ProtectionType::NONE);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    assert_eq!(
        (namespace.block_size(), namespace.blocks(), namespace.bytes()),
        (4096, 512, 2 << 20)
    );
    for (round, blocks) in [1, 2, 7, 8, 9, 300].into_iter().enumerate() {
        let bytes = pattern(blocks * 4096, round as u64);
        let buffer = controller.allocate(bytes.len()).unwrap();
        buffer.write_at(0, &bytes).unwrap();
        namespace.write(round as u64, &buffer).unwrap();
        assert_eq!(target.lock().storage[round * 4096..][..bytes.len()], bytes);
        assert!(namespace.compare(round as u64, &buffer).unwrap());
        buffer.write_at(0, &vec![0; bytes.len()]).unwrap();
        namespace.read(round as u64, &buffer).unwrap();
        assert_eq!(buffer.to_vec(), bytes);
    }
    let half = controller.allocate(512).unwrap();
    assert!(matches!(namespace.read(0, &half), Err(Error::InvalidArgument { .. })));
}

#[test]
fn requests_own_their_buffers_and_give_them_back() {
    let target = FakeTarget::new(1024);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mut queue = controller.take_queue().unwrap();
    let mut expected = HashMap::new();
    for block in 0..32 {
        let buffer = controller.allocate(512).unwrap();
        buffer.write_at(0, &pattern(512, block)).unwrap();
        let ticket = queue.submit(Request::write(&namespace, block, buffer)).unwrap();
        expected.insert(ticket, block);
    }
    while !expected.is_empty() {
        let finished = queue.wait(Duration::from_secs(10)).unwrap();
        finished.result.unwrap();
        let block = expected.remove(&finished.ticket).unwrap();
        assert_eq!(finished.buffer.unwrap().to_vec(), pattern(512, block));
    }
    assert!(queue.poll().is_none() && queue.wait(Duration::from_secs(10)).is_none());
    queue.submit(Request::flush(&namespace)).unwrap();
    queue.submit(Request::write_zeroes(&namespace, 0, 4)).unwrap();
    let ranges = [Range { first_block: 4, blocks: 4 }];
    queue.submit(Request::deallocate(&namespace, &ranges)).unwrap();
    for _ in 0..3 {
        let finished = queue.wait(Duration::from_secs(10)).unwrap();
        finished.result.unwrap();
        assert!(finished.buffer.is_none());
    }
    assert_eq!(target.lock().storage[..8 * 512], [0; 8 * 512]);
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let target = FakeTarget::new(64);
    let controller = connect(&target, options().queue_entries(4)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mut queue = controller.take_queue().unwrap();
    let mut taken = 0;
    let refused = loop {
        let buffer = controller.allocate(512).unwrap();
        match queue.submit(Request::read(&namespace, 0, buffer)) {
            Ok(_) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused.error, Error::QueueFull { .. }));
    assert!(refused.request.into_buffer().is_some());
    assert_eq!(queue.depth(), 3);
    assert!(taken > queue.depth());
    for _ in 0..taken {
        queue.wait(Duration::from_secs(10)).unwrap().result.unwrap();
    }
}

#[test]
fn blocking_calls_use_the_queues_that_are_left() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    let first = controller.take_queue::<Buffer>().unwrap();
    namespace.read(0, &block).unwrap();
    let second = controller.take_queue::<Buffer>().unwrap();
    assert!(matches!(namespace.read(0, &block), Err(Error::Unsupported { .. })));
    assert!(matches!(controller.take_queue::<Buffer>(), Err(Error::Unsupported { .. })));
    drop(first);
    namespace.read(0, &block).unwrap();
    drop(second);
}

#[test]
fn a_controller_without_queues_says_so() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options().io_queues(0)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    for refused in [namespace.read(0, &block), controller.take_queue::<Buffer>().map(drop)] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("has no I/O queue"), "{text}");
    }
}

#[test]
fn many_threads_share_few_queues() {
    let target = FakeTarget::new(4096);
    let controller = connect(&target, options().queue_entries(4)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (controller, namespace) = (&controller, &namespace);
            scope.spawn(move || {
                let buffer = controller.allocate(64 * 512).unwrap();
                for round in 0..20 {
                    let bytes = pattern(64 * 512, thread * 100 + round);
                    buffer.write_at(0, &bytes).unwrap();
                    namespace.write(thread * 512, &buffer).unwrap();
                    buffer.write_at(0, &vec![0; bytes.len()]).unwrap();
                    namespace.read(thread * 512, &buffer).unwrap();
                    assert_eq!(buffer.to_vec(), bytes);
                }
            });
        }
    });
}

#[test]
fn blocking_calls_go_elsewhere_when_their_queue_is_taken_meanwhile() {
    let target = FakeTarget::new(4096);
    // Sixteen places in each queue, and more threads than that.
    let controller = connect(&target, options().io_queues(2).queue_entries(2)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..24)
            .map(|_| {
                scope.spawn(|| {
                    let buffer = controller.allocate(512).unwrap();
                    for block in 0..100 {
                        match namespace.read(block, &buffer) {
                            // Each queue had an owner when it was looked at.
                            Ok(()) | Err(Error::Unsupported { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(controller.take_queue::<Buffer>());
                thread::yield_now();
            }
        });
        let read: Vec<_> = readers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(read.iter().all(Result::is_ok));
    });
}
