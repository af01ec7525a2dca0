//! Ending what was posted, and going on afterwards.

use std::{sync::Arc, time::Duration};

use ibverbs::{
    Access, CompletionStatus, ConnectOptions, DatagramOptions, Inline, Posting, QueueKey,
    QueuePair, Rc, RecvWr, Reset, SendWr, Uc, Ud,
};

use super::{Host, PATIENCE};
use crate::run;

#[test]
fn everything_that_was_posted_is_seen_to_end() {
    run(|host, posting| {
        let (a, b) = host.ends::<Rc>(posting);
        let mut receives: Vec<_> = (0..10).map(RecvWr::new).collect();
        b.pair.post_receive(&mut receives).unwrap();
        let mut ended = Vec::new();
        b.pair
            .drain(PATIENCE, |done| {
                assert_eq!(done.status(), CompletionStatus::WORK_FLUSHED);
                ended.push(done.id());
            })
            .unwrap();
        assert_eq!(ended, (0..10).collect::<Vec<_>>());
        a.pair.drain(PATIENCE, |done| panic!("nothing was posted: {done:?}")).unwrap();
    });
}

#[test]
fn full_queues_are_drained_too() {
    run(|host, posting| {
        let (_a, b) = host.ends::<Rc>(posting);
        let mut posted = 0;
        while b.pair.post_receive(&mut [RecvWr::new(posted)]).is_ok() {
            posted += 1;
            // The completion queue has to hold them all, and the last one.
            if posted == 60 {
                break;
            }
        }
        let mut ended = 0;
        b.pair.drain(PATIENCE, |_| ended += 1).unwrap();
        assert_eq!(ended, posted);
    });
}

#[test]
fn one_completion_queue_for_both_directions_is_enough() {
    run(|host, posting| {
        let queue = host.queue(64);
        let make = || {
            QueuePair::<Rc, Reset>::builder(&host.domain, &queue, &queue)
                .posting(posting)
                .create()
                .unwrap()
        };
        let (a, b) = (make(), make());
        let (to_a, to_b) = (a.endpoint(&host.port), b.endpoint(&host.port));
        let options = ConnectOptions::new(&host.port);
        let a = a.connect(&to_b, &options).unwrap();
        let b = b.connect(&to_a, &options).unwrap();
        a.post_receive(&mut [RecvWr::new(1)]).unwrap();
        b.post_receive(&mut [RecvWr::new(2), RecvWr::new(3)]).unwrap();
        let mut ended = Vec::new();
        a.drain(PATIENCE, |done| ended.push(done.id())).unwrap();
        b.drain(PATIENCE, |done| ended.push(done.id())).unwrap();
        ended.sort_unstable();
        assert_eq!(ended, [1, 2, 3]);
    });
}

#[test]
fn queue_pairs_whose_receives_must_have_memory_are_drained_too() {
    run(|host, posting| {
        let queue = host.queue(64);
        let builder = QueuePair::<Rc, Reset>::builder(&host.domain, &queue, &queue);
        let pair = builder.posting(posting).max_receive_segments(2).min_receive_segments(2);
        let pair = pair.create().unwrap();
        let to_itself = pair.endpoint(&host.port);
        let pair = pair.connect(&to_itself, &ConnectOptions::new(&host.port)).unwrap();
        let memory = host.region(vec![7; 2], Access::LOCAL_WRITE);
        let parts = [memory.segment(..1).unwrap(), memory.segment(1..).unwrap()];
        pair.post_receive(&mut [RecvWr::to(5, &parts)]).unwrap();
        let mut ended = Vec::new();
        pair.drain(PATIENCE, |done| ended.push(done.id())).unwrap();
        assert_eq!(ended, [5]);
    });
}

#[test]
fn a_drained_connection_is_made_anew() {
    run(|host: &Host, posting: Posting| {
        let (mut a, mut b) = host.ends::<Rc>(posting);
        for round in 0..3_u64 {
            b.pair.post_receive(&mut [RecvWr::to(round, b.memory.segment(..64).unwrap())]).unwrap();
            let text = round.to_ne_bytes();
            a.pair.post_send(&mut [SendWr::send(Inline(&text)).signaled()]).unwrap();
            a.sent().outcome().unwrap();
            assert_eq!(b.received().outcome().unwrap().id(), round);
            assert_eq!(b.bytes(0, 8), text);
            a.pair.drain(PATIENCE, |_| ()).unwrap();
            b.pair.drain(PATIENCE, |_| ()).unwrap();
            (a, b) = host
                .connect(a.map(|pair| pair.reset().unwrap()), b.map(|pair| pair.reset().unwrap()));
        }
    });
}

#[test]
fn unreliable_queue_pairs_are_drained_as_reliable_ones() {
    run(|host, posting| {
        let (a, _b) = host.ends::<Uc>(posting);
        a.pair.post_receive(&mut [RecvWr::new(5)]).unwrap();
        let mut ended = Vec::new();
        a.pair.drain(PATIENCE, |done| ended.push(done.id())).unwrap();
        assert_eq!(ended, [5]);
        let options = DatagramOptions::new(&host.port, QueueKey(1));
        let end = host.end::<Ud>(posting).map(|pair| pair.activate(&options).unwrap());
        end.pair.post_receive(&mut [RecvWr::new(6)]).unwrap();
        let mut ended = Vec::new();
        end.pair.drain(PATIENCE, |done| ended.push(done.id())).unwrap();
        assert_eq!(ended, [6]);
    });
}

#[test]
fn a_drain_that_somebody_steals_from_gives_up_in_time() {
    run(|host, posting| {
        let (a, _b) = host.ends::<Rc>(posting);
        let queue = Arc::clone(&a.sends);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut slots = ibverbs::Completion::slots::<16>();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    queue.poll(&mut slots).unwrap();
                }
            });
            // Either finds the last completion, so that this only must come back.
            let result = a.pair.drain(Duration::from_millis(500), |_| ());
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            if let Err(error) = result {
                assert_eq!(error.errno(), Some(libc::ETIMEDOUT), "{error}");
            }
        });
    });
}
