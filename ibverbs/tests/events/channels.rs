//! Channels and waiting.

use std::{
    hint,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{Bench, post_credits, send_empty, send_signaled};
use ibverbs::{
    Completion, CompletionChannel, CompletionQueue, Notification, QueuePair, Rc, SendWr,
};

const LONG: Duration = Duration::from_secs(20);

fn channel(bench: &Bench) -> Arc<CompletionChannel<'static>> {
    Arc::new(CompletionChannel::create(&bench.context).unwrap())
}

fn queue_on(
    bench: &Bench,
    channel: &Arc<CompletionChannel<'static>>,
) -> Arc<CompletionQueue<'static>> {
    let builder = CompletionQueue::builder(&bench.context, 256).channel(channel);
    Arc::new(builder.create().unwrap())
}

#[test]
fn an_event_is_acknowledged_by_the_call_that_takes_it_and_destroying_does_not_wait() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let queue = queue_on(&bench, &channel);
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 2);
    assert_eq!(channel.try_next_event().unwrap(), None);
    queue.request_notification(Notification::Any).unwrap();
    send_empty(&a);
    assert_eq!(channel.next_event().unwrap(), queue.id());
    // One that nobody takes is dropped with its queue.
    queue.request_notification(Notification::Any).unwrap();
    send_empty(&a);
    drop((a, b, queue, channel));
    bench.end();
}

/// One message at a time, each sent at another moment after the last was taken, so that many fall
/// between the receiver's look at the empty queue and its sleep; one that is missed there is never made up for.
#[test]
fn no_wake_up_is_lost_between_arming_and_sleeping() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let builder = CompletionQueue::builder(&bench.context, 256).channel(&channel);
    let queue = Arc::new(builder.spin(Duration::ZERO).create().unwrap());
    let [a, b] = bench.pair(&bench.queue(), &queue);
    let count = 10_000_u64;
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for sent in 0..count {
                while received.load(Ordering::Acquire) < sent {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    hint::spin_loop();
                }
                (0..sent % 97).for_each(|_| hint::spin_loop());
                post_credits(&b, 1);
                send_signaled(&a, sent);
                while a.send_queue().poll(&mut Completion::slots::<1>()).unwrap().is_empty() {}
            }
        });
        let mut slots = Completion::slots::<8>();
        for number in 0..count {
            let start = Instant::now();
            let found = queue.wait(&mut slots, LONG).unwrap();
            // The last look at the end of the time would find what was missed before.
            if found.len() != 1 || start.elapsed() >= LONG {
                over.store(true, Ordering::Relaxed);
                panic!("message {number} was slept through");
            }
            found[0].outcome().unwrap();
            received.fetch_add(1, Ordering::Release);
        }
    });
    drop((a, b, queue, channel));
    bench.end();
}

#[test]
fn threads_that_wait_for_queues_of_one_channel_each_get_their_own() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let idle = bench.queue();
    let sides: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue_on(&bench, &channel);
            let [a, b] = bench.pair(&idle, &queue);
            post_credits(&b, 64);
            (a, b, queue)
        })
        .collect();
    thread::scope(|scope| {
        for (_, b, queue) in &sides {
            scope.spawn(move || {
                let mut slots = Completion::slots::<1>();
                for _ in 0..64 {
                    let found = queue.wait(&mut slots, LONG).unwrap();
                    assert_eq!(found.len(), 1);
                    assert_eq!(found[0].queue_pair(), b.number());
                }
            });
        }
        for _ in 0..64 {
            for (a, ..) in &sides {
                send_empty(a);
                thread::sleep(Duration::from_micros(30));
            }
        }
    });
    drop((sides, idle, channel));
    bench.end();
}

#[test]
fn several_threads_wait_for_one_queue_and_each_completion_goes_to_one() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let queue = queue_on(&bench, &channel);
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 60);
    let total: usize = thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut slots = Completion::slots::<1>();
                    (0..20).map(|_| queue.wait(&mut slots, LONG).unwrap().len()).sum::<usize>()
                })
            })
            .collect();
        for _ in 0..60 {
            send_empty(&a);
            thread::sleep(Duration::from_micros(50));
        }
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).sum()
    });
    assert_eq!(total, 60);
    assert!(queue.poll(&mut Completion::slots::<1>()).unwrap().is_empty());
    drop((a, b, queue, channel));
    bench.end();
}

#[test]
fn a_wait_ends_at_its_timeout_and_not_long_before() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let queue = queue_on(&bench, &channel);
    let start = Instant::now();
    let timeout = Duration::from_millis(20);
    assert!(queue.wait(&mut Completion::slots::<4>(), timeout).unwrap().is_empty());
    assert!(start.elapsed() >= timeout);
    drop((queue, channel));
    bench.end();
}

