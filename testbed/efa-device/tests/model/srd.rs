use efa_device::{Capabilities, DeviceConfig};

use crate::driver::{
    ALL_ACCESS, End, LOCAL_WRITE, Network, Post, REMOTE_READ, REMOTE_WRITE, SRD, pair, srd_pair,
    u16_at, u32_at,
};

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect()
}

#[test]
fn a_send_with_immediate_gathers_two_buffers_and_scatters_into_two() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let data = pattern(4000);
    a.fill(10, &data[..1000]);
    a.fill(9000, &data[1000..]);
    let buffers = [b.mr.local(100, 1500), b.mr.local(20_000, 3000)];
    b.driver.post_receive(&mut b.qp, 5, &buffers);
    let post = Post::send(1, &[a.mr.local(10, 1000), a.mr.local(9000, 3000)]);
    a.post(post.immediate(0xabcd_1234).to(a.ah, &b.qp));
    network.settle();
    let sent = a.only();
    assert_eq!((sent.id, sent.status, sent.operation(), sent.is_receive()), (1, 0, 0, false));
    assert_eq!(sent.qp, a.qp.number);
    let received = b.only();
    assert_eq!((received.id, received.status, received.length()), (5, 0, 4000));
    assert!(received.is_receive());
    assert_eq!(received.immediate(), Some(0xabcd_1234));
    assert_eq!(received.source_qp(), a.qp.number);
    assert_eq!(received.address_handle(), b.ah);
    assert_eq!(b.bytes(100, 1500), data[..1500]);
    assert_eq!(b.bytes(20_000, 2500), data[1500..]);
}

#[test]
fn an_inline_send_needs_no_registered_memory() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    b.post_receive(1, 0, 64);
    a.post(Post::inline(9, b"thirty-two bytes are most of all").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 0);
    assert_eq!(b.only().length(), 32);
    assert_eq!(b.bytes(0, 32), b"thirty-two bytes are most of all");
}

#[test]
fn wide_requests_carry_80_inline_bytes_and_64_bit_ids() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    a.cq = a.driver.cq_with(64, 0, 1 << 6, 0);
    let payload = a.driver.qp_payload(SRD, a.pd, &a.cq).u32(36, 16 * 128).u8(3, 1 << 3);
    a.qp = a.driver.qp_from(&payload).expect("a queue pair of wide requests");
    assert_eq!(a.qp.request_bytes, 128);
    let qp = a.qp;
    a.driver.connect(&qp);
    let data = pattern(80);
    let mut write = Post {
        inline: Some(data.clone()),
        buffers: vec![],
        ..Post::write(0xbeef, a.mr.local(0, 0), b.mr.remote(3, 80))
    };
    write.wide_id = [1, 2, 3, 4, 5, 6];
    b.post_receive(1, 1000, 80);
    let send = Post::inline(7, &data).to(a.ah, &b.qp);
    a.post(write.to(a.ah, &b.qp));
    a.post(send);
    network.settle();
    let done = a.drain();
    assert_eq!(done.len(), 2);
    assert_eq!((done[0].id, done[0].status), (0xbeef, 0));
    assert_eq!(done[0].entry[6..12], [1, 2, 3, 4, 5, 6]);
    assert_eq!(done[1].status, 0);
    assert_eq!(b.bytes(3, 80), data);
    assert_eq!(b.bytes(1000, 80), data);
}

#[test]
fn a_queue_pair_of_wide_ids_needs_a_completion_queue_of_wide_ids() {
    let network = Network::calm();
    let [mut a, _] = srd_pair(&network);
    let cq = a.cq;
    let payload = a.driver.qp_payload(SRD, a.pd, &cq).u8(3, 1 << 3);
    assert_eq!(a.driver.qp_from(&payload).map(drop), Err(5));
}

#[test]
fn a_write_lands_at_any_offset_and_completes_only_at_its_sender() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let data = pattern(300_000);
    a.fill(3, &data);
    a.post(Post::write(1, a.mr.local(3, 300_000), b.mr.remote(4113, 300_000)).to(a.ah, &b.qp));
    network.settle();
    let done = a.only();
    assert_eq!((done.id, done.status, done.operation()), (1, 0, 2));
    assert_eq!(b.drain(), []);
    assert_eq!(b.bytes(4113, 300_000), data);
    assert_eq!(b.bytes(4112, 1), [0]);
    assert_eq!(b.bytes(4113 + 300_000, 1), [0]);
}

