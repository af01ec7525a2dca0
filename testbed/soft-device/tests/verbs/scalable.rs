//! Scalable reliable datagrams on a device of the EFA kind.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "each call is made on live objects of a test"
)]

use std::{ffi::c_int, ptr};

use rdma_sys as c;
use soft_device::{SoftDevice, library};

use crate::support::{ALL, Done, Options, Work, call, errno, gid, open, pattern};

const KEY: u32 = 0x77;

fn efa() -> &'static c::Efa {
    library().efa().unwrap()
}

fn device() -> SoftDevice {
    SoftDevice::builder().efa(|_| {}).build()
}

/// A scalable reliable datagram pair with a queue and memory.
struct Side {
    context: *mut c::ibv_context,
    pd: *mut c::ibv_pd,
    cq: *mut c::ibv_cq_ex,
    qp: *mut c::ibv_qp,
    mr: *mut c::ibv_mr,
    memory: Vec<u8>,
}

fn side(device: &SoftDevice, flags: u32) -> Side {
    let context = open(device);
    let mut memory = vec![0u8; 4096];
    unsafe {
        let pd = call!(ibv_alloc_pd(context));
        let mut attr = c::ibv_cq_init_attr_ex {
            cqe: 64,
            wc_flags: c::IBV_WC_STANDARD_FLAGS.into(),
            ..Default::default()
        };
        let mut extra = c::efadv_cq_init_attr {
            wc_flags: (c::EFADV_WC_EX_WITH_SGID | c::EFADV_WC_EX_WITH_IS_UNSOLICITED).into(),
            ..Default::default()
        };
        let size = u32::try_from(size_of_val(&extra)).unwrap();
        let create = efa().efadv_create_cq.unwrap();
        let cq = create(context, &raw mut attr, &raw mut extra, size);
        assert!(!cq.is_null(), "errno {}", errno());
        let operations = c::IBV_QP_EX_WITH_SEND
            | c::IBV_QP_EX_WITH_SEND_WITH_IMM
            | c::IBV_QP_EX_WITH_RDMA_WRITE
            | c::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | c::IBV_QP_EX_WITH_RDMA_READ;
        let mut attr = c::ibv_qp_init_attr_ex {
            qp_type: c::IBV_QPT_DRIVER,
            send_cq: cq.cast(),
            recv_cq: cq.cast(),
            cap: c::ibv_qp_cap {
                max_inline_data: 32,
                max_send_sge: 2,
                max_recv_sge: 2,
                ..Options::default().cap
            },
            pd,
            comp_mask: c::IBV_QP_INIT_ATTR_PD | c::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags: operations.into(),
            ..Default::default()
        };
        let mut extra = c::efadv_qp_init_attr {
            driver_qp_type: c::EFADV_QP_DRIVER_TYPE_SRD,
            flags: u16::try_from(flags).unwrap(),
            wr_flags: c::EFADV_WR_EX_WITH_PROCESSING_HINTS.into(),
            ..Default::default()
        };
        let size = u32::try_from(size_of_val(&extra)).unwrap();
        let create = efa().efadv_create_qp_ex.unwrap();
        let qp = create(context, &raw mut attr, &raw mut extra, size);
        assert!(!qp.is_null(), "errno {}", errno());
        let access = c_int::try_from(ALL & !c::IBV_ACCESS_REMOTE_ATOMIC).unwrap();
        let mr = call!(ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), access));
        let side = Side { context, pd, cq, qp, mr, memory };
        side.run(7);
        side
    }
}

impl Side {
    fn modify(&self, attr: c::ibv_qp_attr, mask: u32) {
        let mut attr = attr;
        let mask = c_int::try_from(mask).unwrap();
        assert_eq!(unsafe { call!(ibv_modify_qp(self.qp, &raw mut attr, mask)) }, 0);
    }

    fn run(&self, rnr_retry: u8) {
        let attr = c::ibv_qp_attr {
            qp_state: c::IBV_QPS_INIT,
            port_num: 1,
            qkey: KEY,
            ..Default::default()
        };
        self.modify(attr, c::IBV_QP_STATE | c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT | c::IBV_QP_QKEY);
        self.modify(
            c::ibv_qp_attr { qp_state: c::IBV_QPS_RTR, ..Default::default() },
            c::IBV_QP_STATE,
        );
        let attr = c::ibv_qp_attr { qp_state: c::IBV_QPS_RTS, rnr_retry, ..Default::default() };
        self.modify(attr, c::IBV_QP_STATE | c::IBV_QP_SQ_PSN | c::IBV_QP_RNR_RETRY);
    }

