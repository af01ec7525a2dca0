//! Shared receive queues and XRC.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of a test"
)]
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "raw verbs in tests")]

use std::{ffi::c_int, ptr};

use rdma_sys as c;
use soft_device::SoftDevice;

use crate::support::{
    self, Options, Side, Work, call, connect, errno, init_attr, on_both, open, poll, reap,
    rtr_attr, rts_attr,
};

fn shared(pd: *mut c::ibv_pd) -> *mut c::ibv_srq {
    let attr = c::ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let mut init = c::ibv_srq_init_attr { attr, ..Default::default() };
    let srq = unsafe { call!(ibv_create_srq(pd, &raw mut init)) };
    assert!(!srq.is_null(), "errno {}", errno());
    srq
}

fn post(srq: *mut c::ibv_srq, wr_id: u64, mut segment: c::ibv_sge) -> c_int {
    let sg_list = &raw mut segment;
    let mut wr = c::ibv_recv_wr { wr_id, sg_list, num_sge: 1, ..Default::default() };
    let mut bad = ptr::null_mut();
    let code = unsafe { c::ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad) };
    assert_eq!(bad.is_null(), code == 0);
    code
}

/// A side whose pair is made again with a shared receive queue.
fn with_shared(device: &SoftDevice, options: Options) -> (Side, *mut c::ibv_srq) {
    let mut side = Side::new(device, options);
    let srq = shared(side.pd);
    unsafe {
        assert_eq!(call!(ibv_destroy_qp(side.qp)), 0);
    }
    let options = Options { srq, ..options };
    side.qp = support::create_pair(side.context, side.pd, side.send_cq, side.receive_cq, options);
    assert!(!side.qp.is_null());
    (side, srq)
}

#[test]
fn pairs_take_receives_from_a_shared_queue_in_order() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (b, srq) = with_shared(&device, options);
        let a = Side::new(&device, options);
        connect(&a, &b);
        assert_eq!(b.receive(&[(1, &[])]), (libc::EINVAL, 0));
        for wr_id in 0..4 {
            assert_eq!(post(srq, wr_id, b.segment(0, 8)), 0);
        }
        assert_eq!(post(srq, 4, b.segment(0, 8)), libc::ENOMEM);
        a.send(Work::new(1, c::IBV_WR_SEND, &[a.segment(0, 8)]));
        let done = reap(&b, b.receive_cq);
        assert_eq!((done.id, done.qpn), (0, b.qpn()));
        // The completion freed its place.
        assert_eq!(post(srq, 4, b.segment(0, 8)), 0);
        assert_eq!(unsafe { call!(ibv_destroy_srq(srq)) }, libc::EBUSY);
        // What is posted to a shared queue is not flushed with a pair.
        assert_eq!(b.set_state(c::IBV_QPS_ERR), 0);
        assert_eq!(poll(&b, b.receive_cq), []);
        let mut event = c::ibv_async_event::default();
        assert_eq!(unsafe { call!(ibv_get_async_event(b.context, &raw mut event)) }, 0);
        assert_eq!(event.event_type, c::IBV_EVENT_QP_LAST_WQE_REACHED);
        unsafe { call!(ibv_ack_async_event(&raw mut event)) };
        assert_eq!(unsafe { call!(ibv_destroy_qp(b.qp)) }, 0);
        assert_eq!(unsafe { call!(ibv_destroy_srq(srq)) }, 0);
    });
}

