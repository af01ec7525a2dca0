//! Objects: what they are, who holds whom, what a query says.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of a test"
)]

use std::{ffi::c_int, os::fd::RawFd, ptr};

use rdma_sys as c;
use soft_device::{GidEntry, LinkLayer, SoftDevice};

use crate::support::{
    ALL, Options, Side, Work, call, errno, init_attr, open, pair, pattern, reap, rtr_attr, rts_attr,
};

#[test]
fn a_parent_is_busy_while_a_child_is_alive() {
    let device = SoftDevice::new();
    let side = Side::new(&device, Options { channel: true, ..Options::default() });
    unsafe {
        assert_eq!(call!(ibv_dealloc_pd(side.pd)), libc::EBUSY);
    }
    assert_eq!(unsafe { call!(ibv_destroy_cq(side.send_cq)) }, libc::EBUSY);
    assert_eq!(unsafe { call!(ibv_destroy_comp_channel(side.channel)) }, libc::EBUSY);
    assert_eq!(device.leaks().len(), 7, "{:?}", device.leaks());
    side.close();
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn a_context_that_is_closed_too_early_leaves_leaks_and_dead_objects() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    assert_eq!(unsafe { call!(ibv_close_device(b.context)) }, 0);
    assert!(device.violations()[0].starts_with("ibv_close_device: queue pair"));
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_RETRY_EXC_ERR);
    a.close();
    assert_eq!(device.leaks().len(), 6, "{:?}", device.leaks());
}

#[test]
fn a_transition_needs_its_attributes_and_refuses_others() {
    let device = SoftDevice::new();
    let options = Options::default();
    let (a, b) = (Side::new(&device, options), Side::new(&device, options));
    let steps = [init_attr(), rtr_attr(&b), rts_attr()];
    for (attr, mask) in steps {
        for bit in (0..32).map(|shift| 1u32 << shift) {
            let required = mask & bit != 0 && bit != c::IBV_QP_STATE;
            if required {
                assert_eq!(a.modify(&attr, mask & !bit), libc::EINVAL, "without {bit:#x}");
            }
        }
        assert_eq!(a.modify(&attr, mask | c::IBV_QP_QKEY), libc::EINVAL);
        assert_eq!(a.modify(&attr, mask), 0);
        assert_eq!(a.state(), attr.qp_state);
    }
    let found = a.query();
    assert_eq!((found.dest_qp_num, found.path_mtu, found.sq_psn), (b.qpn(), c::IBV_MTU_1024, 7));
    assert_eq!((found.timeout, found.retry_cnt, found.rnr_retry), (10, 2, 7));
    assert_eq!(found.cap.max_send_sge, 4);
}

#[test]
fn values_that_a_port_cannot_have_are_refused() {
    let device = SoftDevice::builder().mtu(c::IBV_MTU_1024).build();
    let options = Options::default();
    let (a, b) = (Side::new(&device, options), Side::new(&device, options));
    let (attr, mask) = init_attr();
    assert_eq!(a.modify(&c::ibv_qp_attr { port_num: 2, ..attr }, mask), libc::EINVAL);
    assert_eq!(a.modify(&c::ibv_qp_attr { pkey_index: 2, ..attr }, mask), libc::EINVAL);
    a.to_init();
    let (attr, mask) = rtr_attr(&b);
    let refused = |attr: c::ibv_qp_attr| assert_eq!(a.modify(&attr, mask), libc::EINVAL);
    refused(c::ibv_qp_attr { path_mtu: c::IBV_MTU_2048, ..attr });
    refused(c::ibv_qp_attr { path_mtu: 0, ..attr });
    refused(c::ibv_qp_attr { dest_qp_num: 1 << 24, ..attr });
    refused(c::ibv_qp_attr { max_dest_rd_atomic: 17, ..attr });
    let mut vector = attr.ah_attr;
    vector.grh.sgid_index = 2;
    refused(c::ibv_qp_attr { ah_attr: vector, ..attr });
    let vector = c::ibv_ah_attr { is_global: 0, ..attr.ah_attr };
    refused(c::ibv_qp_attr { ah_attr: vector, ..attr });
    a.to_rtr(&b);
}

