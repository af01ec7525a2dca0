//! Extended completion queues.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ibverbs::{
    Completion, CompletionChannel, CompletionFields, CompletionQueue, CompletionStatus, Error,
    Operation, Poller, SendWr,
};
use soft_device::{CompletionFault, LinkLayer, SoftDevice};

use crate::support::{Bench, post_credits, send_empty, send_signaled};

fn extended(bench: &Bench, fields: CompletionFields) -> Arc<CompletionQueue<'static>> {
    Arc::new(CompletionQueue::builder(&bench.context, 256).fields(fields).create().unwrap())
}

#[test]
fn timestamps_are_read_in_both_clocks_and_in_order() {
    let bench = Bench::new();
    let clocks = CompletionFields::TIMESTAMP | CompletionFields::WALL_CLOCK;
    let fields = clocks | CompletionFields::OPERATION;
    let queue = extended(&bench, fields);
    assert_eq!(queue.fields(), Some(fields));
    let [a, b] = bench.pair(&queue, &bench.queue());
    post_credits(&b, 40);
    let before = (bench.context.device_clock().unwrap(), SystemTime::now());
    for id in 0..40 {
        send_signaled(&a, id);
    }
    let after = (bench.context.device_clock().unwrap(), SystemTime::now());
    let mut poller = queue.poller().unwrap();
    let (mut count, mut last) = (0, before);
    while let Some(completion) = poller.next().unwrap() {
        assert_eq!(completion.id(), count);
        let work = completion.outcome().unwrap();
        assert_eq!(work.operation(), Some(Operation::SEND));
        let times = (work.timestamp().unwrap(), work.wall_clock().unwrap());
        assert!(last.0 <= times.0 && times.0 <= after.0, "{last:?} {times:?} {after:?}");
        assert!(last.1 <= times.1 && times.1 <= after.1, "{last:?} {times:?} {after:?}");
        (count, last) = (count + 1, times);
    }
    assert_eq!(count, 40);
    drop(poller);
    drop((a, b, queue));
    bench.end();
}

#[test]
fn fields_that_were_not_asked_for_are_none_and_never_called() {
    let bench = Bench::new();
    let queue = extended(&bench, CompletionFields::empty());
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 1);
    a.post_send(&mut [SendWr::send_with_imm(&[], 7)]).unwrap();
    let mut poller = queue.poller().unwrap();
    let completion = *poller.next().unwrap().unwrap();
    let work = completion.outcome().unwrap();
    assert_eq!((work.operation(), work.has_routing_header()), (None, None));
    assert_eq!(work.byte_length(), None);
    assert_eq!(work.immediate(), None);
    assert_eq!(work.invalidated_key(), None);
    assert_eq!(work.queue_pair(), None);
    assert_eq!(work.source_queue_pair(), None);
    assert_eq!((work.source_lid(), work.service_level(), work.path_bits()), (None, None, None));
    assert_eq!((work.timestamp(), work.wall_clock()), (None, None));
    assert_eq!((work.vlan(), work.flow_tag()), (None, None));
    drop(poller);
    drop((a, b, queue));
    bench.end();
}

#[test]
fn every_field_that_was_asked_for_is_there() {
    let bench = Bench::new();
    let queue = extended(&bench, CompletionFields::all());
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 1);
    a.post_send(&mut [SendWr::send_with_imm(&[], 0xC0DE)]).unwrap();
    let mut poller = queue.poller().unwrap();
    let completion = poller.next().unwrap().unwrap();
    let work = completion.outcome().unwrap();
    assert_eq!(work.operation(), Some(Operation::RECEIVE));
    assert_eq!(work.has_routing_header(), Some(false));
    assert_eq!(work.byte_length(), Some(0));
    assert_eq!(work.immediate(), Some(0xC0DE));
    assert_eq!(work.invalidated_key(), None);
    assert_eq!(work.queue_pair(), Some(b.number()));
    assert_eq!(work.source_lid(), Some(0));
    assert!(work.timestamp().is_some() && work.wall_clock().is_some());
    drop(poller);
    drop((a, b, queue));
    bench.end();
}

#[test]
fn fields_and_queues_that_the_device_lacks_are_refused_when_the_queue_is_made() {
    let bench = Bench::of(SoftDevice::builder().extended_completion(false));
    let fields = CompletionFields::TIMESTAMP;
    let error = bench.context.completion_queue(4).fields(fields).create().unwrap_err();
    assert!(matches!(&error, Error::Unsupported { .. } | Error::Verb { .. }), "{error}");
    bench.end();
    // Which has no frames.
    let bench = Bench::of(SoftDevice::builder().link_layer(LinkLayer::InfiniBand));
    let fields = CompletionFields::VLAN;
    let error = bench.context.completion_queue(4).fields(fields).create().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
    bench.end();
}

