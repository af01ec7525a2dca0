//! Batches that are refused: which request it was, and what became of the others.

use std::sync::Arc;

use ibverbs::{
    Inline, Posting, QueuePair, Rc, RecvWr, RemoteMemory, SendWr, SharedReceiveQueue,
    SharedReceiveQueueOptions, WorkQueue, XrcDomain, XrcInitiator, XrcReceiveQueue,
};
use soft_device::SoftDevice;

use crate::{
    common::{End, Host, Shape, is_quiet},
    support::{POSTINGS, assert_clean, open},
};

/// Requests that each write a byte of their own to a place of their own.
fn writes<'a>(from: &'a End, to: &RemoteMemory, count: usize) -> Vec<SendWr<'a, Rc>> {
    from.put(0, &(1..=200).collect::<Vec<u8>>());
    (0..count)
        .map(|at| {
            let byte = from.memory.segment(at..=at).unwrap();
            SendWr::write(byte, &to.at(at as u64).unwrap()).id(at as u64).signaled()
        })
        .collect()
}

/// How many of these writes arrived; each must have if the one behind it has.
fn arrived(at: &End) -> usize {
    let bytes = at.get(0, 200);
    let count = bytes.iter().take_while(|byte| **byte != 0).count();
    assert_eq!(bytes[..count], (1..=200).collect::<Vec<u8>>()[..count]);
    assert!(bytes[count..].iter().all(|byte| *byte == 0));
    count
}

fn drain(end: &End, ids: std::ops::Range<u64>) {
    for id in ids {
        assert_eq!(end.sent().outcome().unwrap().id(), id);
    }
    assert!(is_quiet(&end.sends));
}

fn ends(host: &Host, posting: Posting) -> (End, End) {
    host.ends(Shape { memory: 256, ..posting.into() })
}

#[test]
fn classic_posting_stops_at_the_first_request_without_room_and_says_which() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = ends(&host, Posting::Classic);
    let room = a.pair.capabilities().send_requests as usize;
    let mut batch = writes(&a, &b.memory.remote(), room + 8);
    let error = a.pair.post_send(&mut batch).unwrap_err();
    assert_eq!((error.posted(), error.refused()), (room, Some(room)));
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    assert!(error.error().to_string().contains("the queue is full"), "{}", error.error());
    let text = error.to_string();
    let number = room + 1;
    let expected = format!(
        "request {number} (those before it were posted): ibv_post_send failed: the queue is full; "
    );
    assert!(text.starts_with(&expected), "{text}");
    drain(&a, 0..room as u64);
    assert_eq!(arrived(&b), room);
    // The rest is still the caller's, as it was.
    a.pair.post_send(&mut batch[room..]).unwrap();
    drain(&a, room as u64..room as u64 + 8);
    assert_eq!(arrived(&b), room + 8);
}

#[test]
fn extended_posting_takes_a_whole_batch_or_nothing_of_it() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = ends(&host, Posting::Extended);
    let room = a.pair.capabilities().send_requests as usize;
    let mut batch = writes(&a, &b.memory.remote(), room + 8);
    let error = a.pair.post_send(&mut batch).unwrap_err();
    assert_eq!((error.posted(), error.refused()), (0, None));
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    let expected = "nothing was posted: ibv_wr_complete failed: the queue is full; ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(is_quiet(&a.sends));
    assert_eq!(arrived(&b), 0);
    let (first, second) = batch.split_at_mut(room);
    a.pair.post_send(first).unwrap();
    drain(&a, 0..room as u64);
    a.pair.post_send(second).unwrap();
    drain(&a, room as u64..room as u64 + 8);
    assert_eq!(arrived(&b), room + 8);
}

#[test]
fn a_call_that_is_refused_loses_nothing_of_the_batch() {
    for (posting, verb) in
        [(Posting::Extended, "ibv_wr_complete"), (Posting::Classic, "ibv_post_send")]
    {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = ends(&host, posting);
        let mut batch = writes(&a, &b.memory.remote(), 5);
        device.refuse(verb, 1, libc::EINVAL);
        let error = a.pair.post_send(&mut batch).unwrap_err();
        assert_eq!(error.posted(), 0);
        assert!(error.error().to_string().contains(verb), "{}", error.error());
        assert_eq!(arrived(&b), 0);
        a.pair.post_send(&mut batch).unwrap();
        drain(&a, 0..5);
        assert_eq!(arrived(&b), 5);
        drop((a, b, host));
        assert_clean(&device);
    }
}

