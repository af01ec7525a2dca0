use efa_device::{Capabilities, DeviceConfig};

use crate::driver::{End, Network, Payload, Post, srd_pair, u32_at, u64_at};

const SEND: u32 = 1;
const SEND_ERROR: u32 = 2;
const RECEIVE: u32 = 4;
const WRITE: u32 = 1 << 6;
const REMOTE_READ: u32 = 1 << 8;
const REMOTE_WRITE: u32 = 1 << 9;

/// A counter that is attached to the queue pair of `end`; returns its handle and its place.
fn counter(end: &mut End, events: u32) -> (u32, u64) {
    let place = end.driver.allocate(8);
    let payload = Payload::default().u64(4, place);
    let handle = u32_at(&end.driver.command(25, &payload).expect("a counter"), 0);
    let attach = Payload::default().u32(0, handle).u32(8, end.qp.handle).u32(12, events);
    end.driver.command(27, &attach).expect("attached");
    (handle, place)
}

fn value(end: &End, place: u64) -> u64 {
    u64_at(&end.driver.machine.bytes(place, 8), 0)
}

#[test]
fn counters_count_the_events_they_are_attached_to() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let (sends, sent_at) = counter(&mut a, SEND | WRITE);
    let (_, errors_at) = counter(&mut a, SEND_ERROR);
    let (_, received_at) = counter(&mut b, RECEIVE);
    let (_, remote_at) = counter(&mut b, REMOTE_READ | REMOTE_WRITE);
    b.post_receive(1, 0, 64);
    let to = |post: Post| post.to(a.ah, &b.qp);
    let posts = [
        to(Post::inline(1, b"x")),
        to(Post::write(2, a.mr.local(0, 8), b.mr.remote(0, 8))),
        to(Post::read(3, a.mr.local(0, 8), b.mr.remote(0, 8))),
        Post { to: 1, ..to(Post::inline(4, b"x")) },
    ];
    a.driver.post(&mut a.qp, &posts);
    network.settle();
    assert_eq!(value(&a, sent_at), 2);
    assert_eq!(value(&a, errors_at), 1);
    assert_eq!(value(&b, received_at), 1);
    assert_eq!(value(&b, remote_at), 2);

    let set = Payload::default().u32(0, sends).u8(4, 0).u64(12, u64::MAX - 1);
    a.driver.command(28, &set).expect("set");
    let add = Payload::default().u32(0, sends).u8(4, 1).u64(12, 3);
    a.driver.command(28, &add).expect("added");
    assert_eq!(value(&a, sent_at), 1, "counters wrap around");

    let detach = Payload::default().u32(0, sends).u32(8, a.qp.handle).u32(12, SEND);
    a.driver.command(29, &detach).expect("detached");
    b.post_receive(1, 0, 64);
    a.post(Post::inline(5, b"x").to(a.ah, &b.qp));
    a.post(Post::write(6, a.mr.local(0, 8), b.mr.remote(0, 8)).to(a.ah, &b.qp));
    network.settle();
    assert_eq!(value(&a, sent_at), 2, "only the write counts");
    a.driver.command(26, &Payload::default().u32(0, sends)).expect("a counter");
}

#[test]
fn counters_are_refused_where_they_make_no_sense() {
    let network = Network::calm();
    let [mut a, _] = srd_pair(&network);
    assert_eq!(a.driver.command(25, &Payload::default().u64(4, 12)), Err(5), "alignment");
    let (handle, _) = counter(&mut a, SEND);
    let attach = |events, qp| Payload::default().u32(0, handle).u32(8, qp).u32(12, events);
    let qp = a.qp.handle;
    assert_eq!(a.driver.command(27, &attach(1 << 10, qp)), Err(5), "events");
    assert_eq!(a.driver.command(27, &attach(1, qp + 1)), Err(5), "queue pair");
    assert_eq!(a.driver.command(27, &attach(1, qp).u8(4, 1)), Err(5), "kind");
    assert_eq!(a.driver.command(28, &Payload::default().u32(0, handle).u8(4, 2)), Err(5));
    let without = DeviceConfig {
        capabilities: Capabilities { event_counters: false, ..Capabilities::default() },
        ..DeviceConfig::default()
    };
    let mut driver = network.device(without);
    assert_eq!(driver.command(25, &Payload::default().u64(4, 4096)), Err(3));
}