#[test]
fn a_write_with_immediate_uses_up_a_receive_and_tells_its_length() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    b.post_receive(7, 0, 0);
    let post = Post::write(1, a.mr.local(0, 100_000), b.mr.remote(0, 100_000));
    a.post(post.immediate(77).to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 0);
    let received = b.only();
    assert_eq!((received.id, received.operation()), (7, 2));
    assert_eq!((received.length(), received.immediate()), (100_000, Some(77)));
    assert!(!received.is_unsolicited());
}

/// A queue pair whose writes with immediate use up no receive.
fn unsolicited(end: &mut End) -> crate::driver::Qp {
    let cq = end.cq;
    let payload = end.driver.qp_payload(SRD, end.pd, &cq).u8(3, 1 << 2);
    let qp = end.driver.qp_from(&payload).expect("a queue pair");
    end.driver.connect(&qp);
    qp
}

#[test]
fn queue_pairs_that_disagree_on_unsolicited_writes_do_not_write_with_immediate() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let qp = unsolicited(&mut b);
    let write = Post::write(1, a.mr.local(0, 9), b.mr.remote(0, 9)).to(a.ah, &qp);
    assert_eq!(status_of(&network, &mut a, write.clone()), 0, "no immediate, no matter");
    assert_eq!(status_of(&network, &mut a, write.clone().immediate(1)), 18);
    let usual = b.qp;
    a.qp = unsolicited(&mut a);
    let write = write.immediate(1).to(a.ah, &usual);
    assert_eq!(status_of(&network, &mut a, write), 18);
    assert_eq!(b.drain(), []);
}

#[test]
fn an_unsolicited_write_with_immediate_uses_up_no_receive() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let mut qp = unsolicited(&mut b);
    a.qp = unsolicited(&mut a);
    let buffer = b.mr.local(0, 64);
    b.driver.post_receive(&mut qp, 5, &[buffer]);
    let post = Post::write(1, a.mr.local(0, 9), b.mr.remote(0, 9));
    a.post(post.immediate(99).to(a.ah, &qp));
    a.post(Post::inline(2, b"x").to(a.ah, &qp));
    network.settle();
    let received = b.drain();
    assert_eq!(received.len(), 2);
    assert!(received[0].is_unsolicited());
    assert_eq!((received[0].immediate(), received[0].length()), (Some(99), 9));
    assert_eq!(received[1].id, 5, "the receive is left for the send");
}

#[test]
fn a_read_fetches_remote_memory() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let data = pattern(70_000);
    b.fill(777, &data);
    a.post(Post::read(3, a.mr.local(11, 70_000), b.mr.remote(777, 70_000)).to(a.ah, &b.qp));
    network.settle();
    let done = a.only();
    assert_eq!((done.id, done.status, done.operation()), (3, 0, 1));
    assert_eq!(a.bytes(11, 70_000), data);
    assert_eq!(b.drain(), []);
}

#[test]
fn a_device_reaches_its_own_queue_pairs() {
    let network = Network::calm();
    let [mut a, _] = srd_pair(&network);
    let gid = a.driver.gid;
    let myself = a.driver.ah(a.pd, gid);
    let cq = a.cq;
    let mut other = a.driver.qp(SRD, a.pd, &cq);
    let buffer = a.mr.local(500, 64);
    a.driver.post_receive(&mut other, 8, &[buffer]);
    a.fill(0, b"loop");
    a.post(Post::send(1, &[a.mr.local(0, 4)]).to(myself, &other));
    network.settle();
    assert_eq!(a.drain().len(), 2);
    assert_eq!(a.bytes(500, 4), b"loop");
}

#[test]
fn a_send_from_an_unknown_peer_carries_its_address() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    forget_peer(&mut b);
    b.post_receive(1, 0, 10);
    a.post(Post::inline(1, b"who").to(a.ah, &b.qp));
    network.settle();
    let received = b.only();
    assert_eq!(received.address_handle(), 0xffff);
    assert_eq!(received.entry[16..], a.driver.gid);
}

