//! Completion queues: size and moderation.

use std::{sync::Arc, thread, time::Duration};

use ibverbs::{Completion, CompletionChannel, CompletionQueue, Notification, RecvWr};
use soft_device::CompletionFault;

use crate::support::{Bench, post_credits, send_empty, send_signaled};

#[test]
fn a_moderation_period_beyond_what_c_can_say_is_out_of_range() {
    let bench = Bench::new();
    let queue = bench.queue();
    let error = queue.modify_moderation(16, Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("cannot be 1000000: it must be from 0 to 65535"), "{error}");
    drop(queue);
    bench.end();
}

#[test]
fn no_two_queues_have_the_same_number() {
    let bench = Bench::new();
    let (first, second) = (bench.queue(), bench.queue());
    assert_ne!(first.id(), second.id());
    assert_eq!(first.capacity(), 256);
    drop((first, second));
    bench.end();
}

#[test]
fn a_queue_grows_while_its_completions_stay_and_does_not_shrink_below_them() {
    let bench = Bench::new();
    let queue = Arc::new(CompletionQueue::create(&bench.context, 4).unwrap());
    let [a, b] = bench.pair(&queue, &bench.queue());
    post_credits(&b, 10);
    (0..4).for_each(|id| send_signaled(&a, id));
    queue.resize(10).unwrap();
    assert_eq!(queue.capacity(), 10);
    (4..10).for_each(|id| send_signaled(&a, id));
    assert_eq!(queue.resize(9).unwrap_err().errno(), Some(libc::EINVAL));
    assert_eq!(queue.capacity(), 10);
    let mut slots = Completion::slots::<16>();
    let found = queue.poll(&mut slots).unwrap();
    assert!(found.iter().map(Completion::id).eq(0..10));
    queue.resize(2).unwrap();
    assert_eq!(queue.capacity(), 2);
    drop((a, b, queue));
    bench.end();
}

#[test]
fn a_queue_is_resized_while_another_thread_polls_it() {
    let bench = Bench::new();
    let queue = Arc::new(CompletionQueue::create(&bench.context, 64).unwrap());
    let [a, b] = bench.pair(&queue, &queue);
    thread::scope(|scope| {
        scope.spawn(|| (0..200).for_each(|step| queue.resize(64 + step % 64).unwrap()));
        for id in 0..500 {
            post_credits(&b, 1);
            send_signaled(&a, id);
            let (mut slots, mut found) = (Completion::slots::<2>(), 0);
            while found < 2 {
                found += queue.poll(&mut slots).unwrap().len();
            }
        }
    });
    drop((a, b, queue));
    bench.end();
}

#[test]
fn moderation_collects_completions_before_an_event() {
    let bench = Bench::new();
    let channel = Arc::new(CompletionChannel::create(&bench.context).unwrap());
    let builder = CompletionQueue::builder(&bench.context, 64).channel(&channel);
    let queue = Arc::new(builder.create().unwrap());
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 3);
    queue.modify_moderation(3, Duration::from_millis(65)).unwrap();
    queue.request_notification(Notification::Any).unwrap();
    for _ in 0..3 {
        send_empty(&a);
    }
    // The third, or the end of the period on a slow machine.
    assert_eq!(channel.next_event().unwrap(), queue.id());
    bench.device.refuse("ibv_modify_cq", 1, libc::EOPNOTSUPP);
    let error = queue.modify_moderation(0, Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("does not support"), "{error}");
    drop((a, b, queue, channel));
    bench.end();
}

#[test]
fn a_drain_gives_up_in_time_while_others_keep_its_queue_busy() {
    let bench = Bench::new();
    let queue = bench.queue();
    let [a, b] = bench.pair(&queue, &queue);
    a.drain(Duration::MAX, |_| ()).unwrap();
    let [c, d] = bench.pair(&queue, &queue);
    b.fail().unwrap();
    // Each flushed receive is followed by the next.
    let next = || b.post_receive(&mut [RecvWr::new(1)]).unwrap();
    next();
    bench.device.break_completion(1, CompletionFault::Drop);
    let error = c.drain(Duration::from_millis(50), |_| next()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ETIMEDOUT), "{error}");
    drop((a, b, c, d, queue));
    bench.end();
}
