//! Memory of the device, null regions, changed regions, domains of threads, queues that change.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of a test"
)]

use std::{
    ffi::c_int,
    ptr,
    time::{Duration, Instant},
};

use rdma_sys as c;
use soft_device::SoftDevice;

use crate::support::{
    ALL, Options, Side, Work, call, create_pair, errno, on_both, pair, poll, reap,
};

fn access(flags: u32) -> c_int {
    c_int::try_from(flags).unwrap()
}

#[test]
fn memory_of_the_device_is_reached_by_copy_by_key_and_as_a_file() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    let mut attr = c::ibv_alloc_dm_attr { length: 4096, ..Default::default() };
    let dm = unsafe { c::ibv_alloc_dm(b.context, &raw mut attr) }.unwrap();
    assert!(!dm.is_null());
    let to = unsafe { (*dm).memcpy_to_dm }.unwrap();
    let from = unsafe { (*dm).memcpy_from_dm }.unwrap();
    assert_eq!(unsafe { to(dm, 8, b"on board".as_ptr().cast(), 8) }, 0);
    assert_eq!(unsafe { to(dm, 4090, b"too long".as_ptr().cast(), 8) }, libc::EINVAL);
    let register = |flags| unsafe { c::ibv_reg_dm_mr(b.pd, dm, 0, 4096, flags) }.unwrap();
    assert!(register(ALL).is_null());
    let mr = register(ALL | c::IBV_ACCESS_ZERO_BASED);
    assert!(!mr.is_null(), "errno {}", errno());
    let rkey = unsafe { (*mr).rkey };
    let list = [a.segment(0, 8)];
    a.send(Work { remote: 8, rkey, ..Work::new(1, c::IBV_WR_RDMA_READ, &list) });
    assert_eq!(reap(&a, a.send_cq).status, 0);
    assert_eq!(&a.memory[..8], b"on board");
    a.send(Work { remote: 16, rkey, ..Work::new(2, c::IBV_WR_RDMA_WRITE, &list) });
    assert_eq!(reap(&a, a.send_cq).status, 0);
    let mut back = [0u8; 8];
    assert_eq!(unsafe { from(back.as_mut_ptr().cast(), dm, 16, 8) }, 0);
    assert_eq!(&back, b"on board");
    let fd = unsafe { call!(ibv_dm_export_dmabuf_fd(dm)) };
    assert_eq!(unsafe { libc::pread(fd, back.as_mut_ptr().cast(), 8, 8) }, 8);
    unsafe { libc::close(fd) };
    assert_eq!(&back, b"on board");
    assert_eq!(unsafe { c::ibv_free_dm(dm) }, Some(libc::EBUSY));
    assert_eq!(unsafe { call!(ibv_dereg_mr(mr)) }, 0);
    assert_eq!(unsafe { c::ibv_free_dm(dm) }, Some(0));
    attr.length = 1 << 30;
    assert!(unsafe { c::ibv_alloc_dm(b.context, &raw mut attr) }.unwrap().is_null());
    assert_eq!(errno(), libc::ENOMEM);
    a.close();
    b.close();
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn a_null_region_swallows_what_is_written_and_reads_as_zeros() {
    let device = SoftDevice::new();
    let (mut a, b) = pair(&device, Options::default());
    let null = unsafe { c::ibv_alloc_null_mr(a.pd) }.unwrap();
    let lkey = unsafe { (*null).lkey };
    a.memory[..4].copy_from_slice(b"kept");
    let list = [a.segment(0, 4), c::ibv_sge { addr: 0, length: 4, lkey }];
    fill(&a, &b);
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, 0);
    assert_eq!(&b.memory[..8], b"kept\0\0\0\0");
    let list = [c::ibv_sge { addr: 99, length: 4, lkey }, a.segment(100, 4)];
    a.send(Work::new(2, c::IBV_WR_RDMA_READ, &list).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, 0);
    assert_eq!(a.memory[100..104], [0; 4]);
    assert_eq!(unsafe { call!(ibv_dereg_mr(null)) }, 0);
}

/// Fills the first bytes of a side from its peer, so that a write of zeros shows.
fn fill(a: &Side, b: &Side) {
    let bytes = [0xffu8; 8];
    let addr = bytes.as_ptr().expose_provenance() as u64;
    let source = [c::ibv_sge { addr, length: 8, lkey: 0 }];
    let inline = c::IBV_SEND_INLINE | c::IBV_SEND_SIGNALED;
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &source).to(b, 0).flags(inline));
    assert_eq!(reap(a, a.send_cq).status, c::IBV_WC_SUCCESS);
}