fn forget_peer(end: &mut End) {
    let payload = crate::driver::Payload::default().u16(0, end.ah).u16(2, end.pd);
    end.driver.command(6, &payload).expect("an address handle");
}

/// Posts one request and returns the status it completes with.
fn status_of(network: &Network, a: &mut End, post: Post) -> u8 {
    a.post(post);
    network.settle();
    a.only().status
}

#[test]
fn rdma_to_a_peer_that_has_no_address_handle_for_us_is_unknown_peer() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    forget_peer(&mut b);
    let write = Post::write(1, a.mr.local(0, 8), b.mr.remote(0, 8)).to(a.ah, &b.qp);
    let read = Post::read(2, a.mr.local(0, 8), b.mr.remote(0, 8)).to(a.ah, &b.qp);
    assert_eq!(status_of(&network, &mut a, write), 14);
    assert_eq!(status_of(&network, &mut a, read), 14);
}

#[test]
fn every_mistake_has_its_status() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let (local, remote) = (a.mr.local(0, 8), b.mr.remote(0, 8));
    let good = Post::write(1, local, remote).to(a.ah, &b.qp);
    let (read_only, _) = b.driver.mr(b.pd, 4096, LOCAL_WRITE | REMOTE_READ);
    let (write_only, _) = b.driver.mr(b.pd, 4096, LOCAL_WRITE | REMOTE_WRITE);
    let (constant, _) = a.driver.mr(a.pd, 4096, 0);
    let mut other_key = remote;
    other_key.key = b.mr.lkey;
    let other_domain = a.driver.pd();
    let (foreign, _) = a.driver.mr(other_domain, 4096, ALL_ACCESS);
    let to = |post: Post| post.to(a.ah, &b.qp);
    let cases = [
        (0, good.clone()),
        (0, to(Post::write(1, a.mr.local(0, 0), b.mr.remote(0, 0)))),
        (3, Post { operation: 3, ..good.clone() }),
        (3, Post { immediate: Some(1), ..to(Post::read(1, local, remote)) }),
        (4, Post { ah: 99, ..good.clone() }),
        (5, to(Post::write(1, crate::driver::Buffer { key: local.key + 1, ..local }, remote))),
        (5, to(Post::write(1, a.mr.local(1 << 20, 8), remote))),
        (5, to(Post::write(1, foreign.local(0, 8), remote))),
        (5, to(Post::read(1, constant.local(0, 8), remote))),
        (6, to(Post::write(1, a.mr.local(0, 9), remote))),
        (6, Post { buffers: vec![local; 2], ..good.clone() }),
        (6, Post { inline: Some(vec![0; 8]), ..to(Post::read(1, local, remote)) }),
        (6, to(Post::send(1, &[a.mr.local(0, 8929)]))),
        (7, to(Post::write(1, local, crate::driver::Buffer { key: remote.key + 1, ..remote }))),
        (7, to(Post::write(1, local, other_key))),
        (7, to(Post::write(1, local, b.mr.remote((1 << 20) - 7, 8)))),
        (7, to(Post::write(1, local, read_only.remote(0, 8)))),
        (7, to(Post::read(1, local, write_only.remote(0, 8)))),
        (0, to(Post::read(1, local, read_only.remote(0, 8)))),
        (9, Post { to: b.qp.number + 1, ..good.clone() }),
        (9, Post { qkey: 5, ..good.clone() }),
    ];
    for (number, (status, post)) in cases.into_iter().enumerate() {
        assert_eq!(status_of(&network, &mut a, post), status, "case {number}");
    }
    assert_eq!(a.driver.state(&a.qp.clone()), 3, "an error leaves the queue pair ready");
    b.driver.deregister(&b.mr.clone()).expect("a region");
    assert_eq!(status_of(&network, &mut a, good), 7, "a region that is gone");
}

#[test]
fn a_send_that_does_not_fit_its_receive_fails_on_both_sides() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    b.post_receive(1, 0, 7);
    let post = Post::inline(1, b"8 bytes!").to(a.ah, &b.qp);
    assert_eq!(status_of(&network, &mut a, post), 11);
    assert_eq!(b.only().status, 6);
    assert_eq!(b.bytes(0, 7), [0; 7]);
}

