//! Many threads at once, and objects that come and go meanwhile.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of a test"
)]

use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rdma_sys as c;
use soft_device::SoftDevice;

use crate::support::{ALL, Options, Work, call, connect, pair, poll, reap_all};

#[test]
fn pairs_of_many_threads_do_not_disturb_each_other() {
    for extended in [false, true] {
        thread::scope(|scope| {
            for seed in 0..4u8 {
                scope.spawn(move || {
                    let device = SoftDevice::new();
                    let options = Options { extended, ..Options::default() };
                    let (mut a, b) = pair(&device, options);
                    for round in 0..200u8 {
                        a.memory[..512].fill(seed ^ round);
                        assert_eq!(b.receive(&[(1, &[b.segment(0, 512)])]), (0, 1));
                        a.send(Work::new(1, c::IBV_WR_SEND, &[a.segment(0, 512)]));
                        assert_eq!(reap_all(&a, a.send_cq, 1)[0].status, 0);
                        assert_eq!(reap_all(&b, b.receive_cq, 1)[0].status, 0);
                        assert!(b.memory[..512].iter().all(|&byte| byte == seed ^ round));
                    }
                    a.close();
                    b.close();
                    assert_eq!(device.leaks(), [""; 0]);
                });
            }
        });
    }
}

#[test]
fn a_region_that_goes_while_it_is_written_ends_in_an_error_and_nowhere_else() {
    let device = SoftDevice::new();
    let options = Options::default();
    let (a, b) = pair(&device, options);
    let stop = Arc::new(AtomicBool::new(false));
    let (domain, stopped) = (b.pd.expose_provenance(), Arc::clone(&stop));
    let keys = Arc::new(std::sync::Mutex::new((0u64, 0u32)));
    let shared = Arc::clone(&keys);
    // One thread registers memory, frees it and begins again; every page is gone at once.
    let owner = thread::spawn(move || {
        let pd = std::ptr::with_exposed_provenance_mut(domain);
        let access = c_int::try_from(ALL).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        while !stopped.load(Ordering::Relaxed) {
            let pages = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
            let mr = unsafe { call!(ibv_reg_mr(pd, pages, 4096, access)) };
            let rkey = unsafe { (*mr).rkey };
            *shared.lock().unwrap() = (pages.expose_provenance() as u64, rkey);
            thread::yield_now();
            assert_eq!(unsafe { call!(ibv_dereg_mr(mr)) }, 0);
            assert_eq!(unsafe { libc::munmap(pages, 4096) }, 0);
        }
    });
    let (mut done, mut refused) = (0, 0);
    while done + refused < 2000 {
        let (remote, rkey) = *keys.lock().unwrap();
        let list = [a.segment(0, 4096)];
        a.send(Work { remote, rkey, ..Work::new(1, c::IBV_WR_RDMA_WRITE, &list) });
        match reap_all(&a, a.send_cq, 1)[0].status {
            0 => done += 1,
            c::IBV_WC_REM_ACCESS_ERR => {
                refused += 1;
                for side in [&a, &b] {
                    assert_eq!(side.set_state(c::IBV_QPS_RESET), 0);
                }
                connect(&a, &b);
            }
            other => panic!("status {other}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    owner.join().unwrap();
    assert_eq!(poll(&a, a.send_cq), []);
}

#[test]
fn two_threads_connect_their_pairs_to_each_other_without_a_deadlock() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    let sides = [a, b].map(|side| (side.qp.expose_provenance(), side));
    let [(first, a), (second, b)] = sides;
    let keys =
        [(a.segment(0, 64), b.address(), b.rkey()), (b.segment(64, 64), a.address(), a.rkey())];
    thread::scope(|scope| {
        for (qp, (mut segment, remote_addr, rkey)) in [first, second].into_iter().zip(keys) {
            scope.spawn(move || {
                let qp: *mut c::ibv_qp = std::ptr::with_exposed_provenance_mut(qp);
                for _ in 0..2000 {
                    let mut send = c::ibv_send_wr {
                        opcode: c::IBV_WR_RDMA_WRITE,
                        send_flags: c::IBV_SEND_SIGNALED,
                        sg_list: &raw mut segment,
                        num_sge: 1,
                        ..Default::default()
                    };
                    send.wr.rdma = c::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
                    let mut bad = std::ptr::null_mut();
                    assert_eq!(unsafe { c::ibv_post_send(qp, &raw mut send, &raw mut bad) }, 0);
                    let mut wc = c::ibv_wc::default();
                    let queue = unsafe { (*qp).send_cq };
                    assert_eq!(unsafe { c::ibv_poll_cq(queue, 1, &raw mut wc) }, 1);
                    assert_eq!(wc.status, 0);
                }
            });
        }
    });
}