    fn handle_of(&self, gid: c::ibv_gid) -> *mut c::ibv_ah {
        let grh = c::ibv_global_route { dgid: gid, ..Default::default() };
        let mut attr = c::ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() };
        let ah = unsafe { call!(ibv_create_ah(self.pd, &raw mut attr)) };
        assert!(!ah.is_null(), "errno {}", errno());
        ah
    }

    fn number(&self) -> u32 {
        unsafe { (*self.qp).qp_num }
    }

    fn segment(&self, start: usize, length: u32) -> c::ibv_sge {
        let addr = self.memory.as_ptr().addr() as u64 + start as u64;
        c::ibv_sge { addr, length, lkey: unsafe { (*self.mr).lkey } }
    }

    fn post(&self, works: &[Work<'_>]) -> c_int {
        unsafe {
            let qp = call!(ibv_qp_to_qp_ex(self.qp));
            c::ibv_wr_start(qp);
            for work in works {
                ((*qp).wr_id, (*qp).wr_flags) = (work.id, work.flags);
                match work.opcode {
                    c::IBV_WR_SEND => c::ibv_wr_send(qp),
                    c::IBV_WR_SEND_WITH_IMM => c::ibv_wr_send_imm(qp, work.immediate),
                    c::IBV_WR_RDMA_WRITE => c::ibv_wr_rdma_write(qp, work.rkey, work.remote),
                    c::IBV_WR_RDMA_READ => c::ibv_wr_rdma_read(qp, work.rkey, work.remote),
                    _ => c::ibv_wr_rdma_write_imm(qp, work.rkey, work.remote, work.immediate),
                }
                c::ibv_wr_set_ud_addr(qp, work.ah, work.qpn, work.qkey);
                c::ibv_wr_set_sge_list(qp, work.segments.len(), work.segments.as_ptr());
            }
            c::ibv_wr_complete(qp)
        }
    }

    fn receive(&self, wr_id: u64, start: usize, length: u32) {
        let mut segment = self.segment(start, length);
        let sg_list = &raw mut segment;
        let mut wr = c::ibv_recv_wr { wr_id, sg_list, num_sge: 1, next: ptr::null_mut() };
        let mut bad = ptr::null_mut();
        assert_eq!(unsafe { c::ibv_post_recv(self.qp, &raw mut wr, &raw mut bad) }, 0);
    }

    /// Waits for `count` completions: the common part, who sent it, and whether it was unsolicited.
    fn reap(&self, count: usize) -> Vec<(Done, Option<[u8; 16]>, bool)> {
        let mut found = Vec::new();
        let mut attr = c::ibv_poll_cq_attr::default();
        let efa_cq = unsafe { efa().efadv_cq_from_ibv_cq_ex.unwrap()(self.cq) };
        while found.len() < count {
            let mut code = unsafe { c::ibv_start_poll(self.cq, &raw mut attr) };
            if code == libc::ENOENT {
                std::thread::yield_now();
                continue;
            }
            while code == 0 {
                unsafe {
                    let done = Done {
                        id: (*self.cq).wr_id,
                        status: (*self.cq).status,
                        opcode: c::ibv_wc_read_opcode(self.cq),
                        length: c::ibv_wc_read_byte_len(self.cq),
                        immediate: u32::from_be(c::ibv_wc_read_imm_data(self.cq)),
                        src_qp: c::ibv_wc_read_src_qp(self.cq),
                        vendor_err: c::ibv_wc_read_vendor_err(self.cq),
                        ..Done::default()
                    };
                    let mut sgid = c::ibv_gid::default();
                    let unknown = c::efadv_wc_read_sgid(efa_cq, &raw mut sgid) == 0;
                    let unsolicited = c::efadv_wc_is_unsolicited(efa_cq);
                    found.push((done, unknown.then_some(sgid.raw), unsolicited));
                    code = c::ibv_next_poll(self.cq);
                }
            }
            unsafe { c::ibv_end_poll(self.cq) };
        }
        found
    }

    /// The status and vendor error of one request.
    fn outcome(&self, work: Work<'_>) -> (u32, u32) {
        assert_eq!(self.post(&[work]), 0);
        let (done, ..) = self.reap(1)[0];
        (done.status, done.vendor_err)
    }
}

/// A request to a side.
fn to<'a>(side: &Side, ah: *mut c::ibv_ah, opcode: u32, list: &'a [c::ibv_sge]) -> Work<'a> {
    let remote = side.memory.as_ptr().addr() as u64;
    let rkey = unsafe { (*side.mr).rkey };
    Work { remote, rkey, ..Work::new(1, opcode, list) }.datagram(ah, side.number(), KEY)
}

