//! What newer libraries have: each says since when where it is missing.

use std::{thread, time::Instant};

use efa::{
    CompletionCounter, CountedOperations, Error, HintedPoster, ProcessingHints, Srd,
    ibverbs::{self, SendWr},
};

use crate::support::{Both, KEY, Lane, PATIENCE, has_devices, pattern, published};

/// What the library has, or `None` if it says since when it would.
fn present<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(found) => Some(found),
        Err(Error::Verbs(ibverbs::Error::Unsupported { verb, since })) => {
            assert!(since.is_some(), "{verb}");
            println!("{verb} is not there, it came with rdma-core {since:?}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn queues_tell_where_they_lie() {
    if !has_devices(1) {
        return;
    }
    let lane = Lane::open(0);
    let pair = lane.pair();
    if let Some(layout) = present(efa::query_completion_queue(&lane.queue)) {
        assert_eq!((layout.entries(), layout.entry_size()), (256, 32));
        assert!(!layout.buffer().is_null());
    }
    if let Some(queues) = present(efa::query_work_queues(&pair)) {
        assert_eq!((queues.send.entries(), queues.receive.entries()), (64, 64));
        assert_eq!(queues.send.entry_size(), 64);
        assert!(queues.send.doorbell().is_some() && queues.receive.doorbell().is_some());
        assert!(queues.send.max_batch() > 0);
    }
}

#[test]
fn requests_may_carry_hints() {
    if !has_devices(2) {
        return;
    }
    let (near, far) = (Lane::open(0), Lane::open(1));
    let Some(near_pair) = present(near.builder().processing_hints().prepare(&near.port, KEY))
    else {
        return;
    };
    let far_pair = far.pair();
    let (to_far, _to_near) = (near.peer(&far, &far_pair), far.peer(&near, &near_pair));
    let source = near.memory(pattern(1, 4096));
    let target = far.memory(vec![0; 4096]);
    let there = published(&target).at(0).unwrap();
    let poster = HintedPoster::new(&near_pair).unwrap();
    let mut batch: Vec<_> = efa::write_wrs(&source, .., &there, &to_far, 1024).unwrap().collect();
    poster.post_send(&mut batch, ProcessingHints::BURST_PPS_SENSITIVE).unwrap();
    near.successes(4);
    assert_eq!(target.into_buffer().unwrap(), source.into_buffer().unwrap());

    let plain = near.pair();
    assert!(HintedPoster::new(&plain).unwrap_err().to_string().contains("processing_hints"));
}

#[test]
fn counters_count_without_completions_being_taken() {
    if !has_devices(2) {
        return;
    }
    let (near, far) = (Lane::open(0), Lane::open(1));
    let Some(limits) = present(efa::query_counters(&near.context)) else { return };
    assert!(limits.operations.contains(CountedOperations::WRITE), "{limits:?}");
    let writes = CompletionCounter::create(&near.context).unwrap();
    let incoming = CompletionCounter::create(&far.context).unwrap();
    let counts_incoming = limits.operations.contains(CountedOperations::REMOTE_WRITE);
    let both = {
        let near_pair = near.builder().create().unwrap();
        writes.attach(&near_pair, CountedOperations::WRITE).unwrap();
        let far_pair = far.builder().create().unwrap();
        if counts_incoming {
            incoming.attach(&far_pair, CountedOperations::REMOTE_WRITE).unwrap();
        }
        let near_pair = efa::prepare(near_pair, &near.port, KEY).unwrap();
        let far_pair = efa::prepare(far_pair, &far.port, KEY).unwrap();
        Both::of(near, far, near_pair, far_pair)
    };
    let source = both.near.memory(pattern(1, 4096));
    let target = both.far.memory(vec![0; 4096]);
    let there = published(&target).at(0).unwrap();
    let mut batch: Vec<_> =
        efa::write_wrs(&source, .., &there, &both.to_far, 512).unwrap().collect();
    both.near_pair.post_send(&mut batch).unwrap();
    both.near.successes(8);
    let reaches = |counter: &CompletionCounter<'_>, count| {
        let deadline = Instant::now() + PATIENCE;
        while counter.completed().unwrap() < count {
            assert!(Instant::now() < deadline, "{:?}", counter.completed());
            thread::yield_now();
        }
        (counter.completed().unwrap(), counter.failed().unwrap())
    };
    assert_eq!(reaches(&writes, 8), (8, 0));
    if counts_incoming {
        assert_eq!(reaches(&incoming, 8), (8, 0));
    }
    writes.add(5).unwrap();
    assert_eq!(reaches(&writes, 13), (13, 0));

    // A failure is counted as one.
    let missing = SendWr::<Srd>::write_to(
        source.segment(..).unwrap(),
        &ibverbs::RemoteMemory::new(0, 4096, there.key()).unwrap().at(0).unwrap(),
        both.to_far.destination(),
    );
    both.near_pair.post_send(&mut [missing]).unwrap();
    both.near.failure();
    let deadline = Instant::now() + PATIENCE;
    while writes.failed().unwrap() == 0 {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    // Counters go after their queue pairs.
    drop(both);
}
