//! Imports, counters, flows and work queues: how long they are kept, and what is checked.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "each call is made on live objects of a test"
)]

use std::ptr;

use rdma_sys as c;
use soft_device::SoftDevice;

use crate::support::{Options, Side, Work, call, create_pair, errno, pair, poll, reap};

#[test]
fn a_context_is_imported_by_its_descriptor_and_shares_domains_and_regions() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    let copy = unsafe { libc::dup((*b.context).cmd_fd) };
    let context = unsafe { call!(ibv_import_device(copy)) };
    assert!(!context.is_null(), "errno {}", errno());
    let (domain, region) = unsafe { ((*b.pd).handle, (*b.mr).handle) };
    let pd = unsafe { call!(ibv_import_pd(context, domain)) };
    let mr = unsafe { call!(ibv_import_mr(pd, region)) };
    assert_eq!(unsafe { (*mr).rkey }, b.rkey());
    assert_eq!(unsafe { (*mr).length }, 4096);
    // A pair in the imported domain uses the keys of the first.
    let queue = || unsafe { call!(ibv_create_cq(context, 8, ptr::null_mut(), ptr::null_mut(), 0)) };
    let (send_cq, receive_cq) = (queue(), queue());
    let qp = create_pair(context, pd, send_cq, receive_cq, Options::default());
    assert!(!qp.is_null());
    assert_eq!(unsafe { call!(ibv_destroy_qp(qp)) }, 0);
    // The domains of others cannot be imported.
    let (other, _) = pair(&device, Options::default());
    let handle = unsafe { (*other.pd).handle };
    assert!(unsafe { call!(ibv_import_pd(context, handle)) }.is_null());
    assert_eq!(errno(), libc::ENOENT);
    unsafe {
        call!(ibv_unimport_mr(mr));
        call!(ibv_unimport_pd(pd));
        assert_eq!(call!(ibv_destroy_cq(send_cq)), 0);
        assert_eq!(call!(ibv_destroy_cq(receive_cq)), 0);
        assert_eq!(call!(ibv_close_device(context)), 0);
    }
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, 0);
    b.close();
    let nothing = unsafe { libc::eventfd(0, 0) };
    assert!(unsafe { call!(ibv_import_device(nothing)) }.is_null());
    unsafe { libc::close(nothing) };
}

#[test]
fn a_completion_counter_counts_what_ends_signaled_or_not() {
    let device = SoftDevice::new();
    let (a, b) = (Side::new(&device, Options::default()), Side::new(&device, Options::default()));
    let mut attr =
        c::ibv_comp_cntr_init_attr { type_: c::IBV_COMP_CNTR_TYPE_BYTES, ..Default::default() };
    let counter = unsafe { call!(ibv_create_comp_cntr(a.context, &raw mut attr)) };
    assert!(!counter.is_null());
    let mut which = c::ibv_qp_attach_comp_cntr_attr {
        comp_mask: 0,
        op_mask: c::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
    };
    let attach = |which: &mut c::ibv_qp_attach_comp_cntr_attr| unsafe {
        call!(ibv_qp_attach_comp_cntr(a.qp, counter, ptr::from_mut(which)))
    };
    assert_eq!(attach(&mut which), 0);
    assert_eq!(attach(&mut which), libc::EBUSY);
    crate::support::connect(&a, &b);
    let read = |verb: unsafe extern "C" fn(*mut c::ibv_comp_cntr, *mut u64) -> i32| {
        let mut value = 0;
        assert_eq!(unsafe { verb(counter, &raw mut value) }, 0);
        value
    };
    let verbs = soft_device::library().verbs();
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 100)]).to(&b, 0).flags(0));
    a.send(Work::new(2, c::IBV_WR_RDMA_READ, &[a.segment(0, 100)]).to(&b, 0));
    assert_eq!(read(verbs.ibv_read_comp_cntr.unwrap()), 100);
    assert_eq!(unsafe { call!(ibv_inc_comp_cntr(counter, 5)) }, 0);
    assert_eq!(read(verbs.ibv_read_comp_cntr.unwrap()), 105);
    a.send(Work { rkey: 0, ..Work::new(3, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0) });
    assert_eq!(read(verbs.ibv_read_err_comp_cntr.unwrap()), 1);
    assert_eq!(unsafe { call!(ibv_destroy_comp_cntr(counter)) }, libc::EBUSY);
    assert_eq!(unsafe { call!(ibv_destroy_qp(a.qp)) }, 0);
    assert_eq!(unsafe { call!(ibv_destroy_comp_cntr(counter)) }, 0);
}

