//! Unreliable datagrams and unreliable connections.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of a test"
)]

use rdma_sys as c;
use soft_device::{GidEntry, SoftDevice};

use crate::support::{
    Done, Options, Side, Work, call, errno, gid, init_attr, on_both, pattern, poll, reap,
};

const KEY: u32 = 0x1111_1111;

fn options(extended: bool) -> Options {
    Options { extended, kind: c::IBV_QPT_UD, ..Options::default() }
}

/// A datagram pair that is ready to send.
fn side(device: &SoftDevice, options: Options) -> Side {
    let side = Side::new(device, options);
    let steps = [
        (
            c::ibv_qp_attr {
                qp_state: c::IBV_QPS_INIT,
                port_num: 1,
                qkey: KEY,
                ..Default::default()
            },
            c::IBV_QP_STATE | c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT | c::IBV_QP_QKEY,
        ),
        (c::ibv_qp_attr { qp_state: c::IBV_QPS_RTR, ..Default::default() }, c::IBV_QP_STATE),
        (
            c::ibv_qp_attr { qp_state: c::IBV_QPS_RTS, sq_psn: 3, ..Default::default() },
            c::IBV_QP_STATE | c::IBV_QP_SQ_PSN,
        ),
    ];
    for (attr, mask) in steps {
        assert_eq!(side.modify(&attr, mask), 0);
    }
    side
}

fn handle_of(side: &Side, index: u8, dgid: c::ibv_gid) -> *mut c::ibv_ah {
    let grh = c::ibv_global_route {
        dgid,
        sgid_index: index,
        hop_limit: 9,
        traffic_class: 5,
        ..Default::default()
    };
    let mut attr = c::ibv_ah_attr { grh, is_global: 1, port_num: 1, sl: 3, ..Default::default() };
    let ah = unsafe { call!(ibv_create_ah(side.pd, &raw mut attr)) };
    assert!(!ah.is_null(), "errno {}", errno());
    ah
}

#[test]
fn a_datagram_arrives_behind_forty_bytes_and_can_be_answered() {
    on_both(|both| {
        let device = SoftDevice::new();
        let (mut a, b) =
            (side(&device, options(both.extended)), side(&device, options(both.extended)));
        a.memory[..100].copy_from_slice(&pattern(100, 1));
        assert_eq!(b.receive(&[(8, &[b.segment(0, 200)])]), (0, 1));
        let ah = handle_of(&a, 1, gid(b.context, 1));
        let list = [a.segment(0, 100)];
        let send = Work::new(1, c::IBV_WR_SEND_WITH_IMM, &list).immediate(77);
        a.send(send.datagram(ah, b.qpn(), KEY));
        assert_eq!(reap(&a, a.send_cq).status, 0);
        let done = reap(&b, b.receive_cq);
        assert_eq!((done.id, done.length, done.immediate), (8, 140, 77));
        assert_eq!(done.flags, c::IBV_WC_GRH | c::IBV_WC_WITH_IMM);
        assert_eq!(done.src_qp, a.qpn());
        assert_eq!(b.memory[40..140], pattern(100, 1));
        // Between IPv4 addresses, the second half is an IPv4 header.
        assert_eq!(b.memory[20] >> 4, 4);
        assert_eq!(&b.memory[32..36], &unsafe { gid(a.context, 1).raw }[12..]);

        let mut wc = c::ibv_wc { wc_flags: done.flags, ..Default::default() };
        let grh = b.memory.as_ptr().cast_mut().cast();
        let back = unsafe { call!(ibv_create_ah_from_wc(b.pd, &raw mut wc, grh, 1)) };
        assert!(!back.is_null());
        assert_eq!(a.receive(&[(9, &[a.segment(0, 200)])]), (0, 1));
        b.send(Work::new(2, c::IBV_WR_SEND, &[]).datagram(back, done.src_qp, KEY));
        assert_eq!(reap(&a, a.receive_cq).length, 40);
        assert_eq!(unsafe { call!(ibv_destroy_ah(back)) }, 0);
        assert_eq!(unsafe { call!(ibv_dealloc_pd(a.pd)) }, libc::EBUSY);
        assert_eq!(unsafe { call!(ibv_destroy_ah(ah)) }, 0);
        a.close();
        b.close();
        assert_eq!(device.leaks(), [""; 0]);
    });
}