#[test]
fn runs_of_messages_among_writes_go_in_order_and_one_that_is_refused_is_named() {
    for posting in POSTINGS {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = ends(&host, posting);
        let remote = b.memory.remote();
        let to = |at| remote.at(at).unwrap();
        let byte = |at| a.memory.segment(at..=at).unwrap();
        let short = [7; 4];
        let mut batch = vec![
            SendWr::<Rc>::write(byte(0), &to(0)),
            SendWr::send(byte(1)),
            SendWr::send(byte(2)),
            SendWr::send_with_imm(byte(3), 3),
            SendWr::send_with_imm(byte(4), 4),
            SendWr::send(Inline(&short)),
            SendWr::send(Inline(&short)),
            SendWr::write_with_imm(byte(5), &to(5), 5),
            SendWr::send(byte(6)),
        ];
        batch = (0..).zip(batch).map(|(id, wr)| wr.id(id).signaled()).collect();
        let too_long = [7; 4096];
        for place in [0, 2, 4, 6, 9] {
            batch.insert(place, SendWr::send(Inline(&too_long)));
            let error = a.pair.post_send(&mut batch).unwrap_err();
            assert_eq!((error.posted(), error.refused()), (0, Some(place)));
            assert!(is_quiet(&a.sends));
            batch.remove(place);
        }
        let credit = b.memory.segment(100..200).unwrap();
        let mut credits: Vec<_> = (0..8).map(|id| RecvWr::to(id, credit)).collect();
        b.pair.post_receive(&mut credits).unwrap();
        a.pair.post_send(&mut batch).unwrap();
        drain(&a, 0..9);
        let told = [None, None, Some(3), Some(4), None, None, Some(5), None];
        for (id, immediate) in (0..).zip(told) {
            let received = b.received();
            let work = received.outcome().unwrap();
            assert_eq!((work.id(), work.immediate()), (id, immediate));
        }
    }
}

/// Puts a request that cannot be right among others and posts them.
fn is_refused_before_anything_is_posted<'a>(
    device: &SoftDevice,
    (a, b): (&'a End, &End),
    wrong: SendWr<'a, Rc>,
    expected: &str,
) {
    let posts =
        |device: &SoftDevice| ["ibv_post_send", "ibv_wr_complete"].map(|verb| device.calls(verb));
    let before = posts(device);
    let mut batch = writes(a, &b.memory.remote(), 3);
    batch.insert(2, wrong);
    let error = a.pair.post_send(&mut batch).unwrap_err();
    assert_eq!((error.posted(), error.refused(), error.errno()), (0, Some(2), None));
    // The classic way would have to keep the number of requests for no more than this.
    let of_how_many = if a.pair.posting() == Posting::Extended { " of 4" } else { "" };
    let text = format!("request 3{of_how_many}: {expected}");
    assert!(error.to_string().starts_with(&text), "{error}");
    assert_eq!(posts(device), before, "nothing was called");
    assert_eq!(arrived(b), 0);
    batch.remove(2);
    a.pair.post_send(&mut batch).unwrap();
    drain(a, 0..3);
    assert_eq!(arrived(b), 3);
    b.memory.bytes().fill(0, 256, 0).unwrap();
}

fn does_not_fit(bytes: u64, room: &str) -> String {
    let verb = if bytes == 1 { "byte does" } else { "bytes do" };
    format!(
        "{bytes} {verb} not fit the {room} of the remote segment: shorten the local segment, or"
    )
}

#[test]
fn requests_that_cannot_be_right_are_refused_before_anything_is_posted() {
    for posting in POSTINGS {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = ends(&host, posting);
        let remote = b.memory.remote();
        let part = |range| a.memory.segment(range).unwrap();
        let to = |range| remote.part(range).unwrap();
        let many = [part(0..1); 5];
        let bytes = [0; 65];
        let word = remote.address() + 4;
        let inline = "65 bytes do not fit the 64 bytes of inline data that the queue pair was made for: make it with";
        let segments =
            "the number of segments cannot be 5: it must be from 0 to 4; make the queue pair with";
        let unaligned = format!(
            "an atomic works at multiples of 8, and its remote segment starts at address {word:#x}: name"
        );
        let cases = [
            (SendWr::write(part(0..9), &to(0..8)), does_not_fit(9, "8 bytes")),
            (SendWr::write(part(0..1), &to(0..0)), does_not_fit(1, "0 bytes")),
            (SendWr::write(&many[..3], &to(0..1)), does_not_fit(3, "1 byte")),
            (SendWr::write(Inline(&bytes[..9]), &to(0..8)), does_not_fit(9, "8 bytes")),
            (SendWr::write_with_imm(part(0..9), &to(0..8), 1), does_not_fit(9, "8 bytes")),
            (SendWr::read(part(0..9), &to(0..8)), does_not_fit(9, "8 bytes")),
            (SendWr::read(&many[..3], &to(0..2)), does_not_fit(3, "2 bytes")),
            (SendWr::send(&many), segments.to_owned()),
            (SendWr::write(&many, &to(0..64)), segments.to_owned()),
            (SendWr::read(&many, &to(0..64)), segments.to_owned()),
            (SendWr::send(Inline(&bytes)), inline.to_owned()),
            (SendWr::write(Inline(&bytes), &to(0..99)), inline.to_owned()),
            (
                SendWr::fetch_and_add(part(0..4), &to(0..8), 1),
                "an atomic brings 8 bytes, and its local segment has 4: name a local".to_owned(),
            ),
            (
                SendWr::fetch_and_add(part(0..8), &to(0..7), 1),
                "8 bytes do not fit the 7 bytes of the remote segment: an atomic works".to_owned(),
            ),
            (SendWr::fetch_and_add(part(0..8), &to(4..12), 1), unaligned),
            (
                SendWr::compare_and_swap(part(0..16), &to(0..16), 1, 2),
                "an atomic brings 8 bytes, and its local segment has 16: name".to_owned(),
            ),
        ];
        for (wrong, expected) in cases {
            is_refused_before_anything_is_posted(&device, (&a, &b), wrong, &expected);
        }
    }
}