#[test]
fn a_refused_queue_is_an_error_that_names_the_verb_and_the_remedy() {
    let bench = Bench::new();
    bench.device.refuse("ibv_create_cq_ex", 1, libc::ENOMEM);
    let builder = || bench.context.completion_queue(4).fields(CompletionFields::QUEUE_PAIR);
    let error = builder().create().unwrap_err();
    assert!(error.to_string().starts_with("ibv_create_cq_ex failed: more completions"), "{error}");
    assert_eq!(builder().create().unwrap().capacity(), 4);
    bench.end();
}

#[test]
fn an_overrun_that_is_ignored_loses_completions_and_breaks_nothing() {
    let bench = Bench::new();
    let builder = CompletionQueue::builder(&bench.context, 2).ignore_overrun();
    let queue = Arc::new(builder.create().unwrap());
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 3);
    (0..3).for_each(|_| send_empty(&a));
    assert_eq!(bench.context.try_next_event().unwrap(), None);
    assert_eq!(queue.poll(&mut Completion::slots::<4>()).unwrap().len(), 2);
    drop((a, b, queue));
    bench.end();
}

#[test]
fn a_second_taker_of_the_poller_gets_an_error_and_no_deadlock() {
    let bench = Bench::new();
    let queue = extended(&bench, CompletionFields::empty());
    let poller = queue.poller().unwrap();
    let error = queue.poller().unwrap_err();
    assert!(error.to_string().contains("somebody else has the poller"), "{error}");
    drop(poller);
    let poller = Poller::of(&queue).unwrap();
    drop(queue);
    drop(poller);
    let classic = bench.queue();
    assert!(classic.poller().unwrap_err().to_string().contains("not an extended one"));
    assert_eq!(classic.fields(), None);
    drop(classic);
    bench.end();
}

#[test]
fn no_lock_is_held_while_a_completion_is_looked_at_nor_when_the_poller_is_forgotten() {
    let bench = Bench::new();
    let queue = extended(&bench, CompletionFields::empty());
    let [a, b] = bench.pair(&queue, &bench.queue());
    post_credits(&b, 3);
    (0..2).for_each(|id| send_signaled(&a, id));
    let mut poller = queue.poller().unwrap();
    assert_eq!(poller.next().unwrap().unwrap().id(), 0);
    let second = poller.next().unwrap().unwrap();
    // Both would wait for the provider's lock.
    send_signaled(&a, 2);
    assert_eq!(queue.poll(&mut Completion::slots::<4>()).unwrap().len(), 1);
    drop((a, b));
    assert_eq!(second.id(), 1);
    let _leaked = std::mem::ManuallyDrop::new(poller);
    assert!(queue.poll(&mut Completion::slots::<4>()).unwrap().is_empty());
    queue.poller().unwrap_err();
    assert_eq!(bench.device.violations(), [""; 0]);
}

#[test]
fn completions_that_were_handed_out_do_not_change_when_the_queue_goes_on() {
    let bench = Bench::new();
    let queue = extended(&bench, CompletionFields::QUEUE_PAIR);
    let [a, b] = bench.pair(&queue, &bench.queue());
    post_credits(&b, 50);
    (10..14).for_each(|id| send_signaled(&a, id));
    let mut poller = queue.poller().unwrap();
    let found = poller.poll().unwrap();
    (20..60).for_each(|id| send_signaled(&a, id));
    let ids: Vec<_> = found.iter().map(ibverbs::ExtendedCompletion::id).collect();
    assert_eq!(ids, [10, 11, 12, 13]);
    let mut later = Vec::new();
    while let Some(completion) = poller.next().unwrap() {
        later.push(*completion);
    }
    assert!(later.iter().map(ibverbs::ExtendedCompletion::id).eq(20..60));
    drop(poller);
    drop((a, b, queue));
    bench.end();
}

#[test]
fn what_a_poller_has_not_handed_out_is_left_for_the_next_one() {
    let bench = Bench::new();
    let queue = extended(&bench, CompletionFields::empty());
    let [a, b] = bench.pair(&queue, &bench.queue());
    post_credits(&b, 5);
    (0..5).for_each(|id| send_signaled(&a, id));
    assert_eq!(queue.poller().unwrap().next().unwrap().unwrap().id(), 0);
    let ids: Vec<_> = queue
        .poller()
        .unwrap()
        .poll()
        .unwrap()
        .iter()
        .map(ibverbs::ExtendedCompletion::id)
        .collect();
    assert_eq!(ids, [1, 2, 3, 4]);
    drop((a, b, queue));
    bench.end();
}

