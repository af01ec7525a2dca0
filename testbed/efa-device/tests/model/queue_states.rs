use crate::driver::{Network, Payload, Post, srd_pair, u32_at};

const RESET: u32 = 0;
const ERROR: u32 = 6;

#[test]
fn only_the_transitions_of_verbs_are_taken() {
    let network = Network::calm();
    let [mut a, _] = srd_pair(&network);
    let cq = a.cq;
    let legal: [(u32, &[u32]); 7] = [
        (0, &[0, 1, 6]),
        (1, &[0, 1, 2, 6]),
        (2, &[0, 3, 6]),
        (3, &[0, 3, 4, 6]),
        (4, &[0, 3, 4, 6]),
        (5, &[]),
        (6, &[0, 6]),
    ];
    let path = [&[][..], &[1], &[1, 2], &[1, 2, 3], &[1, 2, 3, 4], &[], &[6]];
    for (from, allowed) in legal.into_iter().filter(|(_, allowed)| !allowed.is_empty()) {
        for to in 0..=8 {
            let payload = a.driver.qp_payload(crate::driver::SRD, a.pd, &cq);
            let qp = a.driver.qp_from(&payload).expect("a queue pair");
            for &state in path[usize::try_from(from).unwrap()] {
                a.driver.modify(&qp, 1, state, 0).expect("a legal step");
            }
            let taken = a.driver.modify(&qp, 1, to, 0).is_ok();
            assert_eq!(taken, allowed.contains(&to), "{from} to {to}");
            assert_eq!(a.driver.state(&qp), if taken { to } else { from });
            a.driver.destroy(&qp);
        }
    }
}

#[test]
fn a_query_returns_what_was_set() {
    let network = Network::calm();
    let [mut a, _] = srd_pair(&network);
    let qp = a.qp;
    a.driver.set_rnr_retry(&qp, 3);
    let payload = Payload::default().u32(0, 8).u32(4, qp.handle).u32(20, 7).u8(25, 0);
    a.driver.command(2, &payload).expect("a sequence number");
    let query = Payload::default().u32(0, qp.handle);
    let answer = a.driver.command(3, &query).expect("a queue pair");
    assert_eq!(u32_at(&answer, 0), 3);
    assert_eq!(u32_at(&answer, 4), crate::driver::QKEY);
    assert_eq!(u32_at(&answer, 8), 7);
    assert_eq!(answer[13], 3);
}

#[test]
fn the_error_state_flushes_sends_and_receives_and_what_is_posted_later() {
    let network = Network::calm();
    let [mut a, b] = srd_pair(&network);
    let qp = a.qp;
    for id in 0..3 {
        a.post_receive(100 + id, 0, 64);
    }
    // No receive is posted at the other side: both sends wait for one.
    a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
    a.post(Post::inline(2, b"x").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.drain(), []);
    a.driver.modify(&qp, 1, ERROR, 0).expect("ERR");
    let flushed = a.drain();
    assert!(flushed.iter().all(|completion| completion.status == 1));
    let ids: Vec<u16> = flushed.iter().map(|completion| completion.id).collect();
    assert_eq!(ids, [1, 2, 100, 101, 102]);
    assert!(flushed[2..].iter().all(crate::driver::Completion::is_receive));
    a.post(Post::inline(3, b"x").to(a.ah, &b.qp));
    a.post_receive(103, 0, 64);
    let flushed = a.drain();
    assert_eq!(
        flushed.iter().map(|done| (done.id, done.status)).collect::<Vec<_>>(),
        [(3, 1), (103, 1)]
    );
    network.settle();
    assert_eq!(a.drain(), [], "nothing completes twice");
}

#[test]
fn a_queue_pair_in_error_receives_nothing() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let qp = b.qp;
    b.driver.modify(&qp, 1, ERROR, 0).expect("ERR");
    a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 9);
}

#[test]
fn reset_forgets_what_was_posted_without_a_completion() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    a.post_receive(100, 0, 64);
    a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
    network.settle();
    let mut qp = a.qp;
    a.driver.modify(&qp, 1, RESET, 0).expect("RESET");
    network.settle();
    assert_eq!(a.drain(), []);
    // Queue indices begin at 0 again.
    (qp.sent, qp.received) = (0, 0);
    a.driver.connect(&qp);
    a.qp = qp;
    b.post_receive(1, 0, 64);
    a.post(Post::inline(2, b"y").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().id, 2);
    assert_eq!(b.bytes(0, 1), b"y");
}

#[test]
fn sends_wait_until_the_queue_pair_may_send() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    let qp = a.qp;
    a.driver.modify(&qp, 1, 4, 0).expect("SQD");
    b.post_receive(1, 0, 64);
    a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.drain(), []);
    a.driver.modify(&qp, 1, 3, 0).expect("RTS");
    network.settle();
    assert_eq!(a.only().status, 0);
}

#[test]
fn destroying_a_queue_pair_flushes_unless_configured_otherwise() {
    for flush_on_destroy in [true, false] {
        let network = Network::new(efa_device::FabricConfig {
            reorder: false,
            flush_on_destroy,
            ..Default::default()
        });
        let [mut a, b] = srd_pair(&network);
        a.post_receive(100, 0, 64);
        a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
        let qp = a.qp;
        a.driver.destroy(&qp);
        network.settle();
        let statuses: Vec<u8> = a.drain().iter().map(|done| done.status).collect();
        assert_eq!(statuses, if flush_on_destroy { vec![1, 1] } else { vec![] });
    }
}
