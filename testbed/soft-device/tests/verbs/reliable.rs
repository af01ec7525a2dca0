//! Reliable connections: every operation, on both posting back ends, and what goes wrong with them.

use rdma_sys as c;
use soft_device::SoftDevice;

use crate::support::{
    self, Done, Options, Side, Work, on_both, pair, pattern, poll, reap, reap_all,
};

#[test]
fn a_write_arrives_whole_at_its_address() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (mut a, b) = pair(&device, options);
        a.memory[..3000].copy_from_slice(&pattern(3000, 1));
        let list = [a.segment(0, 1000), a.segment(1000, 1), a.segment(1001, 1999)];
        a.send(Work::new(5, c::IBV_WR_RDMA_WRITE, &list).to(&b, 77));
        let done = reap(&a, a.send_cq);
        assert_eq!((done.id, done.status, done.opcode), (5, 0, c::IBV_WC_RDMA_WRITE));
        assert_eq!(done.qpn, a.qpn());
        assert_eq!(b.memory[77..3077], pattern(3000, 1));
        assert_eq!(b.memory[3077], 0);
        assert_eq!(poll(&b, b.receive_cq), []);
        a.close();
        b.close();
        assert_eq!(device.leaks(), [""; 0]);
    });
}

#[test]
fn a_write_with_immediate_tells_the_peer_and_uses_a_receive_up() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (mut a, b) = pair(&device, options);
        a.memory[..64].copy_from_slice(&pattern(64, 2));
        assert_eq!(b.receive(&[(9, &[])]), (0, 1));
        let list = [a.segment(0, 64)];
        let work = Work::new(1, c::IBV_WR_RDMA_WRITE_WITH_IMM, &list).to(&b, 0);
        a.send(work.immediate(0xc0de));
        assert_eq!(reap(&a, a.send_cq).status, 0);
        let done = reap(&b, b.receive_cq);
        assert_eq!((done.id, done.opcode), (9, c::IBV_WC_RECV_RDMA_WITH_IMM));
        assert_eq!((done.immediate, done.length), (0xc0de, 64));
        assert_eq!(done.flags, c::IBV_WC_WITH_IMM);
        assert_eq!(b.memory[..64], pattern(64, 2));
    });
}

#[test]
fn a_send_fills_the_segments_of_a_receive_in_order() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (mut a, b) = pair(&device, options);
        a.memory[..100].copy_from_slice(&pattern(100, 3));
        let places = [b.segment(0, 30), b.segment(500, 0), b.segment(1000, 100)];
        assert_eq!(b.receive(&[(2, &places)]), (0, 1));
        a.send(Work::new(1, c::IBV_WR_SEND_WITH_IMM, &[a.segment(0, 100)]).immediate(7));
        let done = reap(&b, b.receive_cq);
        assert_eq!((done.id, done.opcode, done.length), (2, c::IBV_WC_RECV, 100));
        assert_eq!((done.immediate, done.flags), (7, c::IBV_WC_WITH_IMM));
        assert_eq!(b.memory[..30], pattern(100, 3)[..30]);
        assert_eq!(b.memory[1000..1070], pattern(100, 3)[30..]);
    });
}

#[test]
fn inline_data_is_copied_when_it_is_posted() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = (Side::new(&device, options), Side::new(&device, options));
        let mut bytes = pattern(40, 4);
        let part = |start: usize, length: u32| c::ibv_sge {
            addr: bytes.as_ptr().wrapping_add(start).expose_provenance() as u64,
            length,
            lkey: 0xffff_ffff,
        };
        let list = [part(0, 10), part(10, 30)];
        for (this, other) in [(&b, &a), (&a, &b)] {
            this.to_init();
            this.to_rtr(other);
            this.to_rts();
        }
        let flags = c::IBV_SEND_SIGNALED | c::IBV_SEND_INLINE;
        let work = Work::new(1, c::IBV_WR_SEND, &list).flags(flags);
        a.send(work);
        bytes.fill(0);
        assert_eq!(poll(&a, a.send_cq), []);
        assert_eq!(b.receive(&[(2, &[b.segment(0, 40)])]), (0, 1));
        assert_eq!(reap(&a, a.send_cq).status, 0);
        assert_eq!(b.memory[..40], pattern(40, 4));
    });
}

