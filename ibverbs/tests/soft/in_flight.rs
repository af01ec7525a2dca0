//! Dropping and forgetting what requests still name.

use ibverbs::{Access, CompletionStatus, MemoryRegion, PageAligned, RecvWr, SendWr};
use soft_device::SoftDevice;

use crate::{
    common::{
        End, Host, Shape,
        host::next,
        is_quiet,
        orders::{PARTS, drop_in, orders, parts},
        pattern,
    },
    support::{POSTINGS, assert_clean, open},
};

/// Two ends; the first one's send waits for a receive that the second one does not post, and the second
/// one's does too.
fn busy_ends(host: &Host) -> (End, End) {
    let (a, b) = host.ends(Shape { memory: 64, ..Shape::default() });
    for end in [&a, &b] {
        end.post(SendWr::send(end.memory.segment(..).unwrap()).id(1).signaled());
        assert!(is_quiet(&end.sends));
    }
    (a, b)
}

#[test]
fn an_end_with_work_in_flight_can_be_dropped_in_every_order() {
    let device = SoftDevice::new();
    let orders = orders();
    assert_eq!(orders.len(), 720);
    for order in orders {
        let host = open(&device);
        let (a, b) = busy_ends(&host);
        drop_in(&order, parts(host, a), None);
        drop(b);
        assert_clean(&device);
    }
}

#[test]
fn what_is_forgotten_is_leaked_and_nothing_else_breaks() {
    let orders = orders();
    for (forgotten, name) in PARTS.iter().enumerate() {
        for order in orders.iter().step_by(17) {
            let device = SoftDevice::new();
            let host = open(&device);
            let (a, b) = busy_ends(&host);
            drop_in(order, parts(host, a), Some(forgotten));
            drop(b);
            assert_ne!(device.leaks(), [""; 0], "{name}");
        }
    }
}

#[test]
fn the_peer_can_go_in_the_middle_of_everything() {
    for order in orders().iter().step_by(5) {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = busy_ends(&host);
        let mut b = Some(b);
        let (first, last) = order.split_at(3);
        let mut rest = parts(host, a);
        for &part in first {
            rest[part] = None;
        }
        b.take();
        drop_in(last, rest, None);
        assert_clean(&device);
    }
}

#[test]
fn a_send_in_flight_reads_nothing_of_a_region_that_was_dropped() {
    for posting in POSTINGS {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = host.ends(posting.into());
        let region = host.region(pattern(1, 256), Access::READ_ONLY);
        a.post(SendWr::send(region.segment(..).unwrap()).id(5).signaled());
        drop(region);
        // The receive that lets the send go on.
        b.receive(6, 0, 256);
        let failure = a.sent().outcome().unwrap_err();
        assert_eq!((failure.id, failure.status), (5, CompletionStatus::LOCAL_PROTECTION_ERROR));
        assert_eq!(b.get(0, 256), [0; 256]);
    }
}

#[test]
fn a_receive_in_flight_writes_nothing_to_a_buffer_that_was_given_back() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape::default());
    let buffer = PageAligned::new(4096).unwrap();
    let region = MemoryRegion::register(&host.domain, buffer, Access::LOCAL_WRITE).unwrap();
    b.pair.post_receive(&mut [RecvWr::to(1, region.segment(..).unwrap())]).unwrap();
    let buffer = region.into_buffer().unwrap();
    a.put(0, &pattern(1, 100));
    a.post(SendWr::send(a.memory.segment(..100).unwrap()).signaled());
    assert_eq!(a.sent().status(), CompletionStatus::REMOTE_OPERATION_ERROR);
    assert_eq!(b.received().status(), CompletionStatus::LOCAL_PROTECTION_ERROR);
    assert_eq!(buffer.as_slice(), [0; 4096]);
}

#[test]
fn a_peer_reaches_nothing_of_a_buffer_that_was_given_back() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape::default());
    let region = host.region(vec![0; 64], crate::common::ALL);
    let remote = region.remote();
    let buffer = region.into_buffer().unwrap();
    a.put(0, &pattern(1, 64));
    let from = a.memory.segment(..64).unwrap();
    a.post(SendWr::write(from, &remote.at(0).unwrap()).signaled());
    assert_eq!(a.sent().status(), CompletionStatus::REMOTE_ACCESS_ERROR);
    assert_eq!(buffer, [0; 64]);
    drop(b);
}

#[test]
fn a_queue_pair_that_is_dropped_ends_its_work_and_its_peer_notices() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = busy_ends(&host);
    let (sends, memory) = (a.sends.clone(), a.memory);
    drop(a.pair);
    assert!(is_quiet(&sends));
    let b_sends = b.sends.clone();
    b.pair.fail().unwrap();
    assert_eq!(next(&b_sends).status(), CompletionStatus::WORK_FLUSHED);
    assert_eq!(memory.into_buffer().unwrap().len(), 64);
}

#[test]
fn resetting_a_queue_pair_ends_its_work_silently_and_it_connects_anew() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = busy_ends(&host);
    let (a_pair, b_pair) = (a.pair.reset().unwrap(), b.pair.reset().unwrap());
    assert!(is_quiet(&a.sends) && is_quiet(&b.sends));
    let a = End { pair: a_pair, sends: a.sends, receives: a.receives, memory: a.memory };
    let b = End { pair: b_pair, sends: b.sends, receives: b.receives, memory: b.memory };
    let (to_a, to_b) = (a.pair.endpoint(&host.port), b.pair.endpoint(&host.port));
    let options = ibverbs::ConnectOptions::new(&host.port).access(crate::common::ALL);
    let (a, b) = (a.connect(&to_b, &options), b.connect(&to_a, &options));
    b.receive(1, 0, 64);
    a.post(SendWr::send(a.memory.segment(..).unwrap()).id(2).signaled());
    assert_eq!((a.sent().id(), b.received().id()), (2, 1));
}
