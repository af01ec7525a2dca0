//! Requests that own their buffers.

use std::{
    error::Error as _,
    mem::ManuallyDrop,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use ibverbs::{
    Access, Completion, CompletionStatus, Error, Initialized, MemoryRegion, Operation, OwnedBuffer,
    OwnedQueuePair, Rc, RecvWr, RejectReason, SendWr,
};
use soft_device::CompletionFault;

use crate::support::Bench;

const LONG: Duration = Duration::from_secs(20);

type Owned = OwnedQueuePair<'static, Rc, Vec<u8>>;
type Unconnected = OwnedQueuePair<'static, Rc, Vec<u8>, Initialized>;

fn unconnected(bench: &Bench, sends: u32, receives: u32) -> Unconnected {
    let pair = OwnedQueuePair::create(&bench.domain, sends, receives).unwrap();
    pair.initialize(&bench.options()).unwrap()
}

fn pair(bench: &Bench) -> [Owned; 2] {
    let [a, b] = [(); 2].map(|()| unconnected(bench, 4, 4));
    let (to_a, to_b) = (a.endpoint(&bench.port), b.endpoint(&bench.port));
    [a.connect(&to_b, &bench.options()).unwrap(), b.connect(&to_a, &bench.options()).unwrap()]
}

fn buffer(bench: &Bench, bytes: &[u8]) -> OwnedBuffer<'static, Vec<u8>> {
    OwnedBuffer::register(&bench.domain, bytes.to_vec()).unwrap()
}

#[test]
fn a_buffer_moves_into_a_request_and_comes_back_with_what_arrived() {
    let bench = Bench::new();
    let [mut a, mut b] = pair(&bench);
    let receive = b.post_receive(buffer(&bench, &[0xff; 16])).unwrap();
    let mut message = buffer(&bench, b"................");
    message[..5].copy_from_slice(b"hello");
    let send = a.post(message, ..5, |segment| SendWr::send_with_imm(segment, 7)).unwrap();
    assert_eq!((a.in_flight(), b.in_flight()), (1, 1));

    let received = b.wait(LONG).unwrap().unwrap();
    assert_eq!(received.id, receive);
    assert_eq!(received.received().unwrap(), b"hello");
    assert_eq!(received.outcome().unwrap().immediate(), Some(7));
    assert_eq!(received.buffer[5..], [0xff; 11]);
    let sent = a.wait(LONG).unwrap().unwrap();
    assert_eq!((sent.id, sent.received().unwrap().len()), (send, 0));
    assert_eq!(&sent.buffer[..6], b"hello.");
    assert_eq!((a.in_flight(), b.in_flight()), (0, 0));

    // The same memory goes round, and can be had back.
    b.post_receive(received.buffer).unwrap();
    a.post_send(sent.buffer).unwrap();
    let received = b.wait(LONG).unwrap().unwrap();
    assert_eq!(received.received().unwrap(), b"hello...........");
    assert_eq!(received.buffer.into_buffer().unwrap(), b"hello...........");
    assert!(a.poll().unwrap().is_some() && a.poll().unwrap().is_none());
    drop((a, b));
    bench.end();
}

#[test]
fn reads_and_writes_own_their_buffers_too() {
    let bench = Bench::new();
    let [mut a, b] = pair(&bench);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = MemoryRegion::register(&bench.domain, vec![3_u8; 64], access).unwrap();
    let remote = memory.remote();
    a.post_read(buffer(&bench, &[0; 8]), &remote.part(0..8).unwrap()).unwrap();
    let read = a.wait(LONG).unwrap().unwrap();
    assert_eq!(read.outcome().unwrap().operation(), Operation::READ);
    assert_eq!(*read.buffer, [3; 8]);
    a.post_write(buffer(&bench, &[5; 8]), &remote.part(8..16).unwrap()).unwrap();
    drop(a.wait(LONG).unwrap().unwrap());
    assert_eq!(memory.bytes().to_vec()[..24], [[3; 8], [5; 8], [3; 8]].concat());
    drop((a, b, memory, read));
    bench.end();
}

#[test]
fn a_write_with_immediate_takes_a_receive_but_puts_nothing_in_its_buffer() {
    let bench = Bench::new();
    let [mut a, mut b] = pair(&bench);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = MemoryRegion::register(&bench.domain, vec![0_u8; 64], access).unwrap();
    let to = memory.remote().part(0..64).unwrap();
    b.post_receive(buffer(&bench, &[1; 8])).unwrap();
    let message = buffer(&bench, &[2; 64]);
    a.post(message, .., |segment| SendWr::write_with_imm(segment, &to, 9)).unwrap();
    let received = b.wait(LONG).unwrap().unwrap();
    assert_eq!(received.received().unwrap(), []);
    assert_eq!(received.outcome().unwrap().immediate(), Some(9));
    assert_eq!(*received.buffer, [1; 8]);
    drop((a, b, memory, received));
    bench.end();
}