#[test]
fn a_region_can_change_its_range_its_domain_and_its_access() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    let list = [a.segment(0, 8)];
    let write = |mr: *mut c::ibv_mr| {
        let rkey = unsafe { (*mr).rkey };
        let remote = unsafe { (*mr).addr }.addr() as u64;
        a.send(Work { remote, rkey, ..Work::new(1, c::IBV_WR_RDMA_WRITE, &list) });
        reap(&a, a.send_cq).status
    };
    let mut other = vec![0u8; 64];
    let pd = unsafe { call!(ibv_alloc_pd(b.context)) };
    let start: *mut u8 = other.as_mut_ptr();
    let mr = unsafe { call!(ibv_reg_mr(pd, start.cast(), 8, 0)) };
    let old = unsafe { (*mr).rkey };
    let flags = access(c::IBV_REREG_MR_FLAGS_SUPPORTED);
    let rereg = |pd, length, flags: c_int| unsafe {
        call!(ibv_rereg_mr(mr, flags, pd, start.cast(), length, access(ALL)))
    };
    assert_eq!(rereg(b.pd, 0, flags), c::IBV_REREG_MR_ERR_CMD);
    assert_eq!(rereg(b.pd, 64, 8), c::IBV_REREG_MR_ERR_INPUT);
    assert_eq!(rereg(b.pd, 64, flags), 0);
    assert_ne!(unsafe { (*mr).rkey }, old);
    assert_eq!(unsafe { call!(ibv_dealloc_pd(pd)) }, 0);
    assert_eq!(write(mr), 0);
    assert_eq!(unsafe { call!(ibv_dereg_mr(mr)) }, 0);
}

#[test]
fn a_struct_describes_a_region_and_advice_names_its_segments() {
    let device = SoftDevice::new();
    let side = Side::new(&device, Options::default());
    let mut bytes = vec![0u8; 64];
    let mut init = c::ibv_mr_init_attr {
        length: 64,
        access: access(ALL),
        comp_mask: (c::IBV_REG_MR_MASK_ADDR).into(),
        addr: bytes.as_mut_ptr().cast(),
        ..Default::default()
    };
    let mr = unsafe { call!(ibv_reg_mr_ex(side.pd, &raw mut init)) };
    assert!(!mr.is_null());
    let lkey = unsafe { (*mr).lkey };
    let mut segment = c::ibv_sge { addr: bytes.as_ptr().addr() as u64, length: 64, lkey };
    let advise = |segment: &mut c::ibv_sge| {
        let advice = c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        unsafe { c::ibv_advise_mr(side.pd, advice, 0, ptr::from_mut(segment), 1) }
    };
    assert_eq!(advise(&mut segment), Some(0));
    segment.length = 65;
    assert_eq!(advise(&mut segment), Some(libc::EFAULT));
    init.comp_mask = 0;
    assert!(unsafe { call!(ibv_reg_mr_ex(side.pd, &raw mut init)) }.is_null());
}

#[test]
fn what_is_made_in_a_parent_domain_uses_the_keys_of_the_domain_below() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    let mut attr = c::ibv_td_init_attr::default();
    let td = unsafe { c::ibv_alloc_td(a.context, &raw mut attr) }.unwrap();
    let mut attr = c::ibv_parent_domain_init_attr { pd: a.pd, td, ..Default::default() };
    let parent = unsafe { c::ibv_alloc_parent_domain(a.context, &raw mut attr) }.unwrap();
    assert!(!parent.is_null());
    assert_eq!(unsafe { c::ibv_dealloc_td(td) }, Some(libc::EBUSY));
    let options = Options::default();
    let qp = create_pair(a.context, parent, a.send_cq, a.receive_cq, options);
    assert_eq!(unsafe { call!(ibv_dealloc_pd(parent)) }, libc::EBUSY);
    assert_eq!(device.leaks().iter().filter(|each| each.starts_with("parent domain")).count(), 1);
    let first = a.qp;
    let a = Side { qp, ..a };
    unsafe {
        assert_eq!(call!(ibv_destroy_qp(first)), 0);
    }
    assert_eq!(b.set_state(c::IBV_QPS_RESET), 0);
    crate::support::connect(&a, &b);
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, 0);
    assert_eq!(unsafe { call!(ibv_destroy_qp(a.qp)) }, 0);
    assert_eq!(unsafe { call!(ibv_dealloc_pd(parent)) }, 0);
    assert_eq!(unsafe { c::ibv_dealloc_td(td) }, Some(0));
}