#[test]
fn the_state_decides_what_can_be_posted() {
    let device = SoftDevice::new();
    let options = Options::default();
    let (a, b) = (Side::new(&device, options), Side::new(&device, options));
    let list = [a.segment(0, 8)];
    let send = Work::new(1, c::IBV_WR_SEND, &list);
    assert_eq!(a.receive(&[(1, &[])]), (libc::EINVAL, 0));
    a.to_init();
    assert_eq!(a.receive(&[(1, &[])]), (0, 1));
    assert_eq!(a.post(&[send]), (libc::EINVAL, 0));
    a.to_rtr(&b);
    assert_eq!(a.post(&[send]), (libc::EINVAL, 0));
    a.to_rts();
    assert_eq!(a.post(&[send]), (0, 1));
    let many = [a.segment(0, 1); 5];
    assert_eq!(a.post(&[Work::new(1, c::IBV_WR_SEND, &many)]), (libc::EINVAL, 0));
    let long = [a.segment(0, 65)];
    let inline = Work::new(1, c::IBV_WR_SEND, &long).flags(c::IBV_SEND_INLINE);
    assert_eq!(a.post(&[inline]), (libc::EINVAL, 0));
}

#[test]
fn functions_that_were_not_asked_for_are_null() {
    let device = SoftDevice::new();
    let kind = c::IBV_QPT_UC;
    let side = Side::new(&device, Options { extended: true, kind, ..Options::default() });
    let queue: *mut c::ibv_cq_ex = side.send_cq.cast();
    unsafe {
        assert!((*queue).read_imm_data.is_some());
    }
    assert!(unsafe { (*queue).read_completion_ts }.is_none());
    let qp = unsafe { call!(ibv_qp_to_qp_ex(side.qp)) };
    assert!(unsafe { (*qp).wr_rdma_write }.is_some());
    assert!(unsafe { (*qp).wr_rdma_read }.is_none());
    let classic = Side::new(&device, Options::default());
    assert!(unsafe { call!(ibv_qp_to_qp_ex(classic.qp)) }.is_null());

    let old = SoftDevice::builder().extended_posting(false).extended_completion(false).build();
    let context = open(&old);
    let mut attr = c::ibv_cq_init_attr_ex::default();
    assert!(unsafe { c::ibv_create_cq_ex(context, &raw mut attr) }.is_none());
    let mut attr = c::ibv_qp_init_attr_ex::default();
    assert!(unsafe { c::ibv_create_qp_ex(context, &raw mut attr) }.is_none());
}

#[test]
fn completions_have_the_time_if_it_was_asked_for() {
    let device = SoftDevice::new();
    let clocks =
        c::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | c::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    let wc_flags = c::IBV_WC_STANDARD_FLAGS | clocks;
    let (a, b) = pair(&device, Options { extended: true, wc_flags, ..Options::default() });
    let list = [a.segment(0, 8)];
    let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
    assert_eq!(a.post(&[write, write]), (0, 2));
    let queue: *mut c::ibv_cq_ex = a.send_cq.cast();
    let mut attr = c::ibv_poll_cq_attr::default();
    assert_eq!(unsafe { c::ibv_start_poll(queue, &raw mut attr) }, 0);
    let first = unsafe { c::ibv_wc_read_completion_ts(queue) };
    assert_eq!(unsafe { c::ibv_next_poll(queue) }, 0);
    assert!(unsafe { c::ibv_wc_read_completion_ts(queue) } >= first);
    // Some time after 2020.
    assert!(unsafe { c::ibv_wc_read_completion_wallclock_ns(queue) } > 1_577_836_800_000_000_000);
    assert_eq!(unsafe { c::ibv_next_poll(queue) }, libc::ENOENT);
    unsafe { c::ibv_end_poll(queue) };
    let mut now =
        c::ibv_values_ex { comp_mask: c::IBV_VALUES_MASK_RAW_CLOCK, ..Default::default() };
    assert_eq!(unsafe { c::ibv_query_rt_values_ex(a.context, &raw mut now) }, Some(0));
    let nanoseconds = now.raw_clock.tv_sec.cast_unsigned() * 1_000_000_000
        + now.raw_clock.tv_nsec.cast_unsigned();
    assert!(nanoseconds >= first);
}