#[test]
fn a_message_arrives_without_a_header_and_tells_who_sent_it() {
    let (one, two) = (device(), device());
    let (mut a, b) = (side(&one, 0), side(&two, 0));
    let ah = a.handle_of(gid(b.context, 0));
    a.memory[..8].copy_from_slice(b"scalable");
    b.receive(4, 0, 64);
    let list = [a.segment(0, 8)];
    let send = to(&b, ah, c::IBV_WR_SEND_WITH_IMM, &list).immediate(9);
    assert_eq!(a.outcome(send), (0, 0));
    let (done, sgid, unsolicited) = b.reap(1)[0];
    assert_eq!((done.id, done.length, done.immediate), (4, 8, 9));
    assert_eq!((done.src_qp, unsolicited), (a.number(), false));
    assert_eq!(&b.memory[..8], b"scalable");
    // Without an address handle for the sender, its GID is there; with one, its number.
    assert_eq!(sgid, Some(unsafe { gid(a.context, 0).raw }));
    b.handle_of(gid(a.context, 0));
    b.receive(5, 0, 64);
    assert_eq!(a.outcome(send), (0, 0));
    assert_eq!(b.reap(1)[0].1, None);
}

#[test]
fn reads_and_writes_need_the_peer_to_know_the_sender() {
    let (one, two) = (device(), device());
    let (mut a, b) = (side(&one, 0), side(&two, 0));
    let ah = a.handle_of(gid(b.context, 0));
    a.memory[..2000].copy_from_slice(&pattern(2000, 8));
    let list = [a.segment(0, 2000)];
    let write = to(&b, ah, c::IBV_WR_RDMA_WRITE, &list);
    assert_eq!(a.outcome(write), (c::IBV_WC_REM_OP_ERR, 14));
    b.handle_of(gid(a.context, 0));
    assert_eq!(a.outcome(write), (0, 0));
    assert_eq!(b.memory[..2000], pattern(2000, 8));
    let list = [a.segment(2000, 100)];
    assert_eq!(a.outcome(to(&b, ah, c::IBV_WR_RDMA_READ, &list)), (0, 0));
    assert_eq!(a.memory[2000..2100], pattern(2000, 8)[..100]);
    let wrong = Work { rkey: 0, ..write };
    assert_eq!(a.outcome(wrong), (c::IBV_WC_REM_ACCESS_ERR, 7));
    // Each message stands for itself: the pair goes on.
    assert_eq!(a.outcome(write), (0, 0));
    b.receive(6, 0, 0);
    let notify = to(&b, ah, c::IBV_WR_RDMA_WRITE_WITH_IMM, &list).immediate(3);
    assert_eq!(a.outcome(notify), (0, 0));
    let (done, _, unsolicited) = b.reap(1)[0];
    assert_eq!((done.id, done.opcode), (6, c::IBV_WC_RECV_RDMA_WITH_IMM));
    assert_eq!((done.immediate, unsolicited), (3, false));
}

#[test]
fn an_unsolicited_write_uses_no_receive_up() {
    let device = device();
    let flags = c::EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;
    let (a, b) = (side(&device, flags), side(&device, flags));
    let ah = a.handle_of(gid(b.context, 0));
    let list = [a.segment(0, 8)];
    let write = to(&b, ah, c::IBV_WR_RDMA_WRITE_WITH_IMM, &list).immediate(5);
    assert_eq!(a.outcome(write), (0, 0));
    let (done, _, unsolicited) = b.reap(1)[0];
    assert_eq!((done.immediate, unsolicited), (5, true));
    // Both sides must want it.
    let other = side(&device, 0);
    let write = to(&other, ah, c::IBV_WR_RDMA_WRITE_WITH_IMM, &list);
    assert_eq!(a.outcome(write), (c::IBV_WC_GENERAL_ERR, 18));
}

#[test]
fn each_failure_has_the_status_of_libefa() {
    let device = device();
    let (a, b) = (side(&device, 0), side(&device, 0));
    let ah = a.handle_of(gid(b.context, 0));
    let nowhere = a.handle_of(c::ibv_gid { raw: [9; 16] });
    let list = [a.segment(0, 8)];
    let send = to(&b, ah, c::IBV_WR_SEND, &list);
    assert_eq!(a.outcome(Work { qpn: 2, ..send }), (c::IBV_WC_REM_INV_RD_REQ_ERR, 9));
    assert_eq!(a.outcome(Work { qkey: 2, ..send }), (c::IBV_WC_REM_INV_RD_REQ_ERR, 9));
    assert_eq!(a.outcome(Work { ah: nowhere, ..send }), (c::IBV_WC_RESP_TIMEOUT_ERR, 13));
    let wrong = [c::ibv_sge { lkey: 1, ..a.segment(0, 8) }];
    assert_eq!(a.outcome(Work { segments: &wrong, ..send }), (c::IBV_WC_LOC_PROT_ERR, 5));
    b.receive(1, 0, 4);
    assert_eq!(a.outcome(send), (c::IBV_WC_REM_INV_REQ_ERR, 11));
    assert_eq!(b.reap(1)[0].0.status, c::IBV_WC_LOC_LEN_ERR);
    assert_eq!(a.post(&[send.flags(0)]), libc::EINVAL);
    a.modify(c::ibv_qp_attr { qp_state: c::IBV_QPS_RESET, ..Default::default() }, c::IBV_QP_STATE);
    a.run(0);
    assert_eq!(a.outcome(send), (c::IBV_WC_RNR_RETRY_EXC_ERR, 10));
}

