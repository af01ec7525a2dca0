//! Memory windows and the invalidation of their keys.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of a test"
)]

use rdma_sys as c;
use soft_device::SoftDevice;

use crate::support::{ALL, Options, Side, Work, call, on_both, pair, reap, reap_all};

fn bindable(options: Options) -> Options {
    Options { access: ALL | c::IBV_ACCESS_MW_BIND, ..options }
}

fn window(side: &Side, kind: c::ibv_mw_type) -> *mut c::ibv_mw {
    let mw = unsafe { c::ibv_alloc_mw(side.pd, kind) }.unwrap();
    assert!(!mw.is_null());
    mw
}

fn info(side: &Side, start: u64, length: u64) -> c::ibv_mw_bind_info {
    c::ibv_mw_bind_info {
        mr: side.mr,
        addr: side.address() + start,
        length,
        mw_access_flags: c::IBV_ACCESS_REMOTE_WRITE,
    }
}

fn rkey(mw: *mut c::ibv_mw) -> u32 {
    unsafe { (*mw).rkey }
}

/// The status of a write of eight bytes with a key; the pairs are of no use after a failure.
fn write(a: &Side, b: &Side, start: u64, rkey: u32) -> u32 {
    let list = [a.segment(0, 8)];
    a.send(Work { rkey, ..Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(b, start) });
    reap(a, a.send_cq).status
}

#[test]
fn a_window_of_type_1_opens_its_part_and_gets_a_new_key_with_each_binding() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, bindable(options));
        let mw = window(&b, c::IBV_MW_TYPE_1);
        let first = rkey(mw);
        let mut bind = c::ibv_mw_bind {
            wr_id: 5,
            send_flags: c::IBV_SEND_SIGNALED,
            bind_info: info(&b, 100, 50),
        };
        assert_eq!(unsafe { c::ibv_bind_mw(b.qp, mw, &raw mut bind) }, Some(0));
        assert_eq!(rkey(mw), c::ibv_inc_rkey(first));
        let done = reap(&b, b.send_cq);
        assert_eq!((done.id, done.opcode, done.status), (5, c::IBV_WC_BIND_MW, 0));
        assert_eq!(write(&a, &b, 100, rkey(mw)), 0);
        assert_eq!(write(&a, &b, 142, rkey(mw)), 0);
        // A region with a window is busy.
        assert_eq!(unsafe { call!(ibv_dereg_mr(b.mr)) }, libc::EBUSY);
        // Binding nothing unbinds.
        bind.bind_info.length = 0;
        assert_eq!(unsafe { c::ibv_bind_mw(b.qp, mw, &raw mut bind) }, Some(0));
        assert_eq!(reap(&b, b.send_cq).status, 0);
        assert_eq!(write(&a, &b, 100, rkey(mw)), c::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(unsafe { c::ibv_dealloc_mw(mw) }, Some(0));
    });
}

#[test]
fn a_window_opens_nothing_outside_its_part_and_no_access_that_it_lacks() {
    for (start, opcode) in
        [(99, c::IBV_WR_RDMA_WRITE), (143, c::IBV_WR_RDMA_WRITE), (100, c::IBV_WR_RDMA_READ)]
    {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, bindable(Options::default()));
        let mw = window(&b, c::IBV_MW_TYPE_1);
        let mut bind = c::ibv_mw_bind { bind_info: info(&b, 100, 50), ..bind_nothing() };
        assert_eq!(unsafe { c::ibv_bind_mw(b.qp, mw, &raw mut bind) }, Some(0));
        let list = [a.segment(0, 8)];
        let work = Work { rkey: rkey(mw), ..Work::new(1, opcode, &list).to(&b, start) };
        a.send(work);
        assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_REM_ACCESS_ERR);
    }
}

fn bind_nothing() -> c::ibv_mw_bind {
    c::ibv_mw_bind { wr_id: 0, send_flags: 0, bind_info: c::ibv_mw_bind_info::default() }
}