#[test]
fn a_queue_can_be_resized_to_what_it_holds() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options { cqe: 2, ..Options::default() });
    let list = [a.segment(0, 8)];
    let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
    assert_eq!(a.post(&[write, write]), (0, 2));
    assert_eq!(unsafe { call!(ibv_resize_cq(a.send_cq, 1)) }, libc::EINVAL);
    assert_eq!(unsafe { call!(ibv_resize_cq(a.send_cq, 3)) }, 0);
    assert_eq!(unsafe { (*a.send_cq).cqe }, 3);
    a.send(write);
    assert_eq!(poll(&a, a.send_cq).len(), 3);
}

#[test]
fn a_moderated_queue_waits_for_more_completions_or_for_its_period() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options { channel: true, ..Options::default() });
    let moderate = |cq_count, cq_period| {
        let moderate = c::ibv_moderate_cq { cq_count, cq_period };
        let mut attr = c::ibv_modify_cq_attr { attr_mask: c::IBV_CQ_ATTR_MODERATE, moderate };
        assert_eq!(unsafe { c::ibv_modify_cq(a.send_cq, &raw mut attr) }, Some(0));
    };
    let fd = unsafe { (*a.channel).fd };
    let readable = |timeout| {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        unsafe { libc::poll(&raw mut poll, 1, timeout) == 1 }
    };
    let arm = || assert_eq!(unsafe { c::ibv_req_notify_cq(a.send_cq, 0) }, 0);
    let take = || {
        let (mut queue, mut data) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(unsafe { call!(ibv_get_cq_event(a.channel, &raw mut queue, &raw mut data)) }, 0);
        unsafe { call!(ibv_ack_cq_events(queue, 1)) };
    };
    let list = [a.segment(0, 8)];
    let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
    moderate(3, u16::MAX);
    arm();
    assert_eq!(a.post(&[write, write]), (0, 2));
    assert!(!readable(0));
    a.send(write);
    assert!(readable(0));
    take();
    moderate(1000, 1000);
    arm();
    let start = Instant::now();
    a.send(write);
    assert!(readable(60_000));
    assert!(start.elapsed() >= Duration::from_millis(1));
    take();
    a.close();
}

#[test]
fn a_drained_send_queue_is_told_and_goes_on_later() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, options);
        let attr = c::ibv_qp_attr {
            qp_state: c::IBV_QPS_SQD,
            en_sqd_async_notify: 1,
            ..Default::default()
        };
        assert_eq!(a.modify(&attr, c::IBV_QP_STATE | c::IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
        let mut event = c::ibv_async_event::default();
        assert_eq!(unsafe { call!(ibv_get_async_event(a.context, &raw mut event)) }, 0);
        assert_eq!(event.event_type, c::IBV_EVENT_SQ_DRAINED);
        unsafe { call!(ibv_ack_async_event(&raw mut event)) };
        a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
        assert_eq!(poll(&a, a.send_cq), []);
        assert_eq!(a.set_state(c::IBV_QPS_RTS), 0);
        assert_eq!(reap(&a, a.send_cq).status, 0);
    });
}

#[test]
fn the_options_of_a_connection_are_cut_to_what_the_device_knows() {
    let device = SoftDevice::new();
    let side = Side::new(&device, Options::default());
    let mut ece = c::ibv_ece::default();
    assert_eq!(unsafe { call!(ibv_query_ece(side.qp, &raw mut ece)) }, 0);
    assert_ne!(ece.options, 0);
    ece.options = 0x1001;
    assert_eq!(unsafe { call!(ibv_set_ece(side.qp, &raw mut ece)) }, 0);
    assert_eq!(ece.options, 1);
    assert_eq!(unsafe { call!(ibv_query_ece(side.qp, &raw mut ece)) }, 0);
    assert_eq!(ece.options, 1);
    ece.vendor_id = 77;
    assert_eq!(unsafe { call!(ibv_set_ece(side.qp, &raw mut ece)) }, libc::EINVAL);
    let order = unsafe { call!(ibv_query_qp_data_in_order(side.qp, c::IBV_WR_RDMA_WRITE, 0)) };
    assert_eq!(order, 1);
}
