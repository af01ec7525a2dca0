//! Completions as futures.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
    time::Duration,
};

use ibverbs::{
    Access, AsyncCompletionQueue, AsyncQueuePair, Completion, CompletionQueue, CompletionStatus,
    Error, MemoryRegion, OwnedBuffer, OwnedQueuePair, QueuePair, Rc, RejectReason, SendWr,
    SharedReceiveQueueOptions, WorkQueue, XrcDomain, XrcReceiveQueue,
};
use soft_device::CompletionFault;
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};

use crate::support::{Bench, post_credits, send_empty, send_signaled};

const LONG: Duration = Duration::from_secs(20);

type Pair = AsyncQueuePair<Rc, Vec<u8>>;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn owned(bench: &Bench) -> [OwnedQueuePair<'static, Rc, Vec<u8>>; 2] {
    let [a, b] = [(); 2].map(|()| OwnedQueuePair::create(&bench.domain, 8, 8).unwrap());
    let (to_a, to_b) = (a.endpoint(&bench.port), b.endpoint(&bench.port));
    [a.connect(&to_b, &bench.options()).unwrap(), b.connect(&to_a, &bench.options()).unwrap()]
}

fn buffer(bench: &Bench, bytes: &[u8]) -> OwnedBuffer<'static, Vec<u8>> {
    OwnedBuffer::register(&bench.domain, bytes.to_vec()).unwrap()
}

/// Runs a test on two pairs; everything must be gone afterwards.
fn on_pairs<F: Future<Output = ()>>(test: impl FnOnce(Arc<Bench>, Pair, Pair) -> F) {
    let bench = Arc::new(Bench::new());
    let runtime = runtime();
    runtime.block_on(async {
        let [a, b] = owned(&bench).map(|pair| AsyncQueuePair::new(pair).unwrap());
        let ran = timeout(LONG * 2, test(Arc::clone(&bench), a, b)).await;
        ran.unwrap();
    });
    drop(runtime);
    Arc::into_inner(bench).unwrap().end();
}

#[test]
fn messages_go_back_and_forth_between_tasks() {
    on_pairs(|bench, a, b| async move {
        let (a, b) = (Arc::new(a), Arc::new(b));
        for _ in 0..4 {
            b.post_receive(buffer(&bench, &[0; 16])).unwrap();
        }
        let echo = tokio::spawn({
            let b = Arc::clone(&b);
            async move {
                for _ in 0..100 {
                    let message = b.receive().await.unwrap();
                    let length = message.received().unwrap().len();
                    let answer = b.post(message.buffer, ..length, |part| SendWr::send(part));
                    let answer = answer.unwrap().await.unwrap();
                    answer.outcome().unwrap();
                    b.post_receive(answer.buffer).unwrap();
                }
            }
        });
        let mut spare = buffer(&bench, &[0; 16]);
        for round in 0..100_u8 {
            a.post_receive(spare).unwrap();
            let sent = a.send(buffer(&bench, &[round; 9])).unwrap().await.unwrap();
            sent.outcome().unwrap();
            let answer = a.receive().await.unwrap();
            assert_eq!(answer.received().unwrap(), [round; 9]);
            spare = answer.buffer;
        }
        echo.await.unwrap();
        assert_eq!((a.in_flight(), b.in_flight()), (0, 4));
    });
}

