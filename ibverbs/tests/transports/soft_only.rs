//! Extended reliable connections, which the kernel's software device does not have.

use std::{os::fd::AsFd, sync::Arc};

use ibverbs::{
    CompletionQueue, ConnectOptions, Inline, Operation, Posting, ProtectionDomain, QueuePair,
    RecvWr, Reset, SendWr, SharedReceiveQueueOptions, XrcDomain, XrcInitiator, XrcReceiveQueue,
    XrcTarget,
};

use crate::{
    run,
    scenarios::{ALL, Host, next},
};

impl Host {
    fn initiator(
        &self,
        posting: Posting,
        queue: &Arc<CompletionQueue<'static>>,
    ) -> QueuePair<'static, XrcInitiator, Reset> {
        QueuePair::builder(&self.domain, queue, queue)
            .max_inline(64)
            .posting(posting)
            .create()
            .unwrap()
    }
}

#[test]
fn one_connection_reaches_every_shared_queue_of_the_domain() {
    run(|host, posting| {
        let (sends, receives) = (host.queue(64), host.queue(64));
        let xrc = Arc::new(XrcDomain::open(&host.context).unwrap());
        let queue = || {
            let options = SharedReceiveQueueOptions::new(8);
            XrcReceiveQueue::create(&host.domain, &xrc, &receives, options).unwrap()
        };
        let (first, second) = (queue(), queue());
        assert_ne!(first.number(), second.number());
        let memory = host.region(vec![0; 4096], ALL);
        first.post_receive(&mut [RecvWr::to(1, memory.segment(..64).unwrap())]).unwrap();
        let room = memory.segment(64..128).unwrap();
        second.post_receive(&mut [RecvWr::to(2, room), RecvWr::new(3)]).unwrap();

        let initiator = host.initiator(posting, &sends);
        let mut target = XrcTarget::create(&xrc).unwrap();
        let (to_target, to_initiator) =
            (target.endpoint(&host.port), initiator.endpoint(&host.port));
        let options = ConnectOptions::new(&host.port).access(ALL);
        target.connect(&to_initiator, &options).unwrap();
        let initiator = initiator.connect(&to_target, &options).unwrap();

        let bytes = memory.remote().part(1024..1032).unwrap();
        let into = memory.segment(2048..2056).unwrap();
        let (old, word) =
            (memory.segment(3072..3080).unwrap(), memory.remote().part(3080..3088).unwrap());
        let mut batch = [
            SendWr::send_with_imm_into(Inline(b"second"), second.number(), 22),
            SendWr::send_into(Inline(b"first"), first.number()),
            SendWr::write_into(Inline(b"memory!!"), &bytes, first.number()),
            SendWr::read_by(into, &bytes, first.number()),
            SendWr::fetch_and_add_by(old, &word, second.number(), 5),
            SendWr::compare_and_swap_by(old, &word, second.number(), 5, 9),
            SendWr::write_with_imm_into(Inline(b"x"), &bytes, second.number(), 33).signaled(),
        ];
        initiator.post_send(&mut batch).unwrap();
        next(&sends).outcome().unwrap();
        let mut arrived: Vec<_> = (0..3)
            .map(|_| {
                let completion = next(&receives);
                let work = completion.outcome().unwrap();
                (work.id(), work.operation(), work.immediate())
            })
            .collect();
        arrived.sort_by_key(|(id, ..)| *id);
        let expected = [
            (1, Operation::RECEIVE, None),
            (2, Operation::RECEIVE, Some(22)),
            (3, Operation::RECEIVE_WRITE_WITH_IMMEDIATE, Some(33)),
        ];
        assert_eq!(arrived, expected);
        assert_eq!(memory.bytes().get::<u64>(3072).unwrap(), 5);
        assert_eq!(memory.bytes().get::<u64>(3080).unwrap(), 9);
        let mut seen = [0; 8];
        for (at, text) in [(0, &b"first"[..]), (64, b"second"), (2048, b"memory!!")] {
            memory.bytes().read(at, &mut seen[..text.len()]).unwrap();
            assert_eq!(&seen[..text.len()], text);
        }
    });
}

#[test]
fn a_domain_of_a_file_is_shared_by_who_opens_it() {
    run(|host, _| {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let first = Arc::new(XrcDomain::open_shared(&host.context, file.as_fd()).unwrap());
        let second = Arc::new(XrcDomain::open_shared(&host.context, file.as_fd()).unwrap());
        let target = XrcTarget::create(&first).unwrap();
        let opened = XrcTarget::open(&second, target.number()).unwrap();
        assert_eq!(opened.number(), target.number());
        let alone = Arc::new(XrcDomain::open(&host.context).unwrap());
        XrcTarget::open(&alone, target.number()).unwrap_err();
    });
}

#[test]
fn a_target_is_reset_and_connected_anew() {
    run(|host, posting| {
        let sends = host.queue(64);
        let xrc = Arc::new(XrcDomain::open(&host.context).unwrap());
        let options = SharedReceiveQueueOptions::new(8);
        let queue = XrcReceiveQueue::create(&host.domain, &xrc, host.queue(64), options).unwrap();
        let mut target = XrcTarget::create(&xrc).unwrap();
        let mut initiator = host.initiator(posting, &sends);
        for round in 0..2 {
            let (to_target, to_initiator) =
                (target.endpoint(&host.port), initiator.endpoint(&host.port));
            let options = ConnectOptions::new(&host.port).access(ALL);
            target.connect(&to_initiator, &options).unwrap();
            let connected = initiator.connect(&to_target, &options).unwrap();
            queue.post_receive(&mut [RecvWr::new(round)]).unwrap();
            let message = SendWr::send_into(Inline(&[]), queue.number()).signaled();
            connected.post_send(&mut [message]).unwrap();
            next(&sends).outcome().unwrap();
            assert_eq!(next(queue.completion_queue()).outcome().unwrap().id(), round);
            initiator = connected.reset().unwrap();
            target.reset().unwrap();
        }
    });
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    run(|host, _| {
        let other = Host::open(host.context.device(), &ibverbs::DeviceSelector::default());
        let xrc = XrcDomain::open(&other.context).unwrap();
        let domain = ProtectionDomain::allocate(&*host.context).unwrap();
        let queue = host.context.create_completion_queue(4).unwrap();
        let options = SharedReceiveQueueOptions::new(8);
        let error = XrcReceiveQueue::create(&domain, &xrc, &queue, options).unwrap_err();
        assert!(error.to_string().contains("different contexts"), "{error}");
    });
}
