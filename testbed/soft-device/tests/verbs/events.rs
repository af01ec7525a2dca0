//! Completion channels, notification, asynchronous events.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of a test"
)]

use std::{ffi::c_int, ptr, thread, time::Duration};

use rdma_sys as c;
use soft_device::SoftDevice;

use crate::support::{Options, Side, Work, call, errno, on_both, pair, poll, reap};

fn with_channel(options: Options) -> Options {
    Options { channel: true, ..options }
}

fn is_readable(fd: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

fn fd(side: &Side) -> c_int {
    unsafe { (*side.channel).fd }
}

fn next_event(side: &Side) -> *mut c::ibv_cq {
    let (mut queue, mut data) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!(unsafe { call!(ibv_get_cq_event(side.channel, &raw mut queue, &raw mut data)) }, 0);
    queue
}

fn arm(queue: *mut c::ibv_cq, solicited_only: bool) {
    assert_eq!(unsafe { c::ibv_req_notify_cq(queue, c_int::from(solicited_only)) }, 0);
}

#[test]
fn an_armed_queue_raises_one_event_and_no_more_until_it_is_armed_again() {
    on_both(|options| {
        let device = SoftDevice::new();
        let (a, b) = pair(&device, with_channel(options));
        let write = || a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
        write();
        assert!(!is_readable(fd(&a)));
        // What is in the queue when it is armed raises nothing.
        arm(a.send_cq, false);
        assert!(!is_readable(fd(&a)));
        write();
        write();
        assert_eq!(next_event(&a), a.send_cq);
        assert!(!is_readable(fd(&a)));
        unsafe { call!(ibv_ack_cq_events(a.send_cq, 1)) };
        assert_eq!(poll(&a, a.send_cq).len(), 3);
        a.close();
    });
}

#[test]
fn a_queue_armed_for_solicited_completions_waits_for_one_or_for_a_failure() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, with_channel(Options::default()));
    assert_eq!(b.receive(&[(1, &[]), (2, &[]), (3, &[])]), (0, 3));
    arm(b.receive_cq, true);
    let list = [];
    let send = Work::new(1, c::IBV_WR_SEND, &list);
    a.send(send);
    assert!(!is_readable(fd(&b)));
    a.send(send.flags(c::IBV_SEND_SIGNALED | c::IBV_SEND_SOLICITED));
    assert!(is_readable(fd(&b)));
    next_event(&b);
    arm(b.receive_cq, true);
    assert_eq!(b.set_state(c::IBV_QPS_ERR), 0);
    assert!(is_readable(fd(&b)));
}

#[test]
fn waiting_for_an_event_ends_when_it_comes_or_at_once_if_the_descriptor_does_not_block() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, with_channel(Options::default()));
    arm(b.receive_cq, false);
    assert_eq!(b.receive(&[(1, &[])]), (0, 1));
    let (channel, queue) = (b.channel.expose_provenance(), b.receive_cq.expose_provenance());
    let waiter = thread::spawn(move || {
        let (mut found, mut data) = (ptr::null_mut(), ptr::null_mut());
        let channel = ptr::with_exposed_provenance_mut(channel);
        let code = unsafe { call!(ibv_get_cq_event(channel, &raw mut found, &raw mut data)) };
        assert_eq!((code, found.addr()), (0, queue));
        unsafe { call!(ibv_ack_cq_events(found, 1)) };
    });
    thread::sleep(Duration::from_millis(10));
    a.send(Work::new(1, c::IBV_WR_SEND, &[]));
    waiter.join().unwrap();
    unsafe { libc::fcntl(fd(&b), libc::F_SETFL, libc::O_NONBLOCK) };
    let (mut found, mut data) = (ptr::null_mut(), ptr::null_mut());
    let code = unsafe { call!(ibv_get_cq_event(b.channel, &raw mut found, &raw mut data)) };
    assert_eq!((code, errno()), (-1, libc::EAGAIN));
    b.close();
}