#[test]
fn a_read_brings_bytes_and_atomics_bring_the_old_value() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, mut b) = pair(&device, options);
        b.memory[..100].copy_from_slice(&pattern(100, 5));
        b.memory[1024..1032].copy_from_slice(&40u64.to_ne_bytes());
        a.send(Work::new(1, c::IBV_WR_RDMA_READ, &[a.segment(8, 100)]).to(&b, 0));
        let list = [a.segment(512, 8)];
        let add = Work::new(2, c::IBV_WR_ATOMIC_FETCH_AND_ADD, &list).to(&b, 1024);
        a.send(Work { compare_add: 2, ..add });
        let list = [a.segment(520, 8)];
        let swap = Work::new(3, c::IBV_WR_ATOMIC_CMP_AND_SWP, &list).to(&b, 1024);
        a.send(Work { compare_add: 42, swap: 99, ..swap });
        let list = [a.segment(528, 8)];
        let swap = Work::new(4, c::IBV_WR_ATOMIC_CMP_AND_SWP, &list).to(&b, 1024);
        a.send(Work { compare_add: 42, swap: 1, ..swap });
        let done = reap_all(&a, a.send_cq, 4);
        let opcodes: Vec<u32> = done.iter().map(|each| each.opcode).collect();
        assert_eq!(
            opcodes,
            [c::IBV_WC_RDMA_READ, c::IBV_WC_FETCH_ADD, c::IBV_WC_COMP_SWAP, c::IBV_WC_COMP_SWAP]
        );
        assert_eq!((done[0].length, done[1].length), (100, 8));
        assert_eq!(a.memory[8..108], pattern(100, 5));
        let word =
            |memory: &[u8], at: usize| u64::from_ne_bytes(memory[at..at + 8].try_into().unwrap());
        assert_eq!(
            [word(&a.memory, 512), word(&a.memory, 520), word(&a.memory, 528)],
            [40, 42, 99]
        );
        assert_eq!(word(&b.memory, 1024), 99);
    });
}

#[test]
fn only_signaled_work_completes_unless_all_does() {
    on_both(|options| {
        let device = SoftDevice::new();
        for signals_all in [false, true] {
            let (a, b) = pair(&device, Options { signals_all, ..options });
            let list = [a.segment(0, 8)];
            let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
            let batch = [write.flags(0), Work { id: 2, ..write.flags(0) }, Work { id: 3, ..write }];
            assert_eq!(a.post(&batch), (0, 3));
            let ids: Vec<u64> = poll(&a, a.send_cq).iter().map(|done| done.id).collect();
            assert_eq!(ids, if signals_all { vec![1, 2, 3] } else { vec![3] });
        }
    });
}

#[test]
fn a_full_send_queue_refuses_and_names_the_first_request_that_was_not_posted() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, options);
        let list = [a.segment(0, 8)];
        let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
        let batch = vec![write.flags(0); 7];
        assert_eq!(a.post(&batch), (0, 7));
        let expected = if a.extended { 0 } else { 1 };
        assert_eq!(a.post(&[write, write, write]), (libc::ENOMEM, expected));
        if a.extended {
            assert_eq!(a.post(&[write]), (0, 1));
        }
        // The completion of the signaled request frees it and all before it.
        assert_eq!(reap(&a, a.send_cq).id, 1);
        assert_eq!(a.post(&[write.flags(0); 8]), (0, 8));
        assert_eq!(b.receive(&vec![(0, [].as_slice()); 9]), (libc::ENOMEM, 8));
    });
}

/// Opcode, near segment, far address and far key of a request between two sides.
type Wrong = (c::ibv_wr_opcode, c::ibv_sge, u64, u32);

/// A far address and key that are wrong.
type WrongTarget = fn(&Side) -> (u64, u32);

/// What comes of one request that cannot work: its status, and the peer's completion if it has one.
fn failure(
    options: Options,
    work: impl Fn(&Side, &Side) -> Wrong,
    receive: Option<(u32, u32)>,
) -> (Done, Option<Done>, u32) {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, options);
    if let Some((length, lkey)) = receive {
        let lkey = if lkey == 0 { b.lkey() } else { lkey };
        let segment = c::ibv_sge { lkey, ..b.segment(0, length) };
        assert_eq!(b.receive(&[(8, &[segment])]), (0, 1));
    }
    let (opcode, segment, remote, rkey) = work(&a, &b);
    let list = [segment];
    a.send(Work { remote, rkey, ..Work::new(1, opcode, &list) });
    a.send(Work::new(2, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0).flags(0));
    let done = reap_all(&a, a.send_cq, 2);
    // Whatever follows a failure is flushed, signaled or not.
    assert_eq!((done[1].id, done[1].status), (2, c::IBV_WC_WR_FLUSH_ERR));
    assert_eq!(a.state(), c::IBV_QPS_ERR);
    assert_ne!(done[0].vendor_err, 0);
    (done[0], poll(&b, b.receive_cq).first().copied(), b.state())
}