#[test]
fn many_tasks_share_a_queue_pair_and_wait_for_room() {
    on_pairs(|bench, a, b| async move {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = MemoryRegion::register(&bench.domain, vec![0_u8; 4096], access).unwrap();
        let a = Arc::new(a);
        let tasks: Vec<_> = (0..32_u8)
            .map(|task| {
                let (a, bench) = (Arc::clone(&a), Arc::clone(&bench));
                let at = u64::from(task) * 128;
                let place = memory.remote().part(at..at + 128).unwrap();
                tokio::spawn(async move {
                    let mut bytes = buffer(&bench, &[task; 128]);
                    for step in 0..3 {
                        bytes = loop {
                            let posted = if step == 1 {
                                a.read(bytes, &place)
                            } else {
                                a.write(bytes, &place)
                            };
                            match posted.map_err(ibverbs::Rejected::into_parts) {
                                Ok(transfer) => break transfer.await.unwrap().buffer,
                                Err((back, RejectReason::Check(Error::OutOfRange { .. }))) => {
                                    bytes = back;
                                    a.room().await.unwrap();
                                }
                                Err((_, reason)) => panic!("{reason}"),
                            }
                        };
                        assert_eq!(*bytes, [task; 128]);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        for task in 0..32_u8 {
            assert_eq!(memory.bytes().to_vec()[usize::from(task) * 128], task);
        }
        drop(b);
    });
}

#[test]
fn no_lock_is_held_while_the_caller_makes_a_request() {
    on_pairs(|bench, a, b| async move {
        b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        let sent = a.post(buffer(&bench, &[1; 8]), .., |segment| {
            assert_eq!(a.in_flight(), 0);
            SendWr::send(segment)
        });
        sent.unwrap().await.unwrap().outcome().unwrap();
    });
}

#[test]
fn dropping_a_future_neither_frees_memory_in_flight_nor_loses_its_completion() {
    on_pairs(|bench, a, b| async move {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = MemoryRegion::register(&bench.domain, vec![7_u8; 64], access).unwrap();
        let from = memory.remote().part(0..64).unwrap();
        bench.device.hold_completions();
        let read = a.read(buffer(&bench, &[0; 64]), &from).unwrap();
        let id = read.id();
        timeout(Duration::from_millis(5), read).await.unwrap_err();
        // Dropped, and still registered: the device could be writing.
        let regions =
            |leaks: Vec<String>| leaks.iter().filter(|leak| leak.contains("region")).count();
        assert_eq!((regions(bench.device.leaks()), a.in_flight()), (2, 1));
        assert!(a.claim().is_none());
        bench.device.release_completions();
        let claimed = loop {
            match a.claim() {
                Some(work) => break work,
                None => sleep(Duration::from_millis(1)).await,
            }
        };
        assert_eq!(claimed.id, id);
        claimed.outcome().unwrap();
        assert_eq!(*claimed.buffer, [7; 64]);
        drop(b);
    });
}

#[test]
fn a_future_that_is_dropped_after_its_request_has_finished_leaves_it_to_be_claimed() {
    on_pairs(|bench, a, b| async move {
        b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        let send = a.send(buffer(&bench, &[1; 8])).unwrap();
        drop(b.receive().await.unwrap());
        while a.in_flight() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(a.claim().is_none());
        let id = send.id();
        drop(send);
        assert_eq!(a.claim().unwrap().id, id);
    });
}

/// Its place may belong to another one by then.
#[test]
fn a_transfer_that_is_polled_after_its_end_gets_an_error() {
    on_pairs(|bench, a, b| async move {
        for _ in 0..2 {
            b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        }
        let mut first = a.send(buffer(&bench, &[1; 8])).unwrap();
        (&mut first).await.unwrap().outcome().unwrap();
        let second = a.send(buffer(&bench, &[2; 8])).unwrap();
        assert!(matches!((&mut first).await, Err(Error::Invalid { .. })));
        drop(first);
        assert_eq!(second.await.unwrap().buffer[..], [2; 8]);
    });
}

#[test]
fn a_receive_that_is_given_up_loses_no_message() {
    on_pairs(|bench, a, b| async move {
        b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        timeout(Duration::from_millis(5), b.receive()).await.unwrap_err();
        let sent = a.send(buffer(&bench, b"precious")).unwrap().await.unwrap();
        sent.outcome().unwrap();
        assert_eq!(b.receive().await.unwrap().received().unwrap(), b"precious");
    });
}

#[test]
fn dropping_frees_at_once_and_ends_those_who_wait() {
    on_pairs(|bench, a, b| async move {
        bench.device.hold_completions();
        b.post_receive(buffer(&bench, &[0; 64])).unwrap();
        let send = a.send(buffer(&bench, &[1; 64])).unwrap();
        let waiting = tokio::spawn(send);
        tokio::task::yield_now().await;
        drop(a);
        let left = bench.device.leaks();
        assert_eq!(left.iter().filter(|leak| leak.contains("region")).count(), 1, "{left:?}");
        assert_eq!(left.iter().filter(|leak| leak.contains("queue pair")).count(), 1, "{left:?}");
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("was dropped"), "{error}");
        bench.device.release_completions();
        let closed = b.close().unwrap();
        assert_eq!(closed.finished.len() + closed.unfinished.len(), 1);
    });
}

#[test]
fn a_queue_that_breaks_ends_those_who_wait_and_closing_gives_buffers_back() {
    on_pairs(|bench, a, b| async move {
        a.post_receive(buffer(&bench, &[3; 8])).unwrap();
        // Until both have armed their queues and looked once more.
        let calls = |verb| bench.device.calls(verb);
        while calls("ibv_req_notify_cq") < 2 || calls("ibv_poll_cq") < 4 {
            sleep(Duration::from_millis(1)).await;
        }
        bench.device.refuse("ibv_get_cq_event", 1, libc::EIO);
        a.fail().unwrap();
        let error = a.receive().await.unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO));
        let (_, reason) = a.send(buffer(&bench, &[0; 8])).unwrap_err().into_parts();
        assert!(matches!(reason, RejectReason::Check(Error::Verb { .. })), "{reason}");
        let closed = a.close().unwrap();
        assert_eq!(closed.finished.len() + closed.unfinished.len(), 1);
        drop(b);
    });
}

#[test]
fn the_segment_of_a_request_is_of_no_use_elsewhere() {
    on_pairs(|bench, a, b| async move {
        let queue = bench.queue();
        let [other, _peer] = bench.pair(&queue, &bench.queue());
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = MemoryRegion::register(&bench.domain, vec![9_u8; 8], access).unwrap();
        let from = memory.remote().part(0..8).unwrap();
        b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        let sent = a.post(buffer(&bench, &[1; 8]), .., |segment| {
            other.post_send(&mut [SendWr::read(segment, &from)]).unwrap();
            SendWr::send(segment)
        });
        let sent = sent.unwrap().await.unwrap();
        sent.outcome().unwrap();
        let mut slots = Completion::slots::<1>();
        while queue.poll(&mut slots).unwrap().is_empty() {}
        assert_eq!(slots[0].status(), CompletionStatus::LOCAL_PROTECTION_ERROR);
        assert_eq!(*sent.buffer, [1; 8]);
    });
}

#[test]
fn what_was_posted_before_tasks_shared_the_queue_pair_can_be_claimed() {
    let bench = Arc::new(Bench::new());
    let runtime = runtime();
    runtime.block_on(async {
        let [mut a, b] = owned(&bench);
        let b = AsyncQueuePair::new(b).unwrap();
        b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        let id = a.post_send(buffer(&bench, &[1; 8])).unwrap();
        let a = AsyncQueuePair::new(a).unwrap();
        let claimed = timeout(LONG, async {
            loop {
                match a.claim() {
                    Some(work) => break work,
                    None => sleep(Duration::from_millis(1)).await,
                }
            }
        });
        let claimed = claimed.await.unwrap();
        assert_eq!((claimed.id, &*claimed.buffer), (id, &[1; 8][..]));
    });
    drop(runtime);
    Arc::into_inner(bench).unwrap().end();
}

#[test]
fn a_runtime_that_ends_ends_those_who_wait_in_another() {
    let bench = Bench::new();
    let (first, second) = (runtime(), runtime());
    let [a, b] =
        first.block_on(async { owned(&bench).map(|pair| AsyncQueuePair::new(pair).unwrap()) });
    let send = a.send(buffer(&bench, &[1; 8])).unwrap();
    drop(first);
    second.block_on(async {
        let error = timeout(LONG, b.receive()).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("runtime"), "{error}");
        timeout(LONG, send).await.unwrap().unwrap_err();
        b.post_receive(buffer(&bench, &[0; 8])).unwrap_err();
    });
    let closed = a.close().unwrap();
    assert_eq!(closed.finished.len() + closed.unfinished.len(), 1);
    drop((b, second, closed));
    bench.end();
}

/// Looks at a queue pair when it is dropped.
struct Curious(Arc<Pair>);

impl Wake for Curious {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Curious {
    fn drop(&mut self) {
        assert_eq!(self.0.in_flight(), 1);
    }
}

#[test]
fn no_lock_is_held_while_a_waker_is_dropped() {
    on_pairs(|bench, a, b| async move {
        bench.device.hold_completions();
        let a = Arc::new(a);
        let curious = || Waker::from(Arc::new(Curious(Arc::clone(&a))));
        let mut send = a.send(buffer(&bench, &[1; 8])).unwrap();
        for waker in [curious(), curious()] {
            // The second replaces the first.
            assert!(Pin::new(&mut send).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(send);
        bench.device.release_completions();
        drop(b);
    });
}

#[test]
fn a_device_that_reports_what_was_not_posted_ends_everything_as_flushed() {
    on_pairs(|bench, a, b| async move {
        for _ in 0..2 {
            b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        }
        bench.device.break_completion(1, CompletionFault::WorkRequestId(1 << 50));
        drop(a.send(buffer(&bench, &[1; 8])).unwrap());
        let failed = b.receive().await.unwrap();
        failed.outcome().unwrap_err();
    });
}

#[test]
fn a_task_that_waits_for_a_queue_is_woken_for_every_completion() {
    let bench = Bench::new();
    let runtime = runtime();
    runtime.block_on(async {
        let queue = AsyncCompletionQueue::create(&bench.context, 256).unwrap();
        let [a, b] = bench.pair(&bench.queue(), queue.queue());
        let count = 5_000_u64;
        let mut slots = Completion::slots::<8>();
        for number in 0..count {
            post_credits(&b, 1);
            let sender = async {
                for _ in 0..number % 3 {
                    tokio::task::yield_now().await;
                }
                send_signaled(&a, number);
                while a.send_queue().poll(&mut Completion::slots::<1>()).unwrap().is_empty() {}
            };
            let receiver = timeout(LONG, queue.wait(&mut slots));
            let ((), found) = tokio::join!(sender, receiver);
            assert_eq!(found.unwrap().unwrap().len(), 1, "message {number}");
        }
    });
    drop(runtime);
    bench.end();
}

#[test]
fn several_tasks_wait_for_one_queue() {
    let bench = Bench::new();
    let runtime = runtime();
    runtime.block_on(async {
        let queue = Arc::new(AsyncCompletionQueue::create(&bench.context, 256).unwrap());
        let [a, b] = bench.pair(&bench.queue(), queue.queue());
        post_credits(&b, 60);
        let tasks = [(); 3].map(|()| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move {
                let mut slots = Completion::slots::<1>();
                for _ in 0..20 {
                    assert_eq!(queue.wait(&mut slots).await.unwrap().len(), 1);
                }
            })
        });
        for id in 0..60 {
            send_signaled(&a, id);
            sleep(Duration::from_micros(100)).await;
        }
        for task in tasks {
            timeout(LONG, task).await.unwrap().unwrap();
        }
    });
    drop(runtime);
    bench.end();
}

/// One that was woken takes the event that came while it had not run yet; the third one slept for that event.
#[test]
fn a_task_that_takes_the_event_of_another_wakes_it() {
    let bench = Bench::new();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let queue = AsyncCompletionQueue::create(&bench.context, 256).unwrap();
        let [a, b] = bench.pair(&bench.queue(), queue.queue());
        post_credits(&b, 3);
        let mut slots = [(); 3].map(|()| Completion::slots::<1>());
        let mut waits = slots.each_mut().map(|slots| Box::pin(queue.wait(slots)));
        let [first, second, third] = &mut waits;
        assert!(!is_ready(first.as_mut()) && !is_ready(second.as_mut()));
        send_empty(&a);
        sleep(Duration::from_millis(20)).await;
        assert!(is_ready(first.as_mut()));
        assert!(!is_ready(third.as_mut()));
        send_empty(&a);
        assert!(is_ready(second.as_mut()));
        send_empty(&a);
        assert_eq!(timeout(LONG, third).await.unwrap().unwrap().len(), 1);
    });
    drop(runtime);
    bench.end();
}