#[test]
fn the_limit_of_a_shared_queue_raises_one_event() {
    let device = SoftDevice::new();
    let (b, srq) = with_shared(&device, Options::default());
    let a = Side::new(&device, Options::default());
    connect(&a, &b);
    for wr_id in 0..3 {
        assert_eq!(post(srq, wr_id, b.segment(0, 8)), 0);
    }
    let mut attr = c::ibv_srq_attr { srq_limit: 2, ..Default::default() };
    let limit = c_int::try_from(c::IBV_SRQ_LIMIT).unwrap();
    let modify = |attr: &mut c::ibv_srq_attr| unsafe {
        call!(ibv_modify_srq(srq, ptr::from_mut(attr), limit))
    };
    assert_eq!(modify(&mut attr), 0);
    let query = || {
        let mut attr = c::ibv_srq_attr::default();
        assert_eq!(unsafe { call!(ibv_query_srq(srq, &raw mut attr)) }, 0);
        attr
    };
    assert_eq!((query().srq_limit, query().max_wr), (2, 4));
    for _ in 0..3 {
        a.send(Work::new(1, c::IBV_WR_SEND, &[a.segment(0, 8)]));
    }
    let mut event = c::ibv_async_event::default();
    assert_eq!(unsafe { call!(ibv_get_async_event(b.context, &raw mut event)) }, 0);
    assert_eq!(event.event_type, c::IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_eq!(unsafe { event.element.srq }, srq);
    assert_eq!(query().srq_limit, 0);
    unsafe {
        assert_eq!(call!(ibv_destroy_qp(b.qp)), 0);
    }
    assert_eq!(unsafe { call!(ibv_destroy_srq(srq)) }, libc::EBUSY);
    unsafe { call!(ibv_ack_async_event(&raw mut event)) };
    assert_eq!(unsafe { call!(ibv_destroy_srq(srq)) }, 0);
    assert_eq!(modify_limit_error(&device), libc::EINVAL);
}

/// The errno of a limit over the capacity.
fn modify_limit_error(device: &SoftDevice) -> c_int {
    let side = Side::new(device, Options::default());
    let srq = shared(side.pd);
    let mut attr = c::ibv_srq_attr { srq_limit: 5, ..Default::default() };
    let limit = c_int::try_from(c::IBV_SRQ_LIMIT).unwrap();
    unsafe { call!(ibv_modify_srq(srq, &raw mut attr, limit)) }
}

#[test]
fn an_xrc_message_names_the_queue_that_receives_it() {
    let device = SoftDevice::new();
    let mut a = Side::new(&device, Options::default());
    let context = open(&device);
    let (pd, queue) = unsafe {
        (
            call!(ibv_alloc_pd(context)),
            call!(ibv_create_cq(context, 8, ptr::null_mut(), ptr::null_mut(), 0)),
        )
    };
    let mut domain = c::ibv_xrcd_init_attr {
        comp_mask: c::IBV_XRCD_INIT_ATTR_FD | c::IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    let xrcd = unsafe { c::ibv_open_xrcd(context, &raw mut domain) }.unwrap();
    let mut init = c::ibv_srq_init_attr_ex {
        attr: c::ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
        comp_mask: c::IBV_SRQ_INIT_ATTR_TYPE
            | c::IBV_SRQ_INIT_ATTR_PD
            | c::IBV_SRQ_INIT_ATTR_XRCD
            | c::IBV_SRQ_INIT_ATTR_CQ,
        srq_type: c::IBV_SRQT_XRC,
        pd,
        xrcd,
        cq: queue,
        ..Default::default()
    };
    let srq = unsafe { c::ibv_create_srq_ex(context, &raw mut init) }.unwrap();
    assert!(!srq.is_null());
    let mut number = 0;
    assert_eq!(unsafe { c::ibv_get_srq_num(srq, &raw mut number) }, Some(0));
    let mut target = c::ibv_qp_init_attr_ex {
        qp_type: c::IBV_QPT_XRC_RECV,
        comp_mask: c::IBV_QP_INIT_ATTR_XRCD,
        xrcd,
        ..Default::default()
    };
    let target = unsafe { c::ibv_create_qp_ex(context, &raw mut target) }.unwrap();
    let mut source = c::ibv_qp_init_attr {
        qp_type: c::IBV_QPT_XRC_SEND,
        send_cq: a.send_cq,
        cap: c::ibv_qp_cap { max_send_wr: 4, max_send_sge: 1, ..Default::default() },
        ..Default::default()
    };
    let source = unsafe { call!(ibv_create_qp(a.pd, &raw mut source)) };
    assert!(!target.is_null() && !source.is_null());
    unsafe {
        assert_eq!(call!(ibv_destroy_qp(a.qp)), 0);
    }
    a.qp = source;
    let (init, init_mask) = init_attr();
    let (ready, ready_mask) = rtr_attr(&a);
    let (running, running_mask) = rts_attr();
    let number_of = |qp: *mut c::ibv_qp| unsafe { (*qp).qp_num };
    let modify = |qp, mut attr: c::ibv_qp_attr, mask: u32| unsafe {
        call!(ibv_modify_qp(qp, &raw mut attr, c_int::try_from(mask).unwrap()))
    };
    let answers = c::IBV_QP_MAX_DEST_RD_ATOMIC | c::IBV_QP_MIN_RNR_TIMER;
    for (qp, peer, mask) in [(source, target, ready_mask & !answers), (target, source, ready_mask)]
    {
        assert_eq!(modify(qp, init, init_mask), 0);
        let ready = c::ibv_qp_attr { dest_qp_num: number_of(peer), ..ready };
        assert_eq!(modify(qp, ready, mask), 0);
    }
    assert_eq!(modify(source, running, running_mask), 0);

    let mut bytes = [0u8; 16];
    let access = c_int::try_from(support::ALL).unwrap();
    let mr = unsafe { call!(ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), 16, access)) };
    let addr = bytes.as_ptr().addr() as u64;
    let lkey = unsafe { (*mr).lkey };
    assert_eq!(post(srq, 7, c::ibv_sge { addr, length: 16, lkey }), 0);
    a.memory[..4].copy_from_slice(b"xrc!");
    let mut segment = a.segment(0, 4);
    let mut send = c::ibv_send_wr {
        wr_id: 1,
        opcode: c::IBV_WR_SEND,
        send_flags: c::IBV_SEND_SIGNALED,
        sg_list: &raw mut segment,
        num_sge: 1,
        ..Default::default()
    };
    send.qp_type.xrc.remote_srqn = number;
    let mut bad = ptr::null_mut();
    assert_eq!(unsafe { c::ibv_post_send(source, &raw mut send, &raw mut bad) }, 0);
    assert_eq!(reap(&a, a.send_cq).status, 0);
    let mut wc = c::ibv_wc::default();
    assert_eq!(unsafe { c::ibv_poll_cq(queue, 1, &raw mut wc) }, 1);
    assert_eq!((wc.wr_id, wc.byte_len, wc.qp_num), (7, 4, number_of(target)));
    assert_eq!(&bytes[..4], b"xrc!");

    // The target can be opened again by its number, and is there until both are gone.
    let mut again = c::ibv_qp_open_attr {
        comp_mask: c::IBV_QP_OPEN_ATTR_NUM | c::IBV_QP_OPEN_ATTR_XRCD | c::IBV_QP_OPEN_ATTR_TYPE,
        qp_num: number_of(target),
        xrcd,
        qp_type: c::IBV_QPT_XRC_RECV,
        ..Default::default()
    };
    let again = unsafe { c::ibv_open_qp(context, &raw mut again) }.unwrap();
    assert_eq!(number_of(again), number_of(target));
    unsafe {
        assert_eq!(call!(ibv_destroy_qp(target)), 0);
        assert_eq!(call!(ibv_destroy_srq(srq)), 0);
        assert_eq!(c::ibv_close_xrcd(xrcd), Some(libc::EBUSY));
        assert_eq!(call!(ibv_destroy_qp(again)), 0);
        assert_eq!(c::ibv_close_xrcd(xrcd), Some(0));
        assert_eq!(call!(ibv_dereg_mr(mr)), 0);
        assert_eq!(call!(ibv_destroy_cq(queue)), 0);
        assert_eq!(call!(ibv_dealloc_pd(pd)), 0);
        assert_eq!(call!(ibv_close_device(context)), 0);
    }
    a.close();
    assert_eq!(device.leaks(), [""; 0]);
}
