//! The data path of the device allocates nothing, so that a program can count its own allocations.
#![expect(unsafe_code, reason = "counts allocations, and calls raw verbs")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ptr,
};

use rdma_sys as c;
use soft_device::{SoftDevice, library};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the allocator of the system, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
#[expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "each call is made on live objects of this test"
)]
fn posting_and_polling_allocate_nothing() {
    let device = SoftDevice::new();
    let verbs = library().verbs();
    let mut memory = vec![0u8; 64];
    unsafe {
        let mut count = 0;
        let list = verbs.ibv_get_device_list.unwrap()(&raw mut count);
        let context = verbs.ibv_open_device.unwrap()(*list);
        verbs.ibv_free_device_list.unwrap()(list);
        let pd = verbs.ibv_alloc_pd.unwrap()(context);
        let mr = verbs.ibv_reg_mr.unwrap()(pd, memory.as_mut_ptr().cast(), 64, 7);
        let cq = verbs.ibv_create_cq.unwrap()(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
        let mut init = c::ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            qp_type: c::IBV_QPT_RC,
            cap: c::ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            ..Default::default()
        };
        let qp = verbs.ibv_create_qp.unwrap()(pd, &raw mut init);
        let mut gid = c::ibv_gid::default();
        verbs.ibv_query_gid.unwrap()(context, 1, 1, &raw mut gid);
        // A pair that is connected to itself.
        for (attr, mask) in steps((*qp).qp_num, gid) {
            let mut attr = attr;
            let mask = mask.cast_signed();
            assert_eq!(verbs.ibv_modify_qp.unwrap()(qp, &raw mut attr, mask), 0);
        }
        let (addr, lkey) = (memory.as_ptr().addr() as u64, (*mr).lkey);
        let round = || {
            let mut segment = c::ibv_sge { addr, length: 32, lkey };
            let sg_list = &raw mut segment;
            let mut receive = c::ibv_recv_wr { sg_list, num_sge: 1, ..Default::default() };
            let mut bad = ptr::null_mut();
            assert_eq!(c::ibv_post_recv(qp, &raw mut receive, &raw mut bad), 0);
            let mut send = c::ibv_send_wr {
                sg_list,
                num_sge: 1,
                opcode: c::IBV_WR_SEND,
                send_flags: c::IBV_SEND_SIGNALED,
                ..Default::default()
            };
            let mut bad = ptr::null_mut();
            assert_eq!(c::ibv_post_send(qp, &raw mut send, &raw mut bad), 0);
            let mut done = [c::ibv_wc::default(); 2];
            assert_eq!(c::ibv_poll_cq(cq, 2, done.as_mut_ptr()), 2);
            assert_eq!((done[0].status, done[1].status), (0, 0));
        };
        round();
        let before = COUNT.with(Cell::get);
        for _ in 0..100 {
            round();
        }
        assert_eq!(COUNT.with(Cell::get), before);
    }
    drop(device);
}