#[test]
fn queries_tell_what_the_device_was_made_with() {
    let gids = vec![
        GidEntry { gid: [1; 16], kind: c::IBV_GID_TYPE_ROCE_V1 },
        GidEntry { gid: [0; 16], kind: c::IBV_GID_TYPE_ROCE_V1 },
        GidEntry { gid: [2; 16], kind: c::IBV_GID_TYPE_ROCE_V2 },
    ];
    let device = SoftDevice::builder()
        .ports(2)
        .gids(gids)
        .mtu(c::IBV_MTU_2048)
        .limits(|limits| limits.max_qp_wr = 12)
        .build();
    let context = open(&device);
    let mut attr = c::ibv_device_attr_ex::default();
    assert_eq!(unsafe { c::ibv_query_device_ex(context, ptr::null(), &raw mut attr) }, Some(0));
    assert_eq!((attr.orig_attr.phys_port_cnt, attr.orig_attr.max_qp_wr), (2, 12));
    assert_eq!(attr.completion_timestamp_mask, u64::MAX);
    let mut port = c::ibv_port_attr::default();
    let length = size_of::<c::ibv_port_attr>();
    let query = |number, port: &mut c::ibv_port_attr| unsafe {
        c::ibv_query_port_ex(context, number, ptr::from_mut(port), length)
    };
    assert_eq!(query(2, &mut port), Some(0));
    assert_eq!((port.state, port.active_mtu), (c::IBV_PORT_ACTIVE, c::IBV_MTU_2048));
    assert_eq!((port.gid_tbl_len, port.lid), (3, 0));
    assert_eq!(u32::from(port.link_layer), c::IBV_LINK_LAYER_ETHERNET);
    assert_eq!(query(3, &mut port), Some(libc::EINVAL));

    let mut table = [c::ibv_gid_entry::default(); 8];
    let size = size_of::<c::ibv_gid_entry>();
    let count = unsafe { call!(_ibv_query_gid_table(context, table.as_mut_ptr(), 8, 0, size)) };
    // Both ports, without the empty entries.
    assert_eq!(count, 4);
    assert_eq!((table[3].port_num, table[3].gid_index), (2, 2));
    assert_eq!(table[3].gid_type, c::IBV_GID_TYPE_ROCE_V2);
    let mut entry = c::ibv_gid_entry::default();
    let empty = unsafe { call!(_ibv_query_gid_ex(context, 1, 1, &raw mut entry, 0, size)) };
    assert_eq!(empty, libc::ENODATA);
    let mut gid = c::ibv_gid::default();
    assert_eq!(unsafe { call!(ibv_query_gid(context, 1, 3, &raw mut gid)) }, -1);
    let mut key = 0;
    assert_eq!(unsafe { call!(ibv_query_pkey(context, 1, 0, &raw mut key)) }, 0);
    assert_eq!(u16::from_be(key), 0xffff);
    assert_eq!(unsafe { call!(ibv_get_pkey_index(context, 1, 0x8001u16.to_be())) }, 1);
    assert_eq!(unsafe { call!(ibv_close_device(context)) }, 0);
}