#[test]
fn a_wrong_local_segment_is_a_protection_error_and_the_peer_does_not_notice() {
    on_both(|options| {
        let wrong: [fn(&Side) -> c::ibv_sge; 5] = [
            |a| c::ibv_sge { lkey: a.lkey() + 1, ..a.segment(0, 8) },
            |a| c::ibv_sge { lkey: a.rkey(), ..a.segment(0, 8) },
            |a| a.segment(4090, 8),
            |a| c::ibv_sge { addr: a.address() - 1, ..a.segment(0, 8) },
            |a| c::ibv_sge { lkey: 0, ..a.segment(0, 8) },
        ];
        for segment in wrong {
            let write =
                |a: &Side, b: &Side| (c::IBV_WR_RDMA_WRITE, segment(a), b.address(), b.rkey());
            let (done, _, peer) = failure(options, write, None);
            assert_eq!(done.status, c::IBV_WC_LOC_PROT_ERR);
            assert_eq!(peer, c::IBV_QPS_RTS);
        }
    });
}

#[test]
fn a_wrong_remote_key_or_range_is_a_remote_access_error() {
    on_both(|options| {
        let wrong: [WrongTarget; 4] = [
            |b| (b.address(), b.rkey() ^ 1),
            |b| (b.address(), b.lkey()),
            |b| (b.address() + 4090, b.rkey()),
            |b| (b.address() - 1, b.rkey()),
        ];
        for target in wrong {
            let write = |a: &Side, b: &Side| {
                let (remote, rkey) = target(b);
                (c::IBV_WR_RDMA_WRITE, a.segment(0, 8), remote, rkey)
            };
            let (done, _, peer) = failure(options, write, None);
            assert_eq!(done.status, c::IBV_WC_REM_ACCESS_ERR);
            assert_eq!(peer, c::IBV_QPS_ERR);
        }
    });
}

#[test]
fn access_that_a_region_does_not_grant_is_refused_on_its_side() {
    on_both(|options| {
        let options = Options { access: 0, ..options };
        let read =
            |a: &Side, b: &Side| (c::IBV_WR_RDMA_READ, a.segment(0, 8), b.address(), b.rkey());
        assert_eq!(failure(options, read, None).0.status, c::IBV_WC_LOC_PROT_ERR);
        let write =
            |a: &Side, b: &Side| (c::IBV_WR_RDMA_WRITE, a.segment(0, 8), b.address(), b.rkey());
        assert_eq!(failure(options, write, None).0.status, c::IBV_WC_REM_ACCESS_ERR);
    });
}

#[test]
fn a_receive_that_is_too_short_fails_on_both_sides() {
    on_both(|options| {
        let send = |a: &Side, _: &Side| (c::IBV_WR_SEND, a.segment(0, 9), 0, 0);
        let (done, peer, state) = failure(options, send, Some((8, 0)));
        assert_eq!(done.status, c::IBV_WC_REM_INV_REQ_ERR);
        let peer = peer.unwrap();
        assert_eq!((peer.id, peer.status), (8, c::IBV_WC_LOC_LEN_ERR));
        assert_eq!(state, c::IBV_QPS_ERR);
    });
}

#[test]
fn a_receive_into_memory_that_is_not_open_fails_on_both_sides() {
    on_both(|options| {
        let send = |a: &Side, _: &Side| (c::IBV_WR_SEND, a.segment(0, 8), 0, 0);
        let (done, peer, _) = failure(options, send, Some((8, 0xffff_ff00)));
        assert_eq!(done.status, c::IBV_WC_REM_OP_ERR);
        assert_eq!(peer.unwrap().status, c::IBV_WC_LOC_PROT_ERR);
    });
}