#[test]
fn a_queue_with_an_event_that_is_not_acknowledged_is_not_destroyed() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, with_channel(Options::default()));
    arm(a.send_cq, false);
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    next_event(&a);
    unsafe {
        assert_eq!(call!(ibv_destroy_qp(a.qp)), 0);
    }
    assert_eq!(unsafe { call!(ibv_destroy_cq(a.send_cq)) }, libc::EBUSY);
    assert_eq!(device.violations(), ["ibv_destroy_cq: 1 events are not acknowledged"]);
    unsafe { call!(ibv_ack_cq_events(a.send_cq, 1)) };
    assert_eq!(unsafe { call!(ibv_destroy_cq(a.send_cq)) }, 0);
}

#[test]
fn destroying_a_queue_takes_its_events_back() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, with_channel(Options::default()));
    arm(a.send_cq, false);
    a.send(Work::new(1, c::IBV_WR_RDMA_WRITE, &[a.segment(0, 8)]).to(&b, 0));
    let channel = fd(&a);
    assert!(is_readable(channel));
    unsafe {
        assert_eq!(call!(ibv_destroy_qp(a.qp)), 0);
    }
    assert_eq!(unsafe { call!(ibv_destroy_cq(a.send_cq)) }, 0);
    assert!(!is_readable(channel));
    assert_eq!(unsafe { call!(ibv_destroy_comp_channel(a.channel)) }, libc::EBUSY);
}

fn next_async(side: &Side) -> c::ibv_async_event {
    let mut event = c::ibv_async_event::default();
    assert_eq!(unsafe { call!(ibv_get_async_event(side.context, &raw mut event)) }, 0);
    event
}

#[test]
fn an_overrun_queue_raises_an_event_once() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options { cqe: 2, ..Options::default() });
    let list = [a.segment(0, 8)];
    let write = Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0);
    assert_eq!(a.post(&[write; 4]), (0, 4));
    let mut event = next_async(&a);
    assert_eq!(event.event_type, c::IBV_EVENT_CQ_ERR);
    assert_eq!(unsafe { event.element.cq }, a.send_cq);
    let fd = unsafe { (*a.context).async_fd };
    assert!(!is_readable(fd));
    assert_eq!(poll(&a, a.send_cq).len(), 2);
    unsafe { call!(ibv_destroy_qp(a.qp)) };
    assert_eq!(unsafe { call!(ibv_destroy_cq(a.send_cq)) }, libc::EBUSY);
    unsafe { call!(ibv_ack_async_event(&raw mut event)) };
    assert_eq!(unsafe { call!(ibv_destroy_cq(a.send_cq)) }, 0);
}

#[test]
fn a_pair_that_is_asked_for_too_much_raises_an_event() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    let list = [a.segment(0, 8)];
    a.send(Work { rkey: 0, ..Work::new(1, c::IBV_WR_RDMA_WRITE, &list).to(&b, 0) });
    assert_eq!(reap(&a, a.send_cq).status, c::IBV_WC_REM_ACCESS_ERR);
    let mut event = next_async(&b);
    assert_eq!(event.event_type, c::IBV_EVENT_QP_ACCESS_ERR);
    assert_eq!(unsafe { event.element.qp }, b.qp);
    unsafe { call!(ibv_ack_async_event(&raw mut event)) };
    b.close();
}

#[test]
fn events_of_ports_come_to_every_context() {
    let device = SoftDevice::new();
    let (a, b) = pair(&device, Options::default());
    device.set_port_active(1, false);
    for side in [&a, &b] {
        let event = next_async(side);
        assert_eq!(event.event_type, c::IBV_EVENT_PORT_ERR);
        assert_eq!(unsafe { event.element.port_num }, 1);
    }
    device.raise_event(c::IBV_EVENT_DEVICE_FATAL, 0);
    assert_eq!(next_async(&a).event_type, c::IBV_EVENT_DEVICE_FATAL);
}