#[test]
fn a_window_of_type_2_is_bound_by_a_request_and_invalidated_by_either_side() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, bindable(options));
        let mw = window(&b, c::IBV_MW_TYPE_2);
        let key = c::ibv_inc_rkey(rkey(mw));
        let bind = Work {
            rkey: key,
            bind: Some((mw, info(&b, 0, 64))),
            ..Work::new(1, c::IBV_WR_BIND_MW, &[])
        };
        b.send(bind);
        assert_eq!(reap(&b, b.send_cq).opcode, c::IBV_WC_BIND_MW);
        assert_eq!(write(&a, &b, 0, key), 0);

        let local = Work { immediate: key, ..Work::new(2, c::IBV_WR_LOCAL_INV, &[]) };
        b.send(local);
        let done = reap(&b, b.send_cq);
        assert_eq!((done.opcode, done.status), (c::IBV_WC_LOCAL_INV, 0));
        let key = c::ibv_inc_rkey(key);
        b.send(Work { rkey: key, ..bind });
        assert_eq!(reap(&b, b.send_cq).status, 0);

        assert_eq!(b.receive(&[(8, &[])]), (0, 1));
        a.send(Work { immediate: key, ..Work::new(3, c::IBV_WR_SEND_WITH_INV, &[]) });
        assert_eq!(reap(&a, a.send_cq).status, 0);
        let done = reap(&b, b.receive_cq);
        assert_eq!((done.flags, done.immediate.to_be()), (c::IBV_WC_WITH_INV, key));
        assert_eq!(write(&a, &b, 0, key), c::IBV_WC_REM_ACCESS_ERR);
    });
}

#[test]
fn a_binding_that_cannot_be_is_a_bind_error() {
    let wrong: [fn(&Side, &mut Work<'_>); 4] = [
        |_, work| work.rkey ^= 1 << 8,
        |b, work| work.bind.as_mut().unwrap().1.addr = b.address() + 4090,
        |_, work| work.bind.as_mut().unwrap().1.mr = std::ptr::null_mut(),
        |_, work| work.bind.as_mut().unwrap().1.length = 0,
    ];
    for change in wrong {
        let device = SoftDevice::new();
        let (_a, b) = pair(&device, bindable(Options::default()));
        let mw = window(&b, c::IBV_MW_TYPE_2);
        let mut bind = Work {
            rkey: c::ibv_inc_rkey(rkey(mw)),
            bind: Some((mw, info(&b, 0, 64))),
            ..Work::new(1, c::IBV_WR_BIND_MW, &[])
        };
        change(&b, &mut bind);
        b.send(bind);
        assert_eq!(reap(&b, b.send_cq).status, c::IBV_WC_MW_BIND_ERR);
    }
    // The region does not allow it.
    let device = SoftDevice::new();
    let (_a, b) = pair(&device, Options::default());
    let mw = window(&b, c::IBV_MW_TYPE_1);
    let mut bind = c::ibv_mw_bind { bind_info: info(&b, 0, 8), ..bind_nothing() };
    assert_eq!(unsafe { c::ibv_bind_mw(b.qp, mw, &raw mut bind) }, Some(0));
    assert_eq!(reap(&b, b.send_cq).status, c::IBV_WC_MW_BIND_ERR);
}

#[test]
fn flush_and_atomic_write_need_their_access() {
    let flushes = c::IBV_ACCESS_FLUSH_GLOBAL;
    let device = SoftDevice::new();
    let options = Options { extended: true, access: ALL | flushes, ..Options::default() };
    let (a, b) = (Side::new(&device, options), Side::new(&device, options));
    for (this, other) in [(&a, &b), (&b, &a)] {
        let (attr, mask) = crate::support::init_attr();
        let attr = c::ibv_qp_attr { qp_access_flags: ALL | flushes, ..attr };
        assert_eq!(this.modify(&attr, mask), 0);
        this.to_rtr(other);
        this.to_rts();
    }
    let value = 0x1122_3344_5566_7788;
    let write = Work { compare_add: value, ..Work::new(1, c::IBV_WR_ATOMIC_WRITE, &[]).to(&b, 8) };
    let flush = Work { compare_add: 4096, ..Work::new(2, c::IBV_WR_FLUSH, &[]).to(&b, 0) };
    assert_eq!(a.post(&[write, flush]), (0, 2));
    let done = reap_all(&a, a.send_cq, 2);
    assert_eq!((done[0].opcode, done[0].status), (c::IBV_WC_ATOMIC_WRITE, 0));
    assert_eq!((done[1].opcode, done[1].status), (c::IBV_WC_FLUSH, 0));
    assert_eq!(b.memory[8..16], value.to_ne_bytes());
    let beyond = Work { compare_add: 4097, ..flush };
    a.send(beyond);
    assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_REM_ACCESS_ERR);
}