#[test]
fn a_stale_event_of_an_earlier_wait_does_not_end_the_next_one() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let queue = queue_on(&bench, &channel);
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 1);
    queue.request_notification(Notification::Any).unwrap();
    send_empty(&a);
    let mut slots = Completion::slots::<4>();
    assert_eq!(queue.poll(&mut slots).unwrap().len(), 1);
    // The event of the completion above is still in the channel.
    let timeout = Duration::from_millis(20);
    let start = Instant::now();
    assert!(queue.wait(&mut slots, timeout).unwrap().is_empty());
    assert!(start.elapsed() >= timeout);
    assert_eq!(channel.drain_events().unwrap(), 0);
    drop((a, b, queue, channel));
    bench.end();
}

#[test]
fn events_that_others_take_do_not_make_a_thread_sleep_on() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let queue = queue_on(&bench, &channel);
    let [a, b] = bench.pair(&bench.queue(), &queue);
    for round in 1..=20 {
        post_credits(&b, 1);
        thread::scope(|scope| {
            let waiter =
                scope.spawn(|| queue.wait(&mut Completion::slots::<1>(), LONG).unwrap().len());
            while bench.device.calls("ibv_req_notify_cq") < round {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(2));
            send_empty(&a);
            while !waiter.is_finished() {
                channel.drain_events().unwrap();
            }
            assert_eq!(waiter.join().unwrap(), 1, "round {round}");
        });
    }
    drop((a, b, queue, channel));
    bench.end();
}

#[test]
fn a_queue_armed_for_solicited_messages_sleeps_through_others() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let queue = queue_on(&bench, &channel);
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 2);
    queue.request_notification(Notification::Solicited).unwrap();
    send_empty(&a);
    assert_eq!(channel.try_next_event().unwrap(), None);
    a.post_send(&mut [SendWr::send(&[]).solicited()]).unwrap();
    assert_eq!(channel.try_next_event().unwrap(), Some(queue.id()));
    drop((a, b, queue, channel));
    bench.end();
}

#[test]
fn the_descriptor_can_be_read_when_an_event_is_there() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let queue = queue_on(&bench, &channel);
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 1);
    let events = |channel: &CompletionChannel<'_>| {
        assert!(channel.as_fd().as_raw_fd() >= 0);
        channel.drain_events().unwrap()
    };
    queue.request_notification(Notification::Any).unwrap();
    assert_eq!(events(&channel), 0);
    send_empty(&a);
    assert_eq!(events(&channel), 1);
    drop((a, b, queue, channel));
    bench.end();
}

#[test]
fn what_has_no_channel_cannot_be_waited_for_and_says_how_to_get_one() {
    let bench = Bench::new();
    let queue = bench.queue();
    let error = queue.wait(&mut Completion::slots::<1>(), LONG).unwrap_err();
    assert!(error.to_string().contains(".channel(&channel)"), "{error}");
    queue.request_notification(Notification::Any).unwrap_err();
    drop(queue);
    bench.end();
}

#[test]
fn a_channel_of_another_device_is_refused() {
    let (bench, other) = (Bench::new(), Bench::new());
    let foreign = channel(&other);
    let builder = CompletionQueue::builder(&bench.context, 4).channel(&foreign);
    assert!(builder.create().unwrap_err().to_string().contains("different contexts"));
    drop(foreign);
    bench.end();
    other.end();
}

#[test]
fn refused_events_are_errors_and_waiting_goes_on_after_them() {
    let bench = Bench::new();
    let channel = channel(&bench);
    let queue = queue_on(&bench, &channel);
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 1);
    let mut slots = Completion::slots::<1>();
    bench.device.refuse("ibv_req_notify_cq", 1, libc::EIO);
    let error = queue.wait(&mut slots, LONG).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EIO));
    bench.device.refuse("ibv_get_cq_event", 1, libc::EIO);
    assert_eq!(channel.try_next_event().unwrap_err().errno(), Some(libc::EIO));
    send_empty(&a);
    assert_eq!(queue.wait(&mut slots, LONG).unwrap().len(), 1);
    drop((a, b, queue, channel));
    bench.end();
}

#[test]
fn a_queue_keeps_its_channel_and_a_queue_pair_its_queue() {
    fn assert_static<T: Send + Sync + 'static>(_: &T) {}
    let bench = Bench::new();
    let channel = channel(&bench);
    let queue = queue_on(&bench, &channel);
    let [a, b] = bench.pair(&queue, &queue);
    assert_static::<QueuePair<'static, Rc>>(&a);
    drop((channel, queue));
    post_credits(&b, 1);
    send_empty(&a);
    let mut slots = Completion::slots::<1>();
    assert_eq!(b.receive_queue().wait(&mut slots, LONG).unwrap().len(), 1);
    drop((a, b));
    bench.end();
}

#[test]
fn a_vector_that_the_device_does_not_have_is_out_of_range() {
    let bench = Bench::new();
    let vectors = bench.context.completion_vectors();
    let builder = CompletionQueue::builder(&bench.context, 4).vector(vectors);
    let error = builder.create().unwrap_err();
    assert!(error.to_string().starts_with("the completion vector cannot be 4"), "{error}");
    bench.end();
}