#[test]
fn a_datagram_that_nobody_wants_is_lost_and_its_sender_does_not_know() {
    let device = SoftDevice::new();
    let (a, b) = (side(&device, options(false)), side(&device, options(false)));
    let ah = handle_of(&a, 1, gid(b.context, 1));
    let nowhere = handle_of(&a, 1, c::ibv_gid { raw: [3; 16] });
    let list = [a.segment(0, 8)];
    let send = Work::new(1, c::IBV_WR_SEND, &list).datagram(ah, b.qpn(), KEY);
    let ends_well = |work: Work<'_>| {
        a.send(work);
        assert_eq!(reap(&a, a.send_cq).status, 0);
    };
    ends_well(send);
    assert_eq!(b.receive(&[(1, &[b.segment(0, 48)])]), (0, 1));
    ends_well(Work { qkey: 1, ..send });
    ends_well(Work { qpn: 5, ..send });
    ends_well(Work { ah: nowhere, ..send });
    assert_eq!(poll(&b, b.receive_cq), []);
    // A key with its highest bit set stands for the own one.
    ends_well(Work { qkey: 1 << 31, ..send });
    assert_eq!(reap(&b, b.receive_cq).length, 48);
    // A receive that is too short breaks the receiver.
    assert_eq!(b.receive(&[(2, &[b.segment(0, 47)])]), (0, 1));
    ends_well(send);
    assert_eq!(reap(&b, b.receive_cq).status, c::IBV_WC_LOC_LEN_ERR);
    assert_eq!((a.state(), b.state()), (c::IBV_QPS_RTS, c::IBV_QPS_ERR));
}

#[test]
fn a_datagram_over_the_mtu_stops_the_sending_half_only() {
    let device = SoftDevice::builder().mtu(c::IBV_MTU_256).build();
    let a = side(&device, options(false));
    let ah = handle_of(&a, 1, gid(a.context, 1));
    let list = [a.segment(0, 257)];
    a.send(Work::new(1, c::IBV_WR_SEND, &list).datagram(ah, a.qpn(), KEY));
    assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_LOC_LEN_ERR);
    assert_eq!(a.state(), c::IBV_QPS_SQE);
    assert_eq!(a.receive(&[(1, &[])]), (0, 1));
    assert_eq!(a.set_state(c::IBV_QPS_RTS), 0);
    let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).datagram(ah, a.qpn(), KEY);
    assert_eq!(a.post(&[write]), (libc::EINVAL, 0));
    assert_eq!(a.post(&[Work::new(1, c::IBV_WR_SEND, &list)]), (libc::EINVAL, 0));
}

#[test]
fn a_multicast_message_comes_to_every_member() {
    on_both(|both| {
        let device = SoftDevice::new();
        let make = || side(&device, options(both.extended));
        let (a, b, outsider) = (make(), make(), make());
        let mut group = c::ibv_gid { raw: [0xff; 16] };
        for member in [&a, &b] {
            assert_eq!(unsafe { call!(ibv_attach_mcast(member.qp, &raw const group, 0)) }, 0);
        }
        for each in [&a, &b, &outsider] {
            assert_eq!(each.receive(&[(1, &[each.segment(0, 64)])]), (0, 1));
        }
        let ah = handle_of(&a, 1, group);
        a.send(Work::new(1, c::IBV_WR_SEND, &[a.segment(100, 8)]).datagram(ah, 0xff_ffff, KEY));
        assert_eq!(reap(&a, a.receive_cq).src_qp, a.qpn());
        assert_eq!(reap(&b, b.receive_cq).src_qp, a.qpn());
        assert_eq!(poll(&outsider, outsider.receive_cq), []);
        assert_eq!(unsafe { call!(ibv_destroy_qp(b.qp)) }, libc::EBUSY);
        assert_eq!(unsafe { call!(ibv_detach_mcast(b.qp, &raw const group, 0)) }, 0);
        assert_eq!(unsafe { call!(ibv_detach_mcast(b.qp, &raw const group, 0)) }, libc::EINVAL);
        group = c::ibv_gid { raw: [0xfe; 16] };
        assert_eq!(unsafe { call!(ibv_attach_mcast(b.qp, &raw const group, 0)) }, libc::EINVAL);
        b.close();
    });
}