#[test]
fn an_atomic_at_an_odd_address_is_an_invalid_request() {
    on_both(|options| {
        let add = |a: &Side, b: &Side| {
            (c::IBV_WR_ATOMIC_FETCH_AND_ADD, a.segment(0, 8), b.address() + 4, b.rkey())
        };
        assert_eq!(failure(options, add, None).0.status, c::IBV_WC_REM_INV_REQ_ERR);
    });
}

#[test]
fn a_sender_waits_for_a_receive_for_as_long_as_it_was_told() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = (Side::new(&device, options), Side::new(&device, options));
        for (this, other, rnr_retry) in [(&a, &b, 1), (&b, &a, 7)] {
            this.to_init();
            this.to_rtr(other);
            let (attr, mask) = support::rts_attr();
            assert_eq!(this.modify(&c::ibv_qp_attr { rnr_retry, ..attr }, mask), 0);
        }
        b.send(Work::new(1, c::IBV_WR_SEND, &[b.segment(0, 8)]));
        assert_eq!(poll(&b, b.send_cq), []);
        assert_eq!(a.receive(&[(1, &[a.segment(0, 8)])]), (0, 1));
        assert_eq!(reap(&b, b.send_cq).status, 0);
        a.send(Work::new(2, c::IBV_WR_SEND, &[a.segment(0, 8)]));
        assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_RNR_RETRY_EXC_ERR);
    });
}

#[test]
fn a_peer_that_is_gone_or_reset_exhausts_the_retries() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, options);
        assert_eq!(b.set_state(c::IBV_QPS_RESET), 0);
        a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
        assert_eq!(poll(&a, a.send_cq), []);
        assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_RETRY_EXC_ERR);

        let (a, b) = pair(&device, options);
        let list = [a.segment(0, 8)];
        let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
        b.close();
        a.send(write);
        assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_RETRY_EXC_ERR);
    });
}

#[test]
fn the_error_state_flushes_what_is_posted_before_and_after() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, options);
        assert_eq!(a.receive(&[(1, &[]), (2, &[])]), (0, 2));
        a.send(Work::new(3, c::IBV_WR_SEND, &[a.segment(0, 8)]).flags(0));
        assert_eq!(a.set_state(c::IBV_QPS_ERR), 0);
        a.send(Work::new(4, c::IBV_WR_SEND, &[a.segment(0, 8)]).flags(0));
        assert_eq!(a.receive(&[(5, &[])]), (0, 1));
        let flushed = |done: Vec<Done>| -> Vec<(u64, u32)> {
            done.iter().map(|each| (each.id, each.status)).collect()
        };
        let flush = c::IBV_WC_WR_FLUSH_ERR;
        assert_eq!(flushed(poll(&a, a.send_cq)), [(3, flush), (4, flush)]);
        assert_eq!(flushed(poll(&a, a.receive_cq)), [(1, flush), (2, flush), (5, flush)]);
        drop(b);
    });
}

#[test]
fn a_pair_that_is_reset_can_be_connected_again() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, options);
        a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
        for side in [&a, &b] {
            assert_eq!(side.set_state(c::IBV_QPS_RESET), 0);
        }
        // Nothing of the first connection is left.
        assert_eq!(poll(&a, a.send_cq), []);
        support::connect(&a, &b);
        a.send(Work::new(2, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
        assert_eq!(reap(&a, a.send_cq).id, 2);
    });
}

#[test]
fn packet_numbers_that_do_not_match_are_not_answered() {
    let device = SoftDevice::new();
    let options = Options::default();
    let (a, b) = (Side::new(&device, options), Side::new(&device, options));
    for (this, other) in [(&a, &b), (&b, &a)] {
        this.to_init();
        this.to_rtr(other);
    }
    let (attr, mask) = support::rts_attr();
    assert_eq!(a.modify(&c::ibv_qp_attr { sq_psn: 8, ..attr }, mask), 0);
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn devices_of_one_process_reach_each_other_unless_a_port_is_down() {
    let (one, two) = (SoftDevice::new(), SoftDevice::new());
    let options = Options::default();
    let (mut a, b) = (Side::new(&one, options), Side::new(&two, options));
    support::connect(&a, &b);
    a.memory[..8].copy_from_slice(b"over the");
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, 0);
    assert_eq!(&b.memory[..8], b"over the");
    two.set_port_active(1, false);
    a.send(Work::new(2, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_RETRY_EXC_ERR);
}