#[test]
fn what_is_not_posted_comes_back_at_once() {
    let bench = Bench::new();
    let [mut a, mut b] = pair(&bench);
    let refused = a.post(buffer(&bench, &[6; 8]), ..9, |segment| SendWr::send(segment));
    let (back, reason) = refused.unwrap_err().into_parts();
    assert_eq!(*back, [6; 8]);
    assert!(matches!(reason, RejectReason::Check(Error::OutOfBounds { .. })), "{reason}");

    bench.device.refuse("ibv_wr_complete", 1, libc::ENOMEM);
    let refused = a.post_send(back).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.starts_with("nothing was posted: ibv_wr_complete failed: the queue is full"),
        "{text}"
    );
    assert!(refused.source().unwrap().to_string().contains("os error 12"), "{refused:?}");
    let (back, _) = refused.into_parts();
    bench.device.refuse("ibv_post_recv", 1, libc::EINVAL);
    let (back, _) = b.post_receive(back).unwrap_err().into_parts();
    assert_eq!(*back, [6; 8]);

    for _ in 0..4 {
        b.post_receive(buffer(&bench, &[0; 8])).unwrap();
    }
    let refused = b.post_receive(back).unwrap_err();
    let expected = "the request was not posted: the number of receives in flight cannot be 5: it must be from 0 to 4; \
                    wait until one has finished, or make the queue pair with room for more";
    assert_eq!(refused.to_string(), expected);
    let (back, _) = refused.into_parts();
    assert_eq!((a.in_flight(), b.in_flight()), (0, 4));
    drop((a, b, back));
    bench.end();
}

#[test]
fn dropping_ends_what_is_in_flight_and_frees_it_at_once() {
    let bench = Bench::new();
    let [mut a, mut b] = pair(&bench);
    bench.device.hold_completions();
    for _ in 0..4 {
        b.post_receive(buffer(&bench, &[0; 4096])).unwrap();
        a.post_send(buffer(&bench, &[7; 4096])).unwrap();
    }
    drop(b);
    drop(a);
    bench.device.release_completions();
    bench.end();
}

#[test]
fn forgetting_leaks_at_worst() {
    let bench = Bench::new();
    let [mut a, mut b] = pair(&bench);
    b.post_receive(buffer(&bench, &[0; 64])).unwrap();
    let _forgotten = ManuallyDrop::new(b);
    a.post_send(buffer(&bench, &[7; 64])).unwrap();
    a.wait(LONG).unwrap().unwrap().outcome().unwrap();
    drop(a);
    assert!(!bench.device.leaks().is_empty());
    assert_eq!(bench.device.violations(), [""; 0]);
}

#[test]
fn closing_gives_back_receives_that_nothing_matched() {
    let bench = Bench::new();
    let [a, mut b] = pair(&bench);
    let ids = [0; 3].map(|byte| b.post_receive(buffer(&bench, &[byte; 8])).unwrap());
    let closed = b.close(LONG).unwrap();
    assert!(closed.finished.iter().map(|work| work.id).eq(ids));
    for work in &closed.finished {
        assert_eq!(work.outcome().unwrap_err().status, CompletionStatus::WORK_FLUSHED);
    }
    assert!(closed.unfinished.is_empty());
    drop((a, closed));
    bench.end();
}

#[test]
fn closing_is_bounded_and_gives_back_what_never_completes() {
    let bench = Bench::new();
    let [a, mut b] = pair(&bench);
    b.post_receive(buffer(&bench, &[9; 8])).unwrap();
    bench.device.hold_completions();
    let start = Instant::now();
    let closed = b.close(Duration::from_millis(10)).unwrap();
    assert!(start.elapsed() < LONG);
    assert!(closed.finished.is_empty());
    assert_eq!(*closed.unfinished[0], [9; 8]);
    drop((a, closed));
    bench.device.release_completions();
    bench.end();
}

#[test]
fn closing_although_polling_fails_destroys_the_queue_pair_before_it_gives_buffers_back() {
    let bench = Bench::new();
    let [a, mut b] = pair(&bench);
    b.post_receive(buffer(&bench, &[0; 8])).unwrap();
    bench.device.refuse("ibv_poll_cq", 1, libc::EIO);
    let before = bench.device.calls("ibv_destroy_qp");
    let closed = b.close(LONG).unwrap();
    assert_eq!(bench.device.calls("ibv_destroy_qp"), before + 1);
    assert_eq!((closed.finished.len(), closed.unfinished.len()), (0, 1));
    drop((a, closed));
    bench.end();
}

