//! What commands ask for, and how they may end.

use std::time::{Duration, Instant};

use super::{connect, options, transferring::pattern};
use crate::{
    Error, Request, Status, StatusType,
    fake::{FakeTarget, Misbehaviour, namespace},
    wire::{block_format::ProtectionType, command::Opcode, identify::OptionalCommands, nvm::Range},
};

#[test]
fn the_other_commands_do_what_they_say() {
    let target = FakeTarget::new(200_000);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    target.lock().storage.fill(0xee);
    let buffer = controller.allocate(512).unwrap();
    buffer.write_at(0, &[0xee; 512]).unwrap();
    assert!(namespace.compare(5, &buffer).unwrap());
    buffer.write_at(511, &[0]).unwrap();
    assert!(!namespace.compare(5, &buffer).unwrap());
    namespace.write_through(6, &buffer).unwrap();
    namespace.flush().unwrap();
    assert_eq!(target.count(Opcode::FLUSH), 1);

    namespace.write_zeroes(0, 150_000).unwrap();
    assert!(target.lock().storage[..150_000 * 512].iter().all(|byte| *byte == 0));
    assert_eq!(target.lock().storage[150_000 * 512], 0xee);
    assert_eq!(target.count(Opcode::WRITE_ZEROES), 3);

    namespace
        .deallocate(&[
            Range { first_block: 199_999, blocks: 1 },
            Range { first_block: 199_000, blocks: 2 },
        ])
        .unwrap();
    let storage = &target.lock().storage;
    assert_eq!(storage[199_999 * 512..], [0; 512]);
    assert_eq!(storage[199_000 * 512..][..1024], [0; 1024]);
    assert_eq!(storage[199_002 * 512], 0xee);
}

#[test]
fn as_many_ranges_as_there_may_be_are_all_deallocated() {
    for in_capsule in [true, false] {
        let target = FakeTarget::new(512);
        target.lock().storage.fill(0xee);
        let controller = connect(&target, options().in_capsule_data(in_capsule)).unwrap();
        let namespace = controller.namespace(1).unwrap();
        let every_second = |index: usize| Range { first_block: 2 * index as u64, blocks: 1 };
        let ranges: Vec<Range> = (0..Range::MAX).map(every_second).collect();
        namespace.deallocate(&ranges).unwrap();
        for (block, held) in target.lock().storage.chunks_exact(512).enumerate() {
            assert_eq!(held[0] == 0, block % 2 == 0, "block {block}");
        }
    }
}

#[test]
fn a_status_reaches_the_caller_with_its_words() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    let status = Status::new(StatusType::MEDIA, 0x81).do_not_retry();
    target.misbehave([Misbehaviour::Refuse(status)]);
    let error = namespace.read(0, &block).unwrap_err();
    assert_eq!(error.status(), Some(status));
    assert!(error.to_string().contains("Unrecovered Read Error"), "{error}");
    namespace.read(0, &block).unwrap();
}

#[test]
fn a_passing_condition_is_waited_out_and_a_lasting_one_is_not() {
    let target = FakeTarget::new(16);
    target.lock().identify.retry_delays = [0, 1, 0];
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    let not_ready = Status::new(StatusType::GENERIC, 0x82);
    target.misbehave([Misbehaviour::Refuse(not_ready); 3]);
    namespace.write(0, &block).unwrap();
    assert_eq!(target.count(Opcode::WRITE), 4);
    target.misbehave([Misbehaviour::Refuse(not_ready); 4]);
    assert_eq!(namespace.write(0, &block).unwrap_err().status(), Some(not_ready));
}

#[test]
fn a_status_that_asks_for_a_delay_is_given_it() {
    let target = FakeTarget::new(16);
    target.lock().identify.retry_delays = [1, 3, u16::MAX];
    let controller = connect(&target, options()).unwrap();
    assert!(target.lock().keeps_delays);
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    let not_ready = Status::new(StatusType::GENERIC, 0x82).to_completion_field();
    // The last one of hours is cut to the time of a command, here 400 ms.
    for (index, least) in [(1, 100), (2, 300), (3, 400)] {
        let status = Status::from_completion_field(not_ready | index << 12);
        assert_eq!(u16::from(status.retry_delay_index()), index);
        target.misbehave([Misbehaviour::Refuse(status)]);
        let started = Instant::now();
        namespace.write(0, &block).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(least));
        assert!(started.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn protection_information_is_left_to_the_controller() {
    for protection in [ProtectionType::TYPE_1, ProtectionType::TYPE_2, ProtectionType::TYPE_3] {
        let target = FakeTarget::new(16 << 10);
        target.lock().namespace = namespace(16 << 10, 9, 8, protection);
        let controller = connect(&target, options()).unwrap();
        let namespace = controller.namespace(1).unwrap();
        // Several commands; the target checks the tag of each.
        let bytes = pattern(300 * 512, 5);
        let buffer = controller.allocate(bytes.len()).unwrap();
        buffer.write_at(0, &bytes).unwrap();
        namespace.write(2, &buffer).unwrap();
        assert_eq!(target.lock().storage[1024..][..bytes.len()], bytes);
        namespace.read(2, &buffer).unwrap();
        namespace.write_zeroes(1, 100).unwrap();
        namespace.flush().unwrap();
        assert!(target.lock().storage[512..][..100 * 512].iter().all(|byte| *byte == 0));
        let error = namespace.compare(2, &buffer).unwrap_err();
        assert!(matches!(error, Error::Unsupported { what: "compare", .. }), "{error}");
        assert_eq!(target.count(Opcode::COMPARE), 0);
    }
}

#[test]
fn what_the_controller_does_not_have_is_refused_before_anything_is_sent() {
    let target = FakeTarget::new(16);
    target.lock().identify.optional_commands = OptionalCommands(0);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    let ranges = [Range { first_block: 0, blocks: 1 }];
    for refused in [
        namespace.compare(0, &block).map(drop),
        namespace.write_zeroes(0, 1),
        namespace.deallocate(&ranges),
    ] {
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
    let mut queue = controller.take_queue().unwrap();
    let refused = queue.submit(Request::compare(&namespace, 0, block)).unwrap_err();
    assert!(matches!(refused.error, Error::Unsupported { what: "compare", .. }));
    assert_eq!(target.lock().seen, []);
}

#[test]
fn forced_unit_access_is_asked_for_where_the_caller_does() {
    let target = FakeTarget::new(1024);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let long = controller.allocate(100 * 512).unwrap();
    namespace.write(0, &long).unwrap();
    assert_eq!(target.lock().forced, 0);
    // Two commands, each of which asks.
    namespace.write_through(0, &long).unwrap();
    assert_eq!(target.lock().forced, 2);
    let mut queue = controller.take_queue().unwrap();
    let block = controller.allocate(512).unwrap();
    queue.submit(Request::read(&namespace, 0, block).force_unit_access()).unwrap();
    queue.wait(Duration::from_secs(10)).unwrap().result.unwrap();
    assert_eq!(target.lock().forced, 3);
}
