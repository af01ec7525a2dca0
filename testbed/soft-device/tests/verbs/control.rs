//! What a test can make a device do.

use std::time::Duration;

use rdma_sys as c;
use soft_device::{CompletionFault, SoftDevice};

use crate::support::{self, Options, Work, call, errno, on_both, open, pair, poll, reap, reap_all};

#[test]
#[expect(unsafe_code, reason = "raw verbs")]
fn the_nth_call_of_a_verb_is_refused_with_the_errno_given() {
    let device = SoftDevice::new();
    let context = open(&device);
    device.refuse("ibv_alloc_pd", 2, libc::ENOMEM);
    // SAFETY: the context is open.
    let first = unsafe { call!(ibv_alloc_pd(context)) };
    assert!(!first.is_null());
    // SAFETY: as above.
    let second = unsafe { call!(ibv_alloc_pd(context)) };
    assert!(second.is_null());
    assert_eq!(errno(), libc::ENOMEM);
    // SAFETY: as above.
    let third = unsafe { call!(ibv_alloc_pd(context)) };
    assert!(!third.is_null());
    assert_eq!(device.calls("ibv_alloc_pd"), 3);
    assert_eq!(device.leaks().len(), 3);
}

#[test]
#[should_panic(expected = "no verb ibv_pol_cq")]
fn a_misspelt_verb_is_noticed() {
    SoftDevice::new().refuse("ibv_pol_cq", 1, libc::EIO);
}

#[test]
#[expect(unsafe_code, reason = "raw verbs")]
fn a_refused_deregistration_leaves_the_region_open() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    device.fail_deregistrations(1);
    // SAFETY: the region is live, and stays so if the call is refused.
    assert_eq!(unsafe { call!(ibv_dereg_mr(b.mr)) }, libc::EBUSY);
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, 0);
    a.close();
    b.close();
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn a_refused_post_posts_nothing() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, options);
        let verb = if options.extended { "ibv_wr_complete" } else { "ibv_post_send" };
        device.refuse(verb, 1, libc::ENOMEM);
        let list = [a.segment(0, 8)];
        let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
        assert_eq!(a.post(&[write, write]), (libc::ENOMEM, 0));
        assert_eq!(poll(&a, a.send_cq), []);
        device.refuse("ibv_post_recv", 1, libc::EINVAL);
        assert_eq!(b.receive(&[(1, &[])]), (libc::EINVAL, 0));
    });
}

#[test]
#[expect(unsafe_code, reason = "raw verbs")]
fn a_broken_poll_is_told_from_an_empty_queue() {
    let device = SoftDevice::new();
    let (a, _b) = pair(&device, Options::default());
    let mut wc = c::ibv_wc::default();
    device.refuse("ibv_poll_cq", 1, libc::EIO);
    // SAFETY: the queue is live and there is room for one completion.
    assert!(unsafe { c::ibv_poll_cq(a.send_cq, 1, &raw mut wc) } < 0);
    // SAFETY: as above.
    assert_eq!(unsafe { c::ibv_poll_cq(a.send_cq, 1, &raw mut wc) }, 0);

    let (a, _b) = pair(&device, Options { extended: true, ..Options::default() });
    let mut attr = c::ibv_poll_cq_attr::default();
    device.refuse("ibv_start_poll", 1, libc::EIO);
    // SAFETY: the queue is live and extended.
    assert_eq!(unsafe { c::ibv_start_poll(a.send_cq.cast(), &raw mut attr) }, libc::EIO);
    // SAFETY: as above; the call that failed has not locked the queue.
    assert_eq!(unsafe { c::ibv_start_poll(a.send_cq.cast(), &raw mut attr) }, libc::ENOENT);
}

#[test]
fn completions_are_held_back_until_they_are_released() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (mut a, b) = pair(&device, options);
        a.memory[..8].copy_from_slice(b"early on");
        device.hold_completions();
        let list = [a.segment(0, 8)];
        let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
        assert_eq!(a.post(&[write, Work { id: 2, ..write }]), (0, 2));
        assert_eq!(poll(&a, a.send_cq), []);
        assert_eq!(&b.memory[..8], b"early on");
        device.release_completions();
        let ids: Vec<u64> = reap_all(&a, a.send_cq, 2).iter().map(|done| done.id).collect();
        assert_eq!(ids, [1, 2]);
    });
}

#[test]
fn delayed_completions_come_by_themselves() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    device.delay_completions(Duration::from_millis(20));
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(poll(&a, a.send_cq), []);
    assert_eq!(reap(&a, a.send_cq).id, 1);
}

#[test]
fn completions_can_be_wrong_in_every_way() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    let list = [a.segment(0, 8)];
    let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
    let broken = |fault| {
        device.break_completion(1, fault);
        a.send(write);
        let found = poll(&a, a.send_cq);
        // A completion that is lost leaves its place to the next one.
        a.send(Work { id: 2, ..write });
        assert_eq!(reap(&a, a.send_cq).id, 2);
        found
    };
    assert_eq!(broken(CompletionFault::Status(4711))[0].status, 4711);
    assert_eq!(broken(CompletionFault::Opcode(77))[0].opcode, 77);
    assert_eq!(broken(CompletionFault::WorkRequestId(8))[0].id, 8);
    assert_eq!(broken(CompletionFault::ByteLength(3))[0].length, 3);
    assert_eq!(broken(CompletionFault::VendorError(3))[0].vendor_err, 3);
    assert_eq!(broken(CompletionFault::QueuePairNumber(3))[0].qpn, 3);
    assert_eq!(broken(CompletionFault::Drop), []);
    assert_eq!(broken(CompletionFault::Repeat).len(), 2);
}

#[test]
#[expect(unsafe_code, reason = "raw verbs")]
fn what_would_hang_elsewhere_is_a_violation_here() {
    let device = SoftDevice::new();
    let (a, _b) = pair(&device, Options { extended: true, ..Options::default() });
    // SAFETY: the pair is live.
    let qp = unsafe { call!(ibv_qp_to_qp_ex(a.qp)) };
    // SAFETY: the pair is live and extended.
    unsafe { c::ibv_wr_start(qp) };
    // SAFETY: as above; a provider would wait for ever.
    unsafe { c::ibv_wr_start(qp) };
    // SAFETY: as above.
    unsafe { c::ibv_wr_abort(qp) };
    // SAFETY: as above.
    assert_eq!(unsafe { c::ibv_wr_complete(qp) }, libc::EINVAL);
    assert_eq!(device.violations().len(), 2, "{:?}", device.violations());
}

#[test]
fn a_device_is_listed_until_it_is_dropped_and_its_contexts_stay() {
    let device = SoftDevice::new();
    let name = device.name().to_owned();
    assert!(support::is_listed(&name));
    let (a, b) = pair(&device, Options::default());
    drop(device);
    assert!(!support::is_listed(&name));
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    assert_eq!(reap(&a, a.send_cq).status, 0);
    a.close();
    b.close();
}
