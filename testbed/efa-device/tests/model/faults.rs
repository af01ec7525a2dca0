use std::time::Duration;

use efa_device::{DeviceConfig, FabricConfig};

use crate::driver::{Network, Post, SRD, pair, srd_pair};

#[test]
fn a_sender_without_retries_fails_at_a_receiver_that_stays_unready() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let qp = a.qp;
    a.driver.set_rnr_retry(&qp, 0);
    a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 10);
    // Nor does a write with immediate write anything.
    a.fill(0, b"data");
    a.post(Post::write(2, a.mr.local(0, 4), b.mr.remote(0, 4)).immediate(1).to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 10);
    assert_eq!(b.bytes(0, 4), [0; 4]);
    assert_eq!(b.drain(), []);
}

#[test]
fn the_default_retries_for_ever_and_a_count_is_kept() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
    network.advance(Duration::from_secs(1));
    network.settle();
    assert_eq!(a.drain(), []);
    b.post_receive(1, 0, 64);
    network.settle();
    assert_eq!((a.only().status, b.only().status), (0, 0));

    let qp = a.qp;
    a.driver.set_rnr_retry(&qp, 3);
    a.post(Post::inline(2, b"x").to(a.ah, &b.qp));
    network.advance(Duration::ZERO);
    for _ in 0..3 {
        assert_eq!(a.drain(), []);
        network.advance(Duration::from_millis(1));
    }
    assert_eq!(a.only().status, 10);
}

#[test]
fn receivers_that_pretend_not_to_be_ready_lose_nothing() {
    let network = Network::new(FabricConfig { not_ready_every: Some(2), ..Default::default() });
    let [mut a, mut b] = srd_pair(&network);
    for id in 0..10 {
        b.post_receive(id, 0, 64);
        a.post(Post::inline(id, b"x").to(a.ah, &b.qp));
    }
    network.settle();
    assert!(a.drain().iter().all(|done| done.status == 0));
    assert_eq!(b.drain().len(), 10);
}

#[test]
fn a_peer_that_never_answered_is_unreachable_and_one_that_did_is_unresponsive() {
    let network = Network::calm();
    let lossy = DeviceConfig { lost_after: Some(1), ..DeviceConfig::default() };
    let [mut a, mut b] = pair(&network, SRD, [DeviceConfig::default(), lossy]);
    let nobody = a.driver.ah(a.pd, [9; 16]);
    let started = Post::inline(1, b"x").to(nobody, &b.qp);
    a.post(started);
    network.advance(Duration::from_millis(499));
    assert_eq!(a.drain(), []);
    network.advance(Duration::from_millis(1));
    assert_eq!(a.only().status, 15);
    b.post_receive(1, 0, 64);
    a.post(Post::inline(2, b"x").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 0);
    a.post(Post::inline(3, b"x").to(a.ah, &b.qp));
    network.advance(Duration::ZERO);
    network.advance(Duration::from_secs(1));
    assert_eq!(a.only().status, 13);
    // It can still talk to its driver, but its own messages get nowhere.
    let state = b.driver.state(&b.qp.clone());
    assert_eq!(state, 3);
    b.drain();
    b.post(Post::inline(4, b"x").to(b.ah, &a.qp));
    network.advance(Duration::ZERO);
    network.advance(Duration::from_secs(1));
    assert_eq!(b.only().status, 15);
}

#[test]
fn a_device_that_dies_answers_nothing_until_its_function_is_reset() {
    let network = Network::calm();
    let mortal = DeviceConfig { dies_after: Some(2), ..DeviceConfig::default() };
    let [mut a, mut b] = pair(&network, SRD, [DeviceConfig::default(), mortal]);
    for id in 0..3 {
        b.post_receive(id, 0, 64);
    }
    for id in 0..3 {
        a.post(Post::inline(id, b"x").to(a.ah, &b.qp));
    }
    network.advance(Duration::ZERO);
    network.advance(Duration::from_secs(1));
    let statuses: Vec<u8> = a.drain().iter().map(|done| done.status).collect();
    assert_eq!(statuses, [0, 0, 13]);
    assert_eq!(b.driver.read_register(0x58), None);
    b.driver.submit(14, 0, &[]);
    assert_eq!(b.driver.response(), None);
    b.driver.reset_function();
    b.driver.probe();
    b.driver.pd();
}

#[test]
fn a_device_that_is_unplugged_is_unresponsive_to_its_peers() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    b.post_receive(1, 0, 64);
    a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 0);
    b.driver.reset_function();
    a.post(Post::inline(2, b"x").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 9, "a device without queue pairs");
}

#[test]
fn loopback_can_be_dropped_as_on_some_real_fleets() {
    let network = Network::new(FabricConfig { loopback: false, ..FabricConfig::default() });
    let [mut a, _] = srd_pair(&network);
    let gid = a.driver.gid;
    let myself = a.driver.ah(a.pd, gid);
    let qp = a.qp;
    a.post_receive(1, 0, 64);
    a.post(Post::inline(1, b"x").to(myself, &qp));
    network.advance(Duration::from_millis(1));
    network.advance(Duration::from_secs(1));
    assert_eq!(a.only().status, 15);
}