#[test]
fn a_queue_that_breaks_in_the_middle_loses_no_completion_before_that() {
    let bench = Bench::new();
    let queue = extended(&bench, CompletionFields::empty());
    let [a, b] = bench.pair(&queue, &bench.queue());
    post_credits(&b, 4);
    (0..4).for_each(|id| send_signaled(&a, id));
    bench.device.refuse("ibv_next_poll", 2, libc::EIO);
    let mut poller = queue.poller().unwrap();
    assert_eq!(poller.next().unwrap().unwrap().id(), 0);
    assert_eq!(poller.next().unwrap().unwrap().id(), 1);
    assert_eq!(poller.next().unwrap_err().errno(), Some(libc::EIO));
    assert_eq!(poller.next().unwrap().unwrap().id(), 2);
    bench.device.refuse("ibv_start_poll", 1, libc::EIO);
    assert_eq!(poller.next().unwrap().unwrap().id(), 3);
    assert_eq!(poller.next().unwrap_err().errno(), Some(libc::EIO));
    assert!(poller.next().unwrap().is_none());
    drop(poller);
    drop((a, b, queue));
    bench.end();
}

/// A look copies at most 64.
#[test]
fn as_many_completions_come_as_there_are() {
    for (reported, silent) in [(31, 1), (32, 0), (32, 1), (64, 0)] {
        let count = 2 * reported + silent;
        let bench = Bench::new();
        let queue = extended(&bench, CompletionFields::empty());
        let [a, b] = bench.pair(&queue, &queue);
        let mut poller = queue.poller().unwrap();
        let send = || {
            post_credits(&b, reported + silent);
            (0..silent).for_each(|_| send_empty(&a));
            (0..reported).for_each(|id| send_signaled(&a, id));
        };
        send();
        let mut lengths = Vec::new();
        while let [_, ..] = poller.poll().unwrap() {
            lengths.push(());
        }
        assert_eq!(lengths.len() as u64, count.div_ceil(64), "{count}");
        send();
        let mut found = 0;
        while poller.next().unwrap().is_some() {
            found += 1;
        }
        assert_eq!(found, count);
        // What is left of a look comes first, alone.
        send();
        poller.next().unwrap().unwrap();
        assert_eq!(poller.poll().unwrap().len() as u64, count.min(64) - 1);
        assert_eq!(poller.poll().unwrap().len() as u64, count.saturating_sub(64).min(64));
        assert!(poller.poll().unwrap().is_empty());
        drop(poller);
        drop((a, b, queue));
        bench.end();
    }
}

#[test]
fn failures_and_statuses_of_a_newer_library_are_values() {
    let bench = Bench::new();
    let queue = extended(&bench, CompletionFields::empty());
    let [a, b] = bench.pair(&queue, &bench.queue());
    post_credits(&b, 2);
    bench.device.break_completion(2, CompletionFault::Status(4711));
    send_signaled(&a, 5);
    let mut poller = queue.poller().unwrap();
    let failed = poller.next().unwrap().unwrap().outcome().unwrap_err();
    assert_eq!((failed.id, failed.status), (5, CompletionStatus(4711)));
    assert_eq!(failed.queue_pair, a.number());
    assert!(failed.to_string().contains("completion status 4711"), "{failed}");
    drop(poller);
    drop((a, b, queue));
    bench.end();
}

#[test]
fn a_poller_waits_for_completions_like_a_queue() {
    let bench = Bench::new();
    let channel = Arc::new(CompletionChannel::create(&bench.context).unwrap());
    let builder = CompletionQueue::builder(&bench.context, 256).channel(&channel);
    let queue = Arc::new(builder.fields(CompletionFields::empty()).create().unwrap());
    let [a, b] = bench.pair(&bench.queue(), &queue);
    post_credits(&b, 1);
    let mut poller = queue.poller().unwrap();
    assert!(poller.wait(Duration::from_millis(5)).unwrap().is_empty());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(5));
            send_empty(&a);
        });
        assert_eq!(poller.wait(Duration::from_secs(60)).unwrap().len(), 1);
    });
    drop(poller);
    drop((a, b, queue, channel));
    bench.end();
}
