//! Unreliable connections.

use ibverbs::{Inline, Operation, Posting, QueuePairState, RecvWr, SendWr, Uc};

use super::{A_WHILE, Host, pattern, within};
use crate::run;

#[test]
fn messages_and_writes_arrive_where_nothing_is_lost() {
    run(|host, posting| {
        let (a, b) = host.ends::<Uc>(posting);
        let payload = pattern(5, 3000);
        a.memory.bytes().write(0, &payload).unwrap();
        let room = b.memory.segment(..4096).unwrap();
        b.pair.post_receive(&mut [RecvWr::to(1, room), RecvWr::new(2)]).unwrap();
        let target = b.memory.remote().part(4096..8192).unwrap();
        let from = a.memory.segment(..3000).unwrap();
        let mut batch = [
            SendWr::send(from),
            SendWr::write(from, &target),
            SendWr::write_with_imm(Inline(b"end"), &target, 77).signaled(),
        ];
        a.pair.post_send(&mut batch).unwrap();
        a.sent().outcome().unwrap();
        assert_eq!(b.received().outcome().unwrap().byte_length(), 3000);
        let completion = b.received();
        let work = completion.outcome().unwrap();
        assert_eq!(work.operation(), Operation::RECEIVE_WRITE_WITH_IMMEDIATE);
        assert_eq!(work.immediate(), Some(77));
        assert_eq!(b.bytes(0, 3000), payload);
        assert_eq!(b.bytes(4096, 3), b"end");
        assert_eq!(b.bytes(4099, 2997), payload[3..]);
    });
}

#[test]
fn a_message_without_a_receive_is_lost_and_nothing_else() {
    run(|host: &Host, posting: Posting| {
        let (a, b) = host.ends::<Uc>(posting);
        a.pair.post_send(&mut [SendWr::send(Inline(b"lost")).signaled()]).unwrap();
        a.sent().outcome().unwrap();
        assert!(within(&b.receives, A_WHILE).is_none());
        b.pair.post_receive(&mut [RecvWr::to(1, b.memory.segment(..64).unwrap())]).unwrap();
        a.pair.post_send(&mut [SendWr::send(Inline(b"kept")).signaled()]).unwrap();
        a.sent().outcome().unwrap();
        b.received().outcome().unwrap();
        assert_eq!(b.bytes(0, 4), b"kept");
        let state = a.pair.query().unwrap().state();
        assert_eq!(state, QueuePairState::READY_TO_SEND);
    });
}
