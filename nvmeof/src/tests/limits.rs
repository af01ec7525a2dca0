//! Limits of commands that move no blocks, which the largest transfer says nothing about.

use std::time::Duration;

use super::{connect, options};
use crate::{
    Buffer, Error, Namespace, Request, Status, StatusType,
    fake::{FakeTarget, Misbehaviour},
    wire::{
        command::Opcode, identify_namespace::NamespaceName, identify_nvm::IdentifyNvm, nvm::Range,
    },
};

/// A target whose blocks are all written, with these limits.
fn target(blocks: u64, nvm: IdentifyNvm) -> FakeTarget {
    let target = FakeTarget::new(blocks);
    target.lock().storage.fill(0xee);
    target.lock().nvm = Some(nvm);
    target
}

/// Checks that a target's blocks are zeros where they should be, and nowhere else.
fn check_zeros(target: &FakeTarget, expected: impl Fn(u64) -> bool) {
    for (held, block) in target.lock().storage.chunks_exact(512).zip(0..) {
        let byte = if expected(block) { 0 } else { 0xee };
        assert!(held.iter().all(|held| *held == byte), "block {block}");
    }
}

#[test]
fn zeros_are_written_in_commands_as_large_as_the_controller_takes() {
    // 16 KiB, below what a read may have.
    let nvm = IdentifyNvm { write_zeroes_exponent: 2, ..IdentifyNvm::UNLIMITED };
    let target = target(1000, nvm);
    let controller = connect(&target, options()).unwrap();
    assert_eq!(controller.identify_nvm(), nvm);
    assert_eq!(controller.max_write_zeroes(), Some(16 << 10));
    let namespace = controller.namespace(1).unwrap();
    namespace.write_zeroes(3, 900).unwrap();
    check_zeros(&target, |block| (3..903).contains(&block));
    assert_eq!(target.count(Opcode::WRITE_ZEROES), 29);
    let mut queue = controller.take_queue::<Buffer>().unwrap();
    queue.submit(Request::write_zeroes(&namespace, 0, 1000)).unwrap();
    queue.wait(Duration::from_secs(10)).unwrap().result.unwrap();
    check_zeros(&target, |_| true);
}

#[test]
fn a_controller_without_limits_or_without_the_structure_has_none() {
    for nvm in [None, Some(IdentifyNvm::UNLIMITED)] {
        let target = FakeTarget::new(1000);
        target.lock().nvm = nvm;
        let controller = connect(&target, options()).unwrap();
        assert_eq!(controller.identify_nvm(), IdentifyNvm::UNLIMITED);
        assert_eq!(controller.max_write_zeroes(), None);
        let namespace = controller.namespace(1).unwrap();
        namespace.write_zeroes(0, 1000).unwrap();
        namespace.deallocate(&[Range { first_block: 0, blocks: 1000 }; 256]).unwrap();
        assert_eq!(target.count(Opcode::WRITE_ZEROES), 1);
        assert_eq!(target.count(Opcode::DATASET_MANAGEMENT), 1);
    }
}

/// Ranges that no two limits cut alike, and whether a block is in one of them.
fn scattered() -> (Vec<Range>, impl Fn(u64) -> bool) {
    let ranges: Vec<Range> =
        (0..20).map(|index| Range { first_block: 50 * index, blocks: 30 }).collect();
    (ranges, |block| block < 1000 && block % 50 < 30)
}

