//! Borrowed memory is registered as long as its scope runs, however the scope ends.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ibverbs::{Access, CompletionStatus, Error, RecvWr, Region, RemoteMemory, SendWr};
use soft_device::SoftDevice;

use crate::{
    common::{ALL, End, Shape, pattern},
    support::{assert_clean, open},
};

/// A peer that still has the key reaches nothing.
fn assert_is_closed(a: &End, remote: &RemoteMemory) {
    let request = SendWr::write(a.memory.segment(..8).unwrap(), &remote.part(0..8).unwrap());
    a.post(request.signaled());
    assert_eq!(a.sent().status(), CompletionStatus::REMOTE_ACCESS_ERROR);
}

#[test]
fn borrowed_memory_is_written_by_a_peer_and_used_again_after_the_scope() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape::default());
    a.put(0, &pattern(1, 100));
    let mut first = vec![0_u8; 100];
    let mut second = [0_u64; 4];
    let (remote, length) = host.domain.scope(|scope| {
        let first = scope.register(&mut first, ALL).unwrap();
        let second = scope.register(&mut second, ALL).unwrap();
        let from = a.memory.segment(..100).unwrap();
        a.post(SendWr::write(from, &first.remote().at(0).unwrap()).signaled());
        a.sent().outcome().unwrap();
        // The scope's own regions are segments of requests too.
        let (from, to) = (first.segment(..32).unwrap(), second.remote().at(0).unwrap());
        b.post(SendWr::write(from, &to).signaled());
        b.sent().outcome().unwrap();
        assert_eq!(first.shared_bytes().unwrap().to_vec(), pattern(1, 100));
        (first.remote(), second.len())
    });
    assert_eq!(first, pattern(1, 100));
    let words: Vec<u8> = second.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!((length, words), (32, pattern(1, 32)));
    assert_is_closed(&a, &remote);
}

#[test]
fn a_scope_that_panics_deregisters() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, _b) = host.ends(Shape::default());
    let mut memory = [0_u8; 64];
    let mut remote = None;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        host.domain.scope(|scope| {
            remote = Some(scope.register(&mut memory, ALL).unwrap().remote());
            panic!("in the middle");
        })
    }));
    panicked.unwrap_err();
    assert_is_closed(&a, &remote.unwrap());
    assert_eq!(memory, [0; 64]);
    assert_eq!(device.calls("ibv_dereg_mr"), 1);
}

#[test]
fn a_scope_that_returns_early_deregisters() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, _b) = host.ends(Shape::default());
    let mut memory = [0_u8; 64];
    let mut remote = None;
    let outcome: Result<(), Error> = host.domain.scope(|scope| {
        let region = scope.register(&mut memory, ALL)?;
        remote = Some(region.remote());
        region.segment(60..70)?;
        unreachable!("the range does not lie inside");
    });
    outcome.unwrap_err();
    assert_is_closed(&a, &remote.unwrap());
}

#[test]
fn a_scope_with_a_receive_in_flight_ends_and_nothing_is_written_after_it() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape::default());
    let mut memory = [7_u8; 64];
    host.domain.scope(|scope| {
        let region = scope.register(&mut memory, Access::LOCAL_WRITE).unwrap();
        b.pair.post_receive(&mut [RecvWr::to(1, region.segment(..).unwrap())]).unwrap();
    });
    a.post(SendWr::send(a.memory.segment(..64).unwrap()).signaled());
    assert_eq!(a.sent().status(), CompletionStatus::REMOTE_OPERATION_ERROR);
    assert_eq!(b.received().status(), CompletionStatus::LOCAL_PROTECTION_ERROR);
    assert_eq!(memory, [7; 64]);
}

#[test]
fn a_scope_with_a_read_in_flight_ends_and_nothing_is_written_after_it() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape::default());
    let mut memory = [7_u8; 64];
    host.domain.scope(|scope| {
        let region = scope.register(&mut memory, Access::LOCAL_WRITE).unwrap();
        // It waits behind a send for which there is no receive.
        let send = SendWr::send(a.memory.segment(..8).unwrap());
        let from = b.memory.remote().at(0).unwrap();
        let read = SendWr::read(region.segment(..).unwrap(), &from).id(2).signaled();
        a.pair.post_send(&mut [send, read]).unwrap();
    });
    b.put(0, &pattern(3, 64));
    b.receive(1, 1000, 8);
    let failure = a.sent().outcome().unwrap_err();
    assert_eq!((failure.id, failure.status), (2, CompletionStatus::LOCAL_PROTECTION_ERROR));
    assert_eq!(memory, [7; 64]);
}

#[test]
fn a_registration_that_is_refused_leaves_the_scope_as_it_was() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (mut first, mut second, mut third) = ([0_u8; 8], [0_u8; 8], [0_u8; 8]);
    host.domain.scope(|scope| {
        let first = scope.register(&mut first, ALL).unwrap();
        device.refuse("ibv_reg_mr", 1, libc::ENOMEM);
        scope.register(&mut second, ALL).unwrap_err();
        scope.register(&mut third, Access::REMOTE_WRITE).unwrap_err();
        assert!(format!("{scope:?}").contains("regions: 1"), "{scope:?}");
        assert_eq!(first.len(), 8);
    });
    drop(host);
    assert_clean(&device);
}

#[test]
fn scopes_nest() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (mut outer, mut inner) = ([0_u8; 8], [0_u8; 8]);
    host.domain.scope(|scope| {
        let outer = scope.register(&mut outer, ALL).unwrap();
        host.domain.scope(|scope| {
            let inner = scope.register(&mut inner, ALL).unwrap();
            assert_ne!(inner.remote_key(), outer.remote_key());
        });
        assert_eq!(device.calls("ibv_dereg_mr"), 1);
        assert_eq!(Region::len(outer), 8);
    });
    assert_eq!(device.calls("ibv_dereg_mr"), 2);
}