#[test]
fn infiniband_ports_have_a_lid_and_need_no_gid() {
    let device = SoftDevice::builder().link_layer(LinkLayer::InfiniBand).build();
    let options = Options::default();
    let (a, b) = (Side::new(&device, options), Side::new(&device, options));
    let mut port = c::ibv_port_attr::default();
    let length = size_of::<c::ibv_port_attr>();
    let code = unsafe { c::ibv_query_port_ex(a.context, 1, &raw mut port, length) };
    assert_eq!(code, Some(0));
    assert_ne!(port.lid, 0);
    for (this, other) in [(&a, &b), (&b, &a)] {
        this.to_init();
        let attr = c::ibv_qp_attr {
            qp_state: c::IBV_QPS_RTR,
            path_mtu: c::IBV_MTU_1024,
            dest_qp_num: other.qpn(),
            rq_psn: 7,
            ah_attr: c::ibv_ah_attr { dlid: port.lid, port_num: 1, ..Default::default() },
            ..Default::default()
        };
        let mask = c::IBV_QP_STATE
            | c::IBV_QP_AV
            | c::IBV_QP_PATH_MTU
            | c::IBV_QP_DEST_QPN
            | c::IBV_QP_RQ_PSN
            | c::IBV_QP_MAX_DEST_RD_ATOMIC
            | c::IBV_QP_MIN_RNR_TIMER;
        assert_eq!(this.modify(&attr, mask), 0);
        this.to_rts();
    }
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, 0);
}

fn memfd(length: usize) -> RawFd {
    let fd = unsafe { libc::memfd_create(c"memory".as_ptr(), 0) };
    assert!(fd >= 0);
    assert_eq!(unsafe { libc::ftruncate(fd, length.try_into().unwrap()) }, 0);
    fd
}

#[test]
fn a_region_over_a_file_is_named_by_its_iova_and_shows_its_offset() {
    let device = SoftDevice::new();
    let (mut a, b) = pair(&device, Options::default());
    let fd = memfd(3 * 4096);
    let access = c_int::try_from(ALL).unwrap();
    let register = |offset, length, iova| unsafe {
        call!(ibv_reg_dmabuf_mr(b.pd, offset, length, iova, fd, access))
    };
    assert!(register(5, 100, 6).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert!(register(0, 3 * 4096 + 1, 0).is_null());
    let mr = register(4096 + 5, 100, 0x7000_0005);
    assert!(!mr.is_null());
    assert_eq!(unsafe { (*mr).addr }.addr(), 4096 + 5);
    a.memory[..8].copy_from_slice(&pattern(8, 9));
    let rkey = unsafe { (*mr).rkey };
    let list = [a.segment(0, 8)];
    let write =
        Work { remote: 0x7000_0005 + 92, rkey, ..Work::new(1, c::IBV_WR_RDMA_WRITE, &list) };
    a.send(write);
    assert_eq!(reap(&a, a.send_cq).status, 0);
    let mut found = [0u8; 8];
    let at = 4096 + 5 + 92;
    assert_eq!(unsafe { libc::pread(fd, found.as_mut_ptr().cast(), 8, at) }, 8);
    assert_eq!(found.to_vec(), pattern(8, 9));
    assert_eq!(unsafe { call!(ibv_dereg_mr(mr)) }, 0);
    a.send(write);
    assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_REM_ACCESS_ERR);
    unsafe { libc::close(fd) };
}

#[test]
fn registration_refuses_what_a_device_could_not_reach() {
    let device = SoftDevice::builder().limits(|limits| limits.max_mr = 2).build();
    let side = Side::new(&device, Options::default());
    let mut byte = 0u8;
    let here: *mut u8 = &raw mut byte;
    let register = |address: *mut u8, length, access: u32| unsafe {
        let mr = call!(ibv_reg_mr(side.pd, address.cast(), length, access.cast_signed()));
        if mr.is_null() { Err(errno()) } else { Ok(mr) }
    };
    assert_eq!(register(here, 0, 0), Err(libc::EINVAL));
    assert_eq!(register(here, 1, c::IBV_ACCESS_REMOTE_WRITE), Err(libc::EINVAL));
    assert_eq!(register(here, 1, 1 << 12), Err(libc::EINVAL));
    assert_eq!(register(ptr::without_provenance_mut(8), 1, 0), Err(libc::EFAULT));
    let mr = register(here, 1, 0).unwrap();
    assert_eq!(register(here, 1, 0), Err(libc::ENOMEM));
    assert_eq!(unsafe { call!(ibv_dereg_mr(mr)) }, 0);
    let iova = here.addr() as u64 + 1;
    let mr = unsafe { call!(ibv_reg_mr_iova2(side.pd, here.cast(), 1, iova, 0)) };
    assert!(mr.is_null());
}
