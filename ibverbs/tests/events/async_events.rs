//! Asynchronous events.

use std::{sync::Arc, thread, time::Duration};

use ibverbs::{
    AsyncEventKind, Completion, CompletionQueue, EventSource, PortNumber, QueuePair, Rc,
};

use crate::support::{Bench, post_credits, send_empty, send_signaled};

#[test]
fn port_events_name_the_port() {
    let bench = Bench::new();
    assert_eq!(bench.context.try_next_event().unwrap(), None);
    bench.device.set_port_active(1, false);
    bench.device.set_port_active(1, true);
    for kind in [AsyncEventKind::PORT_DOWN, AsyncEventKind::PORT_ACTIVE] {
        let event = bench.context.next_event().unwrap();
        assert_eq!((event.kind, event.source), (kind, EventSource::Port(PortNumber::FIRST)));
    }
    assert_eq!(bench.context.try_next_event().unwrap(), None);
    bench.end();
}

#[test]
fn removal_of_the_device_is_told_and_everything_can_be_dropped_afterwards() {
    let bench = Bench::new();
    let queue = bench.queue();
    let [a, b] = bench.pair(&queue, &queue);
    bench.device.raise_event(AsyncEventKind::DEVICE_FATAL.0, 0);
    let event = bench.context.next_event().unwrap();
    assert_eq!((event.kind, event.source), (AsyncEventKind::DEVICE_FATAL, EventSource::Device));
    assert!(event.to_string().contains("drop all objects"), "{event}");
    drop((a, b, queue));
    bench.end();
}

/// Traps 10 and 21.
#[test]
fn an_overrun_names_its_queue_and_destroying_that_does_not_wait() {
    let bench = Bench::new();
    let small = Arc::new(CompletionQueue::create(&bench.context, 2).unwrap());
    let [a, b] = bench.pair(&bench.queue(), &small);
    post_credits(&b, 3);
    (0..3).for_each(|_| send_empty(&a));
    let event = bench.context.next_event().unwrap();
    assert_eq!(event.kind, AsyncEventKind::QUEUE_OVERRUN);
    assert_eq!(event.source, EventSource::CompletionQueue(small.id()));
    drop((a, b, small));
    bench.end();
}

#[test]
fn a_blocking_wait_ends_with_the_event_of_another_thread() {
    let bench = Bench::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| bench.context.next_event().unwrap());
        thread::sleep(Duration::from_millis(5));
        bench.device.raise_event(AsyncEventKind::GID_CHANGED.0, 1);
        assert_eq!(waiter.join().unwrap().kind, AsyncEventKind::GID_CHANGED);
    });
    bench.end();
}

#[test]
fn an_unknown_event_is_a_value() {
    let bench = Bench::new();
    bench.device.raise_event(4711, 1);
    let event = bench.context.next_event().unwrap();
    assert_eq!((event.kind, event.source), (AsyncEventKind(4711), EventSource::Unknown));
    bench.end();
}

#[test]
fn a_refused_event_is_an_error() {
    let bench = Bench::new();
    bench.device.refuse("ibv_get_async_event", 1, libc::EIO);
    assert_eq!(bench.context.try_next_event().unwrap_err().errno(), Some(libc::EIO));
    bench.end();
}

#[test]
fn a_receive_that_nothing_matches_ends_when_its_queue_pair_is_moved_to_error() {
    let bench = Bench::new();
    let queue = bench.queue();
    let [a, b] = bench.pair(&queue, &queue);
    post_credits(&b, 3);
    let flushed = |pair: &QueuePair<'_, Rc>| {
        pair.fail().unwrap();
        let mut slots = Completion::slots::<8>();
        pair.receive_queue().poll(&mut slots).unwrap().to_vec()
    };
    let found = flushed(&b);
    assert_eq!(found.len(), 3);
    for completion in found {
        let failed = completion.outcome().unwrap_err();
        assert_eq!(failed.status, ibverbs::CompletionStatus::WORK_FLUSHED);
    }
    drop(b);
    send_signaled(&a, 1);
    drop((a, queue));
    bench.end();
}