#[test]
fn a_peer_that_is_not_ready_does_not_hold_others_up() {
    let device = device();
    let (a, slow, quick) = (side(&device, 0), side(&device, 0), side(&device, 0));
    let ah = a.handle_of(gid(a.context, 0));
    let list = [a.segment(0, 8)];
    quick.receive(1, 0, 8);
    let first = Work { id: 1, ..to(&slow, ah, c::IBV_WR_SEND, &list) };
    let second = Work { id: 2, ..to(&quick, ah, c::IBV_WR_SEND, &list) };
    assert_eq!(a.post(&[first, second]), 0);
    assert_eq!(a.reap(1)[0].0.id, 2);
    slow.receive(1, 0, 8);
    assert_eq!(a.reap(1)[0].0.id, 1);
}

#[test]
fn disorder_changes_the_order_and_loses_nothing() {
    let device = device();
    device.set_disorder(Some(3));
    let (a, b) = (side(&device, 0), side(&device, 0));
    let ah = a.handle_of(gid(b.context, 0));
    let mut orders = Vec::new();
    for _ in 0..4 {
        let list = [a.segment(0, 8)];
        let send = to(&b, ah, c::IBV_WR_SEND_WITH_IMM, &list);
        let batch: Vec<Work<'_>> =
            (0..8).map(|id| Work { id: id.into(), ..send }.immediate(id)).collect();
        for work in &batch {
            b.receive(work.id, 0, 8);
        }
        assert_eq!(a.post(&batch), 0);
        let sent: Vec<u64> = a.reap(8).iter().map(|(done, ..)| done.id).collect();
        let received: Vec<u32> = b.reap(8).iter().map(|(done, ..)| done.immediate).collect();
        let mut sorted = received.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..8).collect::<Vec<u32>>());
        assert_eq!(sent.len(), 8);
        orders.push(received);
    }
    assert!(orders.iter().any(|order| !order.is_sorted()), "{orders:?}");
}

#[test]
fn only_a_device_of_the_kind_answers_efadv() {
    let efa_device = device();
    let query = |device: &SoftDevice| {
        let context = open(device);
        let mut attr = c::efadv_device_attr::default();
        let size = u32::try_from(size_of_val(&attr)).unwrap();
        let code = unsafe { efa().efadv_query_device.unwrap()(context, &raw mut attr, size) };
        (code, attr)
    };
    let (code, attr) = query(&efa_device);
    assert_eq!((code, attr.max_rdma_size, attr.inline_buf_size), (0, 1 << 30, 32));
    assert_eq!(query(&SoftDevice::new()).0, libc::EOPNOTSUPP);

    let side = side(&efa_device, 0);
    let mut init = c::ibv_qp_init_attr {
        qp_type: c::IBV_QPT_RC,
        send_cq: side.cq.cast(),
        recv_cq: side.cq.cast(),
        ..Default::default()
    };
    assert!(unsafe { call!(ibv_create_qp(side.pd, &raw mut init)) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    init.qp_type = c::IBV_QPT_DRIVER;
    let classic = unsafe { efa().efadv_create_driver_qp.unwrap()(side.pd, &raw mut init, 0) };
    assert!(!classic.is_null());
    let mut port = c::ibv_port_attr::default();
    let size = size_of_val(&port);
    assert_eq!(unsafe { c::ibv_query_port_ex(side.context, 1, &raw mut port, size) }, Some(0));
    assert_eq!((port.max_msg_sz, port.link_layer), (8928, 0));
    let ah = side.handle_of(gid(side.context, 0));
    let mut attr = c::efadv_ah_attr::default();
    let size = u32::try_from(size_of_val(&attr)).unwrap();
    assert_eq!(unsafe { efa().efadv_query_ah.unwrap()(ah, &raw mut attr, size) }, 0);
    assert_ne!(attr.ahn, 0);
    let qp = unsafe { call!(ibv_qp_to_qp_ex(side.qp)) };
    let efa_qp = unsafe { efa().efadv_qp_from_ibv_qp_ex.unwrap()(qp) };
    unsafe { c::efadv_wr_set_processing_hints(efa_qp, 1) };
}
