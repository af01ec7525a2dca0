//! Flush and atomic write: extended posting only, and only where the device has them.

use ibverbs::{
    Access, ConnectOptions, Error, FlushScope, Inline, Operation, Operations, Placement, Posting,
    Rc, SendWr,
};

use super::{ALL, Host};
use crate::run;

const FLUSHES: Access = ALL.union(Access::FLUSH_GLOBAL);
const OPERATIONS: Operations =
    Operations::COMMON.union(Operations::FLUSH).union(Operations::ATOMIC_WRITE);

#[test]
fn a_flush_and_an_atomic_write_follow_the_bytes_they_are_about() {
    run(|host, posting| {
        if posting == Posting::Classic {
            return;
        }
        let end = || host.end_for::<Rc>(posting, OPERATIONS);
        let (a, b) = match (end(), end()) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(error), _) | (_, Err(error)) => {
                println!("skipped: the device has neither flush nor atomic write: {error}");
                return;
            }
        };
        let options = ConnectOptions::new(&host.port).access(FLUSHES);
        let (to_a, to_b) = (a.pair.endpoint(&host.port), b.pair.endpoint(&host.port));
        let a = a.map(|pair| pair.connect(&to_b, &options).unwrap());
        let _b = b.map(|pair| pair.connect(&to_a, &options).unwrap());
        let target = host.region(vec![0; 4096], FLUSHES);
        let remote = target.remote();
        let (bytes, word) = (remote.part(8..24).unwrap(), remote.part(0..8).unwrap());
        let mut batch = [
            SendWr::write(Inline(b"sixteen bytes ok"), &bytes),
            SendWr::flush(&bytes, Placement::GLOBAL, FlushScope::Range).id(1).signaled(),
            SendWr::atomic_write(&word, 0x0102_0304_0506_0708).id(2).signaled(),
        ];
        a.pair.post_send(&mut batch).unwrap();
        let completion = a.sent();
        assert_eq!(completion.outcome().unwrap().operation(), Operation::FLUSH);
        let completion = a.sent();
        assert_eq!(completion.outcome().unwrap().operation(), Operation::ATOMIC_WRITE);
        assert_eq!(target.bytes().get::<u64>(0).unwrap(), 0x0102_0304_0506_0708);
        let mut arrived = [0; 16];
        target.bytes().read(8, &mut arrived).unwrap();
        assert_eq!(&arrived, b"sixteen bytes ok");
    });
}

#[test]
fn a_queue_pair_that_was_not_made_for_them_refuses_them() {
    run(|host: &Host, posting| {
        let (a, b) = host.ends::<Rc>(posting);
        let word = b.memory.remote().part(0..8).unwrap();
        for wr in [
            SendWr::flush(&word, Placement::GLOBAL, FlushScope::Region),
            SendWr::atomic_write(&word, 1),
        ] {
            let error = a.pair.post_send(&mut [wr]).unwrap_err();
            assert!(matches!(error.error(), Error::Invalid { .. }), "{}", error.error());
            let text = match posting {
                Posting::Classic => {
                    "cannot go through `ibv_post_send`: name it in `QueuePairBuilder"
                }
                Posting::Extended => "the queue pair was not made for a",
            };
            assert!(error.to_string().contains(text), "{error}");
        }
        // The queue pair goes on as if nothing had been.
        a.pair.post_send(&mut [SendWr::write(Inline(b"x"), &word).signaled()]).unwrap();
        a.sent().outcome().unwrap();
    });
}

#[test]
fn an_atomic_write_is_of_eight_bytes_at_a_multiple_of_eight() {
    run(|host, posting| {
        let (a, b) = host.ends::<Rc>(posting);
        for range in [4..12, 0..7] {
            let word = b.memory.remote().part(range).unwrap();
            let error = a.pair.post_send(&mut [SendWr::atomic_write(&word, 1)]).unwrap_err();
            let text = error.error().to_string();
            assert!(text.contains("at multiples of 8") || text.contains("a whole word"), "{text}");
        }
    });
}
