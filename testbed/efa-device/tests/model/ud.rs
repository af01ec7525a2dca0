use efa_device::DeviceConfig;

use crate::driver::{Network, Post, SRD, UD, pair};

#[test]
fn a_receive_counts_the_routing_header_before_the_payload() {
    let network = Network::calm();
    let [mut a, mut b] = pair(&network, UD, Default::default());
    a.fill(0, b"datagram");
    b.post_receive(4, 100, 48);
    a.post(Post::send(1, &[a.mr.local(0, 8)]).immediate(5).to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 0);
    let received = b.only();
    assert_eq!((received.id, received.status, received.length()), (4, 0, 48));
    assert_eq!(received.immediate(), Some(5));
    let bytes = b.bytes(100, 48);
    assert_eq!(bytes[8..24], a.driver.gid);
    assert_eq!(bytes[24..40], b.driver.gid);
    assert_eq!(&bytes[40..], b"datagram");
}

#[test]
fn the_routing_header_needs_room() {
    let network = Network::calm();
    let [mut a, mut b] = pair(&network, UD, Default::default());
    b.post_receive(4, 0, 47);
    a.post(Post::inline(1, b"datagram").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 0, "a datagram is sent, wherever it goes");
    assert_eq!(b.only().status, 6);
}

#[test]
fn a_datagram_without_receive_or_receiver_vanishes() {
    let network = Network::calm();
    let [mut a, mut b] = pair(&network, UD, Default::default());
    let mut nowhere = b.qp;
    nowhere.number = nowhere.number.wrapping_add(1);
    let mut wrong_key = Post::inline(3, b"x").to(a.ah, &b.qp);
    wrong_key.qkey += 1;
    for post in
        [Post::inline(1, b"x").to(a.ah, &b.qp), Post::inline(2, b"x").to(a.ah, &nowhere), wrong_key]
    {
        a.post(post);
        network.settle();
        assert_eq!(a.only().status, 0);
    }
    assert_eq!(b.drain(), []);
    let counts = b.driver.command(13, &[0; 16]).expect("counts");
    let counts: Vec<u64> = (0..6).map(|n| crate::driver::u64_at(&counts, 8 * n)).collect();
    assert_eq!(counts[4..], [3, 1], "drops and queue key violations");
}

#[test]
fn datagrams_do_no_rdma() {
    let network = Network::calm();
    let [mut a, b] = pair(&network, UD, Default::default());
    a.post(Post::write(1, a.mr.local(0, 8), b.mr.remote(0, 8)).to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 3);
}

#[test]
fn the_two_transports_do_not_reach_each_other() {
    let network = Network::calm();
    let [mut a, mut b] = pair(&network, UD, [DeviceConfig::default(), DeviceConfig::default()]);
    let cq = b.cq;
    let mut srd = b.driver.qp(SRD, b.pd, &cq);
    let buffer = b.mr.local(0, 100);
    b.driver.post_receive(&mut srd, 1, &[buffer]);
    a.post(Post::inline(1, b"x").to(a.ah, &srd));
    network.settle();
    assert_eq!(a.only().status, 0);
    assert_eq!(b.drain(), []);
}