#[test]
fn between_ipv6_addresses_the_forty_bytes_are_a_grh() {
    let entry = |last: u8| {
        let mut gid = [0xfd; 16];
        gid[15] = last;
        vec![GidEntry { gid, kind: c::IBV_GID_TYPE_ROCE_V2 }]
    };
    let (one, two) = (
        SoftDevice::builder().gids(entry(1)).build(),
        SoftDevice::builder().gids(entry(2)).build(),
    );
    let (a, b) = (side(&one, options(false)), side(&two, options(false)));
    assert_eq!(b.receive(&[(1, &[b.segment(0, 64)])]), (0, 1));
    let ah = handle_of(&a, 0, gid(b.context, 0));
    a.send(Work::new(1, c::IBV_WR_SEND, &[]).datagram(ah, b.qpn(), KEY));
    assert_eq!(reap(&b, b.receive_cq).status, 0);
    assert_eq!((b.memory[0] >> 4, b.memory[7]), (6, 9));
    assert_eq!(b.memory[8..24], entry(1)[0].gid);
    assert_eq!(b.memory[24..40], entry(2)[0].gid);
}

/// Two sides of an unreliable connection.
fn unreliable(device: &SoftDevice, extended: bool) -> (Side, Side) {
    let options = Options { extended, kind: c::IBV_QPT_UC, ..Options::default() };
    let (a, b) = (Side::new(device, options), Side::new(device, options));
    for (this, other) in [(&a, &b), (&b, &a)] {
        let (attr, mask) = init_attr();
        assert_eq!(this.modify(&attr, mask), 0);
        let (attr, mask) = crate::support::rtr_attr(other);
        let reliable = c::IBV_QP_MAX_DEST_RD_ATOMIC | c::IBV_QP_MIN_RNR_TIMER;
        assert_eq!(this.modify(&attr, mask), libc::EINVAL);
        assert_eq!(this.modify(&attr, mask & !reliable), 0);
        let attr = c::ibv_qp_attr { qp_state: c::IBV_QPS_RTS, ..Default::default() };
        assert_eq!(this.modify(&attr, c::IBV_QP_STATE | c::IBV_QP_SQ_PSN), 0);
    }
    (a, b)
}

#[test]
fn an_unreliable_connection_delivers_or_loses_without_a_word() {
    on_both(|both| {
        let device = SoftDevice::new();
        let (mut a, b) = unreliable(&device, both.extended);
        a.memory[..8].copy_from_slice(b"unsecure");
        let list = [a.segment(0, 8)];
        let good = |done: Done| assert_eq!(done.status, 0);
        a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 16));
        good(reap(&a, a.send_cq));
        assert_eq!(&b.memory[16..24], b"unsecure");
        // No receive, a wrong key: both are lost.
        a.send(Work::new(2, c::IBV_WR_SEND, &list));
        good(reap(&a, a.send_cq));
        a.send(Work { rkey: 1, ..Work::new(3, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0) });
        good(reap(&a, a.send_cq));
        assert_eq!(b.state(), c::IBV_QPS_RTS);
        if !both.extended {
            let read = Work::new(4, c::IBV_WR_RDMA_READ, &list).to(&b, 0);
            assert_eq!(a.post(&[read]), (libc::EINVAL, 0));
        }
        assert_eq!(b.receive(&[(5, &[b.segment(0, 8)])]), (0, 1));
        a.send(Work::new(5, c::IBV_WR_SEND, &list));
        assert_eq!(reap(&b, b.receive_cq).id, 5);
        assert_eq!(&b.memory[..8], b"unsecure");
        // A failure on the own side stops the sending half.
        let wrong = [c::ibv_sge { lkey: 1, ..a.segment(0, 8) }];
        a.send(Work::new(6, c::IBV_WR_SEND, &wrong));
        let failed = crate::support::reap_all(&a, a.send_cq, 2);
        assert_eq!(failed[1].status, c::IBV_WC_LOC_PROT_ERR);
        assert_eq!(a.state(), c::IBV_QPS_SQE);
    });
}