fn is_ready<F: Future>(future: Pin<&mut F>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn who_waits_with_no_slots_gets_none_at_once() {
    let bench = Bench::new();
    let runtime = runtime();
    runtime.block_on(async {
        let queue = AsyncCompletionQueue::create(&bench.context, 4).unwrap();
        assert!(timeout(LONG, queue.wait(&mut [])).await.unwrap().unwrap().is_empty());
        assert!(queue.queue().wait(&mut [], Duration::MAX).unwrap().is_empty());
    });
    drop(runtime);
    bench.end();
}

/// Does nothing.
struct Indifferent;

impl Wake for Indifferent {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn nothing_is_kept_of_a_future_that_is_given_up() {
    on_pairs(|bench, a, b| async move {
        bench.device.hold_completions();
        let waker = Arc::new(Indifferent);
        let held = Waker::from(Arc::clone(&waker));
        let context = &mut Context::from_waker(&held);
        let before = Arc::strong_count(&waker);
        let mut sends: Vec<_> = (0..8).map(|_| a.send(buffer(&bench, &[0; 8])).unwrap()).collect();
        for send in &mut sends {
            assert!(Pin::new(send).poll(context).is_pending());
        }
        for _ in 0..3 {
            assert!(Box::pin(b.receive()).as_mut().poll(context).is_pending());
            assert!(Box::pin(a.room()).as_mut().poll(context).is_pending());
        }
        drop(sends);
        assert_eq!(Arc::strong_count(&waker), before);
        bench.device.release_completions();
    });
}

/// Panics when it is woken.
struct Angry;

impl Wake for Angry {
    fn wake(self: Arc<Self>) {
        assert_eq!(Arc::strong_count(&self), 0, "a waker that panics, as this test wants it to");
    }
}

#[test]
fn a_waker_that_panics_keeps_nobody_else_asleep() {
    on_pairs(|bench, a, b| async move {
        for _ in 0..2 {
            b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        }
        let b = Arc::new(b);
        let mut angry = Box::pin(b.receive());
        let waker = Waker::from(Arc::new(Angry));
        assert!(angry.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let mut patient = tokio::spawn({
            let b = Arc::clone(&b);
            async move { b.receive().await }
        });
        sleep(Duration::from_millis(20)).await;
        for number in 0..2 {
            let sent = a.send(buffer(&bench, &[number; 8])).unwrap().await.unwrap();
            sent.outcome().unwrap();
            if number == 0 {
                let received = timeout(LONG, &mut patient).await.unwrap().unwrap();
                assert_eq!(received.unwrap().buffer[..], [0; 8]);
            }
        }
        assert_eq!(timeout(LONG, angry).await.unwrap().unwrap().buffer[..], [1; 8]);
    });
}

/// Drops the queue pair when it is woken.
struct Destroyer(Mutex<Option<Pair>>);

impl Wake for Destroyer {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn a_waker_may_drop_the_queue_pair() {
    on_pairs(|bench, a, b| async move {
        b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        bench.device.hold_completions();
        let mut first = a.send(buffer(&bench, &[1; 8])).unwrap();
        let second = a.send(buffer(&bench, &[2; 8])).unwrap();
        let waker = Waker::from(Arc::new(Destroyer(Mutex::new(Some(a)))));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
        bench.device.release_completions();
        assert!(second.await.unwrap_err().to_string().contains("was dropped"));
        first.await.unwrap().outcome().unwrap();
        drop(b);
    });
}

/// Posts from within its wake-up.
struct Relay(Arc<Pair>, Mutex<Option<OwnedBuffer<'static, Vec<u8>>>>);

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        let buffer = self.1.lock().unwrap().take();
        drop(buffer.map(|buffer| self.0.send(buffer).unwrap()));
    }
}

#[test]
fn a_waker_may_post() {
    on_pairs(|bench, a, b| async move {
        for _ in 0..2 {
            b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        }
        let a = Arc::new(a);
        bench.device.hold_completions();
        let mut first = a.send(buffer(&bench, &[1; 8])).unwrap();
        let more = Mutex::new(Some(buffer(&bench, &[2; 8])));
        let waker = Waker::from(Arc::new(Relay(Arc::clone(&a), more)));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        bench.device.release_completions();
        for byte in [1, 2] {
            assert_eq!(b.receive().await.unwrap().buffer[..], [byte; 8]);
        }
        first.await.unwrap().outcome().unwrap();
    });
}

/// The completion came under a number that nobody has, so that its own never will.
#[test]
fn a_transfer_whose_completion_had_a_wrong_number_ends_with_an_error() {
    on_pairs(|bench, a, b| async move {
        for _ in 0..2 {
            b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        }
        bench.device.hold_completions();
        for nth in [1, 2] {
            bench.device.break_completion(nth, CompletionFault::WorkRequestId(1 << 50));
        }
        let send = a.send(buffer(&bench, &[1; 8])).unwrap();
        bench.device.release_completions();
        let error = send.await.unwrap_err();
        assert!(error.to_string().contains("not outstanding"), "{error}");
        // One of its receives has lost its completion, the other was flushed.
        b.receive().await.unwrap().outcome().unwrap_err();
        b.receive().await.unwrap_err();
        for closed in [a.close().unwrap(), b.close().unwrap()] {
            assert_eq!((closed.finished.len(), closed.unfinished.len()), (0, 1));
        }
    });
}

/// What is reported twice is taken once, also when its place belongs to another request by then.
#[test]
fn a_completion_that_comes_twice_finishes_nobody_else() {
    on_pairs(|bench, a, b| async move {
        for _ in 0..3 {
            b.post_receive(buffer(&bench, &[0; 8])).unwrap();
        }
        for nth in 1..=2 {
            bench.device.break_completion(nth, CompletionFault::Repeat);
        }
        let first = a.send(buffer(&bench, &[1; 8])).unwrap();
        let id = first.id();
        let first = first.await.unwrap();
        assert_eq!((first.id, &first.buffer[..]), (id, &[1; 8][..]));
        first.outcome().unwrap();
        let received = b.receive().await.unwrap();
        assert_eq!(received.received().unwrap(), [1; 8]);
        // Nothing else is lost.
        for _ in 0..2 {
            b.receive().await.unwrap().outcome().unwrap_err();
        }
        while a.in_flight() + b.in_flight() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_queue_that_tasks_wait_for_is_taken_wherever_a_queue_is_and_lives_on_there() {
    let bench = Bench::new();
    let runtime = runtime();
    let (domain, xrc) = (&bench.domain, XrcDomain::open(&bench.context).unwrap());
    let (one, other, of_xrc, frames) = runtime.block_on(async {
        let queue = AsyncCompletionQueue::create(&bench.context, 16).unwrap();
        let shared = Arc::new(AsyncCompletionQueue::create(&bench.context, 16).unwrap());
        let builder = QueuePair::<Rc, _>::builder(domain, &queue, &shared);
        let borrowing = domain.queue_pair::<Rc>(&shared, &queue);
        let options = SharedReceiveQueueOptions::new(4);
        let of_xrc = XrcReceiveQueue::create(domain, &xrc, &queue, options);
        let frames = WorkQueue::builder(domain, &shared);
        let (one, other) = (builder.create().unwrap(), borrowing.create().unwrap());
        (one, other, of_xrc.unwrap(), frames.create().unwrap())
    });
    drop(runtime);
    let same = |a: &CompletionQueue<'_>, b: &CompletionQueue<'_>| a.id() == b.id();
    assert!(same(one.send_queue(), other.receive_queue()));
    assert!(same(one.receive_queue(), other.send_queue()));
    assert!(same(one.send_queue(), of_xrc.completion_queue()));
    assert!(same(one.receive_queue(), frames.completion_queue()));
    assert_eq!(one.send_queue().poll(&mut Completion::slots::<1>()).unwrap().len(), 0);
    drop((one, other, of_xrc, frames));
    drop(xrc);
    bench.end();
}

#[test]
fn outside_of_a_runtime_there_is_an_error_that_says_so() {
    let bench = Bench::new();
    let error = AsyncCompletionQueue::create(&bench.context, 4).unwrap_err();
    assert!(error.to_string().contains("no tokio runtime"), "{error}");
    let [a, b] = owned(&bench);
    assert!(AsyncQueuePair::new(a).unwrap_err().to_string().contains("no tokio runtime"));
    drop(b);
    bench.end();
}