#[test]
fn ranges_are_deallocated_in_commands_as_large_as_the_controller_takes() {
    let with = |ranges, range_blocks, blocks| IdentifyNvm {
        deallocate_ranges: ranges,
        deallocate_range_blocks: range_blocks,
        deallocate_blocks: blocks,
        ..IdentifyNvm::UNLIMITED
    };
    let (ranges, is_in_one) = scattered();
    for (nvm, commands) in [
        (with(0, 0, 0), 1),
        (with(3, 0, 0), 7),
        (with(0, 7, 0), 1),
        (with(0, 0, 100), 6),
        // Five pieces of a range each.
        (with(10, 7, 0), 10),
        (with(1, 1, 1), 600),
        (with(0, 1, 0), 3),
        (with(255, u32::MAX, u64::MAX), 1),
    ] {
        for in_capsule in [true, false] {
            let target = target(1000, nvm);
            let controller = connect(&target, options().in_capsule_data(in_capsule)).unwrap();
            let namespace = controller.namespace(1).unwrap();
            namespace.deallocate(&ranges).unwrap();
            check_zeros(&target, &is_in_one);
            assert_eq!(target.count(Opcode::DATASET_MANAGEMENT), commands, "{nvm:?}");
            assert_eq!(target.lock().in_capsule_bytes > 0, in_capsule);

            target.lock().storage.fill(0xee);
            let mut queue = controller.take_queue::<Buffer>().unwrap();
            // Several requests at once, each with its own memory.
            for half in ranges.chunks(10) {
                queue.submit(Request::deallocate(&namespace, half)).unwrap();
            }
            while queue.pending() > 0 {
                queue.wait(Duration::from_secs(10)).unwrap().result.unwrap();
            }
            check_zeros(&target, &is_in_one);
        }
    }
}

/// Two ranges in each command.
const PAIRS: IdentifyNvm = IdentifyNvm { deallocate_ranges: 2, ..IdentifyNvm::UNLIMITED };

#[test]
fn a_deallocation_of_several_commands_survives_losses_and_passing_conditions() {
    let not_ready = Status::new(StatusType::GENERIC, 0x82);
    for how in [
        Misbehaviour::Refuse(not_ready),
        Misbehaviour::CutBefore,
        Misbehaviour::CutAfter,
        Misbehaviour::WrongCommandId,
    ] {
        for in_capsule in [true, false] {
            let target = target(1000, PAIRS);
            let options = options().in_capsule_data(in_capsule).retry_writes(true);
            let controller = connect(&target, options).unwrap();
            let namespace = controller.namespace(1).unwrap();
            let (ranges, is_in_one) = scattered();
            target.misbehave([how, how]);
            namespace.deallocate(&ranges).unwrap();
            check_zeros(&target, is_in_one);
            assert_eq!(target.count(Opcode::DATASET_MANAGEMENT), 12, "{how:?}");
        }
    }
}

#[test]
fn a_deallocation_ends_at_its_first_failure() {
    let target = target(1000, PAIRS);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    target.misbehave([Misbehaviour::Refuse(Status::INTERNAL_ERROR.do_not_retry())]);
    let error = namespace.deallocate(&scattered().0).unwrap_err();
    assert_eq!(error.status(), Some(Status::INTERNAL_ERROR.do_not_retry()));
    assert_eq!(target.count(Opcode::DATASET_MANAGEMENT), 1);
    // The queue is as good as before.
    namespace.deallocate(&scattered().0).unwrap();
}

#[test]
fn limits_are_those_of_the_latest_connection() {
    let target = target(1000, IdentifyNvm::UNLIMITED);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let clear = |namespace: &Namespace| {
        namespace.deallocate(&scattered().0).unwrap();
        namespace.write_zeroes(0, 1000).unwrap();
        (target.count(Opcode::DATASET_MANAGEMENT), target.count(Opcode::WRITE_ZEROES))
    };
    assert_eq!(clear(&namespace), (1, 1));
    target.lock().nvm = Some(IdentifyNvm { write_zeroes_exponent: 6, ..PAIRS });
    target.cut();
    // A flush tells that the connection is gone; a write waits for the next one.
    while namespace.flush().is_err() {}
    assert_eq!(clear(&namespace), (11, 3));
    assert_eq!(controller.max_write_zeroes(), Some(256 << 10));
}

#[test]
fn namespaces_of_other_command_sets_are_refused() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    target.lock().names.push(NamespaceName::CommandSet(0));
    controller.namespace(1).unwrap();
    for set in [1, 2, 255] {
        *target.lock().names.last_mut().unwrap() = NamespaceName::CommandSet(set);
        let error = controller.namespace(1).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("NVM command set"), "{error}");
    }
}