#[test]
fn a_flow_keeps_its_pair_and_its_counters() {
    let device = SoftDevice::new();
    let kind = c::IBV_QPT_UD;
    let side = Side::new(&device, Options { kind, ..Options::default() });
    let size = u16::try_from(size_of::<c::ibv_flow_attr>()).unwrap();
    let mut attr = c::ibv_flow_attr { port: 1, size, ..Default::default() };
    let flow = unsafe { c::ibv_create_flow(side.qp, &raw mut attr) }.unwrap();
    assert!(!flow.is_null());
    attr.port = 2;
    assert!(unsafe { c::ibv_create_flow(side.qp, &raw mut attr) }.unwrap().is_null());
    let mut attr = c::ibv_counters_init_attr::default();
    let counters = unsafe { c::ibv_create_counters(side.context, &raw mut attr) }.unwrap();
    let mut point = c::ibv_counter_attach_attr { index: 3, ..Default::default() };
    let attached = unsafe { c::ibv_attach_counters_point_flow(counters, &raw mut point, flow) };
    assert_eq!(attached, Some(0));
    let mut values = [7u64; 4];
    let read = |values: &mut [u64]| {
        let count = u32::try_from(values.len()).unwrap();
        unsafe { c::ibv_read_counters(counters, values.as_mut_ptr(), count, 0) }
    };
    assert_eq!(read(&mut values[..3]), Some(libc::EINVAL));
    assert_eq!(read(&mut values), Some(0));
    assert_eq!(values, [0; 4]);
    assert_eq!(unsafe { c::ibv_destroy_counters(counters) }, Some(libc::EBUSY));
    assert_eq!(unsafe { call!(ibv_destroy_qp(side.qp)) }, libc::EBUSY);
    assert_eq!(unsafe { c::ibv_destroy_flow(flow) }, Some(0));
    assert_eq!(unsafe { c::ibv_destroy_counters(counters) }, Some(0));
    side.close();
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn a_work_queue_flushes_in_error_and_is_kept_by_its_table() {
    let device = SoftDevice::new();
    let side = Side::new(&device, Options::default());
    let mut attr = c::ibv_wq_init_attr {
        wq_type: c::IBV_WQT_RQ,
        max_wr: 2,
        max_sge: 1,
        pd: side.pd,
        cq: side.receive_cq,
        ..Default::default()
    };
    let wq = unsafe { c::ibv_create_wq(side.context, &raw mut attr) }.unwrap();
    assert!(!wq.is_null());
    let post = || {
        let mut wr = c::ibv_recv_wr { wr_id: 9, ..Default::default() };
        let mut bad = ptr::null_mut();
        unsafe { (*wq).post_recv.unwrap()(wq, &raw mut wr, &raw mut bad) }
    };
    let modify = |wq_state| {
        let attr_mask = c::IBV_WQ_ATTR_STATE;
        let mut attr = c::ibv_wq_attr { attr_mask, wq_state, ..Default::default() };
        unsafe { c::ibv_modify_wq(wq, &raw mut attr) }
    };
    assert_eq!(post(), libc::EINVAL);
    assert_eq!(modify(c::IBV_WQS_ERR), Some(libc::EINVAL));
    assert_eq!(modify(c::IBV_WQS_RDY), Some(0));
    assert_eq!((post(), post(), post()), (0, 0, libc::ENOMEM));
    assert_eq!(modify(c::IBV_WQS_ERR), Some(0));
    assert_eq!(unsafe { (*wq).state }, c::IBV_WQS_ERR);
    let flushed = poll(&side, side.receive_cq);
    assert_eq!((flushed.len(), flushed[0].id), (2, 9));
    assert_eq!(flushed[0].status, c::IBV_WC_WR_FLUSH_ERR);
    let mut list = [wq, wq];
    let mut attr = c::ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: 1,
        ind_tbl: list.as_mut_ptr(),
        comp_mask: 0,
    };
    let table = unsafe { c::ibv_create_rwq_ind_table(side.context, &raw mut attr) }.unwrap();
    assert!(!table.is_null());
    assert_eq!(unsafe { c::ibv_destroy_wq(wq) }, Some(libc::EBUSY));
    assert_eq!(unsafe { c::ibv_destroy_rwq_ind_table(table) }, Some(0));
    assert_eq!(unsafe { c::ibv_destroy_wq(wq) }, Some(0));
    side.close();
    assert_eq!(device.leaks(), [""; 0]);
}
