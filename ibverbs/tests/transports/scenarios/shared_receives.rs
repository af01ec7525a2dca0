//! Shared receive queues.

use std::sync::Arc;

use ibverbs::{
    DeviceSelector, Error, Inline, Posting, QueuePair, Rc, RecvWr, Reset, SendWr,
    SharedReceiveQueue, SharedReceiveQueueOptions,
};

use super::{ALL, End, Host, pattern};
use crate::run;

impl Host {
    fn shared(&self, receives: u32) -> Arc<SharedReceiveQueue<'static>> {
        let options = SharedReceiveQueueOptions::new(receives).max_segments(2);
        Arc::new(SharedReceiveQueue::create(&self.domain, options).unwrap())
    }

    /// A queue pair that takes its receives from a shared queue, and one that is connected to it.
    fn ends_into(
        &self,
        queue: &Arc<SharedReceiveQueue<'static>>,
        posting: Posting,
    ) -> (End<Rc>, End<Rc>) {
        let (sends, receives) = (self.queue(64), self.queue(64));
        let pair = QueuePair::<Rc, Reset>::builder(&self.domain, &sends, &receives)
            .shared_receive_queue(queue)
            .max_inline(64)
            .posting(posting)
            .create()
            .unwrap();
        let end = End { pair, sends, receives, memory: self.region(vec![0; 8192], ALL) };
        self.connect(self.end(posting), end)
    }
}

#[test]
fn messages_to_any_of_its_queue_pairs_take_the_next_receive() {
    run(|host, posting| {
        let queue = host.shared(16);
        let memory = host.region(vec![0; 8192], ALL);
        let (a, to_a) = host.ends_into(&queue, posting);
        let (b, to_b) = host.ends_into(&queue, posting);
        let mut receives: Vec<_> = (0..4)
            .map(|id| RecvWr::to(id as u64, memory.segment(id * 64..id * 64 + 64).unwrap()))
            .collect();
        queue.post_receive(&mut receives).unwrap();
        for (round, (from, to)) in
            [(&a, &to_a), (&b, &to_b), (&b, &to_b), (&a, &to_a)].into_iter().enumerate()
        {
            let text = pattern(u8::try_from(round).unwrap(), 48);
            from.pair.post_send(&mut [SendWr::send(Inline(&text)).signaled()]).unwrap();
            from.sent().outcome().unwrap();
            let completion = to.received();
            let work = completion.outcome().unwrap();
            assert_eq!(work.id(), round as u64);
            assert_eq!(work.queue_pair(), to.pair.number());
            let mut arrived = vec![0; 48];
            memory.bytes().read(round * 64, &mut arrived).unwrap();
            assert_eq!(arrived, text);
        }
    });
}

#[test]
fn receives_posted_to_a_queue_pair_that_shares_are_refused_with_the_remedy() {
    run(|host, posting| {
        let queue = host.shared(4);
        let (_from, to) = host.ends_into(&queue, posting);
        assert_eq!(to.pair.shared_receive_queue().unwrap().as_raw(), queue.as_raw());
        let error = to.pair.post_receive(&mut [RecvWr::new(1)]).unwrap_err();
        assert!(matches!(error.error(), Error::Invalid { .. }), "{error}");
        assert!(error.error().to_string().contains("SharedReceiveQueue"), "{}", error.error());
    });
}

#[test]
fn the_device_says_how_large_it_is_and_when_it_warns() {
    run(|host, _| {
        let queue = host.shared(10);
        let attributes = queue.query().unwrap();
        assert!(attributes.max_requests >= 10, "{attributes:?}");
        assert!(attributes.max_segments >= 2, "{attributes:?}");
        assert_eq!(attributes.limit, 0);
        queue.post_receive(&mut [RecvWr::new(1), RecvWr::new(2), RecvWr::new(3)]).unwrap();
        queue.set_limit(2).unwrap();
        assert_eq!(queue.query().unwrap().limit, 2);
        queue.set_limit(attributes.max_requests + 1).unwrap_err();
    });
}

#[test]
fn a_request_that_is_too_long_is_named_and_those_before_it_are_not_lost() {
    run(|host, posting| {
        let queue = host.shared(4);
        let (from, to) = host.ends_into(&queue, posting);
        let memory = host.region(vec![0; 64], ALL);
        let segment = memory.segment(..16).unwrap();
        let many = vec![segment; queue.max_segments() as usize + 1];
        let mut batch = [RecvWr::to(1, segment), RecvWr::to(2, many.as_slice())];
        let error = queue.post_receive(&mut batch).unwrap_err();
        assert_eq!((error.posted(), error.refused()), (0, Some(1)));
        queue.post_receive(&mut batch[..1]).unwrap();
        from.pair.post_send(&mut [SendWr::send(Inline(b"one")).signaled()]).unwrap();
        from.sent().outcome().unwrap();
        assert_eq!(to.received().outcome().unwrap().id(), 1);
    });
}

#[test]
fn a_queue_that_is_full_says_so() {
    run(|host, _| {
        let queue = host.shared(4);
        let room = queue.query().unwrap().max_requests;
        let mut refused = None;
        for id in 0..=u64::from(room) {
            if let Err(error) = queue.post_receive(&mut [RecvWr::new(id)]) {
                refused = Some((id, error));
                break;
            }
        }
        let (id, error) = refused.expect("one more than there is room for");
        assert!(id >= 4);
        assert_eq!(error.errno(), Some(libc::ENOMEM), "{error}");
        assert_eq!(error.refused(), Some(0));
    });
}

#[test]
fn queue_pairs_keep_their_shared_queue_alive() {
    run(|host, posting| {
        let queue = host.shared(4);
        let (from, to) = host.ends_into(&queue, posting);
        queue.post_receive(&mut [RecvWr::to(1, to.memory.segment(..64).unwrap())]).unwrap();
        drop(queue);
        from.pair.post_send(&mut [SendWr::send(Inline(b"still")).signaled()]).unwrap();
        from.sent().outcome().unwrap();
        to.received().outcome().unwrap();
        assert_eq!(to.bytes(0, 5), b"still");
    });
}

#[test]
fn a_shared_queue_of_another_device_is_refused() {
    run(|host, posting| {
        let other = Host::open(host.context.device(), &DeviceSelector::default());
        let queue = other.shared(4);
        let (sends, receives) = (host.queue(64), host.queue(64));
        let error = QueuePair::<Rc, Reset>::builder(&host.domain, &sends, &receives)
            .shared_receive_queue(&queue)
            .posting(posting)
            .create()
            .unwrap_err();
        assert!(error.to_string().contains("different contexts"), "{error}");
    });
}