/// Posting a single segment looks at no number, since each queue has room for one.
#[test]
fn queues_without_room_for_a_segment_are_not_made() {
    let device = SoftDevice::new();
    let host = open(&device);
    let queue = host.queue(8);
    let sends = "the number of segments of a send cannot be 0: it must be at least 1";
    let receives = "the number of segments of a receive cannot be 0: it must be at least 1";
    let refused = |text: &str, made: ibverbs::Result<()>| {
        let error = made.unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    };
    for posting in POSTINGS {
        let builder = || {
            let builder = QueuePair::<Rc, _>::builder(&host.domain, &queue, &queue);
            builder.posting(posting)
        };
        refused(sends, builder().max_send_segments(0).create().map(drop));
        refused(receives, builder().max_receive_segments(0).create().map(drop));
        // Not where receives are another queue's.
        let shared = SharedReceiveQueue::create(&host.domain, SharedReceiveQueueOptions::new(4));
        builder().shared_receive_queue(Arc::new(shared.unwrap())).create().unwrap();
    }
    let domain = XrcDomain::open(&host.context).unwrap();
    let options = SharedReceiveQueueOptions::new(4).max_segments(0);
    refused(receives, SharedReceiveQueue::create(&host.domain, options).map(drop));
    let of_xrc = XrcReceiveQueue::create(&host.domain, &domain, &queue, options);
    refused(receives, of_xrc.map(drop));
    let initiator = QueuePair::<XrcInitiator, _>::builder(&host.domain, &queue, &queue);
    refused(sends, initiator.max_send_segments(0).create().map(drop));
    let frames = WorkQueue::builder(&host.domain, &queue).max_segments(0);
    refused(receives, frames.create().map(drop));
    let calls = |verbs: &[&str]| verbs.iter().map(|verb| device.calls(verb)).sum::<u64>();
    assert_eq!(calls(&["ibv_create_qp", "ibv_create_qp_ex"]), 2);
    assert_eq!(calls(&["ibv_create_srq", "ibv_create_srq_ex"]), 2);
    assert_eq!(calls(&["ibv_create_wq"]), 0);
}

#[test]
fn an_operation_that_the_queue_pair_was_not_made_for_is_refused() {
    let device = SoftDevice::new();
    let host = open(&device);
    let queue = host.queue(8);
    let create = || {
        let builder = QueuePair::<Rc, _>::builder(&host.domain, &queue, &queue);
        builder.operations(ibverbs::Operations::SEND).create().unwrap()
    };
    let (a, b) = (create(), create());
    let options = ibverbs::ConnectOptions::new(&host.port);
    let a = a.connect(&b.endpoint(&host.port), &options).unwrap();
    let memory = host.region(vec![0; 8], crate::common::ALL);
    let part = || memory.segment(..).unwrap();
    let to = memory.remote().at(0).unwrap();
    for (wrong, name) in [
        (SendWr::write(part(), &to), "a write"),
        (SendWr::write_with_imm(part(), &to, 1), "a write with immediate"),
        (SendWr::read(part(), &to), "a read"),
        (SendWr::fetch_and_add(part(), &to, 1), "a fetch and add"),
        (SendWr::compare_and_swap(part(), &to, 1, 2), "a compare and swap"),
        (SendWr::atomic_write(&to, 1), "an atomic write"),
        (SendWr::write(Inline(&[]), &to), "a write"),
    ] {
        let error = a.post_send(&mut [wrong]).unwrap_err();
        let expected =
            format!("request 1 of 1: the queue pair was not made for {name}: name it in");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    a.post_send(&mut [SendWr::send(part()), SendWr::send_with_imm(part(), 1)]).unwrap();
    assert_eq!(device.violations(), [""; 0]);
}

#[test]
fn receives_stop_at_the_first_without_room_and_say_which() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = ends(&host, Posting::Classic);
    let room = b.pair.capabilities().receive_requests as usize;
    let mut batch: Vec<RecvWr<'_>> = (0..room as u64 + 3).map(RecvWr::new).collect();
    let error = b.pair.post_receive(&mut batch).unwrap_err();
    assert_eq!((error.posted(), error.refused()), (room, Some(room)));
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    a.post(SendWr::send(Inline(&[])).signaled());
    assert_eq!(b.received().outcome().unwrap().id(), 0);
    b.pair.post_receive(&mut batch[room..=room]).unwrap();
}