#[test]
fn a_receive_with_a_bad_key_fails_on_both_sides() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let mut buffer = b.mr.local(0, 64);
    buffer.key += 1;
    b.driver.post_receive(&mut b.qp, 1, &[buffer]);
    let post = Post::inline(1, b"x").to(a.ah, &b.qp);
    assert_eq!(status_of(&network, &mut a, post), 12);
    assert_eq!(b.only().status, 5);
}

#[test]
fn a_destroyed_peer_is_a_bad_queue_pair() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let qp = b.qp;
    b.driver.destroy(&qp);
    let post = Post::inline(1, b"x").to(a.ah, &qp);
    assert_eq!(status_of(&network, &mut a, post), 9);
}

#[test]
fn missing_capabilities_are_refused_on_either_side() {
    let no_rdma = DeviceConfig {
        capabilities: Capabilities {
            rdma_read: false,
            rdma_write: false,
            unsolicited_write_receive: false,
            ..Capabilities::default()
        },
        ..DeviceConfig::default()
    };
    let network = Network::calm();
    let [mut old, mut new] = pair(&network, SRD, [no_rdma, DeviceConfig::default()]);
    for operation in [1, 2] {
        let post = |from: &End, to: &End| Post {
            operation,
            ..Post::read(1, from.mr.local(0, 8), to.mr.remote(0, 8)).to(from.ah, &to.qp)
        };
        let (from_old, from_new) = (post(&old, &new), post(&new, &old));
        assert_eq!(status_of(&network, &mut old, from_old), 3);
        assert_eq!(status_of(&network, &mut new, from_new), 18);
    }
    let cq = old.cq;
    let payload = old.driver.qp_payload(SRD, old.pd, &cq).u8(3, 1 << 2);
    assert_eq!(old.driver.qp_from(&payload).map(drop), Err(5));
}

#[test]
fn a_transfer_larger_than_the_device_allows_is_a_bad_length() {
    let small = DeviceConfig { max_rdma_size: 4096, ..DeviceConfig::default() };
    let network = Network::calm();
    let [mut a, b] = pair(&network, SRD, [small, DeviceConfig::default()]);
    for (length, status) in [(4096, 0), (4097, 6)] {
        let post = Post::write(1, a.mr.local(0, length), b.mr.remote(0, length));
        let post = post.to(a.ah, &b.qp);
        assert_eq!(status_of(&network, &mut a, post), status, "{length} bytes");
    }
}

#[test]
fn armed_completion_queues_raise_one_interrupt_through_their_event_queue() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let (eq, events) = b.driver.eq(3);
    let mut cq = b.driver.cq_with(16, 1 << 5, 1 << 5, eq);
    let mut qp = b.driver.qp(SRD, b.pd, &cq);
    b.driver.write_register(0x68, 1 << 31 | u32::from(eq));
    b.driver.ring(cq.doorbell.into(), 1 << 31);
    let buffer = b.mr.local(0, 64);
    for id in 0..3 {
        b.driver.post_receive(&mut qp, id, &[buffer]);
    }
    for id in 0..2 {
        a.post(Post::inline(id, b"x").to(a.ah, &qp));
    }
    network.settle();
    assert_eq!(b.driver.machine.interrupts(3), 1, "armed once");
    let event = b.driver.machine.bytes(events, 16);
    assert_eq!((event[0] & 1, u16_at(&event, 8)), (1, cq.number));
    assert_eq!(u32_at(&b.driver.machine.bytes(events + 16, 16), 0), 0);
    assert_eq!(b.driver.drain(&mut cq).len(), 2);

    // Armed for what has already come: the event is there at once, the interrupt when the event
    // queue is armed again.
    a.post(Post::inline(2, b"x").to(a.ah, &qp));
    network.settle();
    b.driver.ring(cq.doorbell.into(), 1 << 31 | u32::from(cq.read));
    assert_eq!(b.driver.machine.interrupts(3), 0);
    b.driver.write_register(0x68, 1 << 31 | u32::from(eq));
    assert_eq!(b.driver.machine.interrupts(3), 1);
}