#[test]
fn closing_that_is_refused_gives_no_buffer_back() {
    let bench = Bench::new();
    let [a, mut b] = pair(&bench);
    b.post_receive(buffer(&bench, &[0; 8])).unwrap();
    bench.device.refuse("ibv_destroy_qp", 1, libc::EBUSY);
    assert_eq!(b.close(LONG).unwrap_err().errno(), Some(libc::EBUSY));
    drop(a);
    bench.end();
}

#[test]
fn a_device_that_reports_what_was_not_posted_gets_no_buffer_out() {
    let bench = Bench::new();
    let [mut a, mut b] = pair(&bench);
    b.post_receive(buffer(&bench, &[0; 8])).unwrap();
    b.post_receive(buffer(&bench, &[0; 8])).unwrap();
    bench.device.break_completion(1, CompletionFault::WorkRequestId(1 << 40));
    bench.device.break_completion(2, CompletionFault::WorkRequestId(1 << 40));
    a.post_send(buffer(&bench, &[1; 8])).unwrap();
    let id = 1 << 40;
    assert!(matches!(b.wait(LONG).unwrap_err(), Error::UnknownWork { id: told } if told == id));
    assert!(matches!(a.wait(LONG).unwrap_err(), Error::UnknownWork { id: told } if told == id));
    assert_eq!((a.in_flight(), b.in_flight()), (1, 2));
    bench.device.break_completion(1, CompletionFault::Repeat);
    bench.device.break_completion(2, CompletionFault::Repeat);
    a.post_send(buffer(&bench, &[2; 8])).unwrap();
    assert_eq!(b.wait(LONG).unwrap().unwrap().received().unwrap(), [2; 8]);
    assert!(matches!(b.poll().unwrap_err(), Error::UnknownWork { .. }));
    assert!(b.poll().unwrap().is_none());
    assert_eq!(b.in_flight(), 1);
    drop((a, b));
    bench.end();
}

#[test]
fn a_buffer_whose_deregistration_is_refused_is_leaked_and_not_freed() {
    let bench = Bench::new();
    let [mut a, b] = pair(&bench);
    a.post_send(buffer(&bench, &[1; 8])).unwrap();
    bench.device.fail_deregistrations(1);
    drop((a, b));
    assert!(bench.device.leaks().iter().any(|leak| leak.contains("region")));
}

#[test]
fn an_event_loop_watches_its_descriptor() {
    let bench = Bench::new();
    let [mut a, mut b] = pair(&bench);
    b.post_receive(buffer(&bench, &[0; 8])).unwrap();
    b.request_notification().unwrap();
    assert!(b.poll().unwrap().is_none());
    assert!(!is_readable(&b));
    a.post_send(buffer(&bench, &[1; 8])).unwrap();
    assert!(is_readable(&b));
    assert_eq!(b.drain_events().unwrap(), 1);
    assert!(b.poll().unwrap().is_some());
    assert!(!is_readable(&b));
    drop((a, b));
    bench.end();
}

fn is_readable(descriptor: &impl AsFd) -> bool {
    let mut entries = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut entries, Some(&rustix::event::Timespec::default())).unwrap() == 1
}

#[test]
fn the_segment_of_a_request_is_of_no_use_elsewhere() {
    let bench = Bench::new();
    let [mut a, mut b] = pair(&bench);
    let [others, theirs] = [bench.queue(), bench.queue()];
    let [other, its_peer] = bench.pair(&others, &theirs);
    b.post_receive(buffer(&bench, &[0; 8])).unwrap();
    let message = buffer(&bench, &[1; 8]);
    a.post(message, .., |segment| {
        // This receive is outstanding when the buffer is back.
        other.post_receive(&mut [RecvWr::to(7, segment)]).unwrap();
        SendWr::send(segment)
    })
    .unwrap();
    let sent = a.wait(LONG).unwrap().unwrap();
    sent.outcome().unwrap();
    assert_eq!(b.wait(LONG).unwrap().unwrap().received().unwrap(), [1; 8]);

    let plain: &[u8] = &sent.buffer;
    let memory = MemoryRegion::register(&bench.domain, vec![9_u8; 8], Access::READ_ONLY).unwrap();
    its_peer.post_send(&mut [SendWr::send(memory.segment(..).unwrap())]).unwrap();
    let mut slots = Completion::slots::<1>();
    let failed = loop {
        if let [completion] = others.poll(&mut slots).unwrap() {
            break completion.status();
        }
    };
    assert_eq!(failed, CompletionStatus::LOCAL_PROTECTION_ERROR);
    assert_eq!(plain, [1; 8]);
    drop((a, b, other, its_peer, others, theirs, memory, sent));
    bench.end();
}