#[test]
fn receives_that_cannot_be_right_are_refused_before_anything_is_posted() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (_a, b) = ends(&host, Posting::Classic);
    let many = [b.memory.segment(0..1).unwrap(); 5];
    let mut batch = [RecvWr::new(1), RecvWr::to(2, &many), RecvWr::new(3)];
    let error = b.pair.post_receive(&mut batch).unwrap_err();
    assert_eq!((error.posted(), error.refused(), error.errno()), (0, Some(1), None));
    let expected = "request 2: the number of segments cannot be 5: it must be from 0 to 4; split";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(device.calls("ibv_post_recv"), 0);
}

#[test]
fn receives_can_be_posted_from_initialized_on() {
    let device = SoftDevice::new();
    let host = open(&device);
    let options = ibverbs::ConnectOptions::new(&host.port).access(crate::common::ALL);
    let (a, b) = (host.end(Shape::default()), host.end(Shape::default()));
    let (to_a, to_b) = (a.pair.endpoint(&host.port), b.pair.endpoint(&host.port));
    let pair = b.pair.initialize(&options).unwrap();
    pair.post_receive(&mut [RecvWr::to(1, b.memory.segment(..8).unwrap())]).unwrap();
    let pair = pair.ready_to_receive(&to_a, &options).unwrap();
    pair.post_receive(&mut [RecvWr::to(2, b.memory.segment(8..16).unwrap())]).unwrap();
    let a = a.connect(&to_b, &options);
    a.post(SendWr::send(Inline(b"earliest")));
    a.post(SendWr::send(Inline(b"earliers")));
    let pair = pair.ready_to_send(&options).unwrap();
    assert_eq!(pair.query().unwrap().state(), ibverbs::QueuePairState::READY_TO_SEND);
    let mut bytes = [0; 16];
    b.memory.bytes().read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"earliestearliers");
}

#[test]
fn a_queue_pair_that_signals_all_reports_what_is_not_signaled() {
    for posting in POSTINGS {
        let device = SoftDevice::new();
        let host = open(&device);
        let queue = host.queue(8);
        let create = || {
            let builder = QueuePair::<Rc, _>::builder(&host.domain, &queue, &queue);
            builder.posting(posting).signal_all().create().unwrap()
        };
        let (a, b) = (create(), create());
        let options = ibverbs::ConnectOptions::new(&host.port).access(crate::common::ALL);
        let (to_a, to_b) = (a.endpoint(&host.port), b.endpoint(&host.port));
        let a = a.connect(&to_b, &options).unwrap();
        let _b = b.connect(&to_a, &options).unwrap();
        let memory = host.region(vec![0; 8], crate::common::ALL);
        let to = memory.remote().at(0).unwrap();
        a.post_send(&mut [SendWr::write(memory.segment(..).unwrap(), &to).id(6)]).unwrap();
        assert_eq!(crate::common::host::next(&queue).outcome().unwrap().id(), 6);
    }
}

#[test]
fn one_queue_pair_can_be_posted_to_from_many_threads() {
    for posting in POSTINGS {
        let device = SoftDevice::new();
        let host = open(&device);
        let (a, b) = host.ends(Shape { memory: 4096, ..posting.into() });
        let remote = b.memory.remote();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (a, b) = (&a, &b);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let word = remote.part(thread * 8..thread * 8 + 8).unwrap();
                        let at = usize::try_from(thread * 16).unwrap();
                        let into = a.memory.segment(at..at + 8).unwrap();
                        a.post(SendWr::fetch_and_add(into, &word, 1).signaled());
                        a.sent().outcome().unwrap();
                        b.pair.post_receive(&mut []).unwrap();
                    }
                });
            }
        });
        assert_eq!(b.memory.bytes().get::<[u64; 4]>(0).unwrap(), [200; 4]);
        assert_eq!(device.violations(), [""; 0]);
    }
}