#[test]
#[expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "each call is made on live objects of this test"
)]
fn frames_allocate_nothing() {
    let device = SoftDevice::new();
    let verbs = library().verbs();
    let mut memory = vec![0u8; 256];
    memory[..6].copy_from_slice(&device.mac(1).unwrap());
    unsafe {
        let mut count = 0;
        let list = verbs.ibv_get_device_list.unwrap()(&raw mut count);
        let named = |&&each: &&*mut c::ibv_device| {
            let name = verbs.ibv_get_device_name.unwrap()(each);
            std::ffi::CStr::from_ptr(name).to_str() == Ok(device.name())
        };
        let devices = std::slice::from_raw_parts(list, usize::try_from(count).unwrap());
        let context = verbs.ibv_open_device.unwrap()(*devices.iter().find(named).unwrap());
        verbs.ibv_free_device_list.unwrap()(list);
        let pd = verbs.ibv_alloc_pd.unwrap()(context);
        let mr = verbs.ibv_reg_mr.unwrap()(pd, memory.as_mut_ptr().cast(), 256, 1);
        let cq = verbs.ibv_create_cq.unwrap()(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
        let cap = c::ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp_type = c::IBV_QPT_RAW_PACKET;
        let init = c::ibv_qp_init_attr::default();
        let mut init = c::ibv_qp_init_attr { send_cq: cq, recv_cq: cq, qp_type, cap, ..init };
        let qp = verbs.ibv_create_qp.unwrap()(pd, &raw mut init);
        let port = c::IBV_QP_STATE | c::IBV_QP_PORT;
        for (qp_state, mask) in [
            (c::IBV_QPS_INIT, port),
            (c::IBV_QPS_RTR, c::IBV_QP_STATE),
            (c::IBV_QPS_RTS, c::IBV_QP_STATE),
        ] {
            let mut attr = c::ibv_qp_attr { qp_state, port_num: 1, ..Default::default() };
            let mask = mask.cast_signed();
            assert_eq!(verbs.ibv_modify_qp.unwrap()(qp, &raw mut attr, mask), 0);
        }
        let size = u16::try_from(size_of::<c::ibv_flow_attr>()).unwrap();
        let mut attr = c::ibv_flow_attr { size, port: 1, ..Default::default() };
        assert!(!c::ibv_create_flow(qp, &raw mut attr).unwrap().is_null());
        let (addr, lkey) = (memory.as_ptr().addr() as u64, (*mr).lkey);
        let round = || {
            let mut from = c::ibv_sge { addr, length: 100, lkey };
            let mut into = c::ibv_sge { addr: addr + 100, length: 100, lkey };
            let wr = c::ibv_recv_wr::default();
            let mut receive = c::ibv_recv_wr { sg_list: &raw mut into, num_sge: 1, ..wr };
            let mut bad = ptr::null_mut();
            assert_eq!(c::ibv_post_recv(qp, &raw mut receive, &raw mut bad), 0);
            let mut send = c::ibv_send_wr {
                sg_list: &raw mut from,
                num_sge: 1,
                opcode: c::IBV_WR_SEND,
                send_flags: c::IBV_SEND_SIGNALED,
                ..Default::default()
            };
            let mut bad = ptr::null_mut();
            assert_eq!(c::ibv_post_send(qp, &raw mut send, &raw mut bad), 0);
            let mut done = [c::ibv_wc::default(); 2];
            assert_eq!(c::ibv_poll_cq(cq, 2, done.as_mut_ptr()), 2);
            assert_eq!((done[0].status, done[1].status), (0, 0));
        };
        round();
        let before = COUNT.with(Cell::get);
        for _ in 0..100 {
            round();
        }
        assert_eq!(COUNT.with(Cell::get), before);
    }
    drop(device);
}

fn steps(dest_qp_num: u32, dgid: c::ibv_gid) -> [(c::ibv_qp_attr, u32); 3] {
    let grh = c::ibv_global_route { dgid, sgid_index: 1, ..Default::default() };
    let ah_attr = c::ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() };
    let path_mtu = c::IBV_MTU_1024;
    let empty = c::ibv_qp_attr::default();
    [
        (
            c::ibv_qp_attr { qp_state: c::IBV_QPS_INIT, port_num: 1, ..empty },
            c::IBV_QP_STATE | c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT | c::IBV_QP_ACCESS_FLAGS,
        ),
        (
            c::ibv_qp_attr { qp_state: c::IBV_QPS_RTR, path_mtu, dest_qp_num, ah_attr, ..empty },
            c::IBV_QP_STATE
                | c::IBV_QP_AV
                | c::IBV_QP_PATH_MTU
                | c::IBV_QP_DEST_QPN
                | c::IBV_QP_RQ_PSN
                | c::IBV_QP_MAX_DEST_RD_ATOMIC
                | c::IBV_QP_MIN_RNR_TIMER,
        ),
        (
            c::ibv_qp_attr { qp_state: c::IBV_QPS_RTS, ..empty },
            c::IBV_QP_STATE
                | c::IBV_QP_SQ_PSN
                | c::IBV_QP_TIMEOUT
                | c::IBV_QP_RETRY_CNT
                | c::IBV_QP_RNR_RETRY
                | c::IBV_QP_MAX_QP_RD_ATOMIC,
        ),
    ]
}
