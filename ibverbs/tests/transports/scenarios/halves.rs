//! Queue pairs in two halves.

use std::thread;

use ibverbs::{CompletionQueue, Inline, Rc, ReceiveHalf, RecvWr, SendHalf, SendWr};

use super::{End, next};
use crate::run;

const MESSAGES: u64 = 500;

fn send_all(half: &mut SendHalf<'static, Rc>, queue: &CompletionQueue<'_>) {
    for id in 0..MESSAGES {
        let text = id.to_ne_bytes();
        let wr = SendWr::send(Inline(&text)).id(id).signaled();
        half.post_send(&mut [wr]).unwrap();
        assert_eq!(next(queue).outcome().unwrap().id(), id);
    }
}

#[test]
fn one_thread_posts_while_another_refills() {
    run(|host, posting| {
        let (a, b) = host.ends::<Rc>(posting);
        let End { pair, sends, receives, memory } = b;
        let (mut sender, mut receiver) = pair.split();
        let (mut far_sender, mut far_receiver) = a.pair.split();
        assert_eq!(sender.number(), receiver.number());
        let refill = |half: &mut ReceiveHalf<'static, Rc>, id| {
            half.post_receive(&mut [RecvWr::to(id, memory.segment(..64).unwrap())]).unwrap();
        };
        (0..8).for_each(|id| refill(&mut receiver, id));
        (0..8).for_each(|id| {
            let room = a.memory.segment(..64).unwrap();
            far_receiver.post_receive(&mut [RecvWr::to(id, room)]).unwrap();
        });
        thread::scope(|scope| {
            scope.spawn(|| send_all(&mut sender, &sends));
            scope.spawn(|| send_all(&mut far_sender, &a.sends));
            scope.spawn(|| {
                for _ in 0..MESSAGES {
                    let id = next(&receives).outcome().unwrap().id();
                    refill(&mut receiver, id);
                }
            });
            for _ in 0..MESSAGES {
                let id = next(&a.receives).outcome().unwrap().id();
                let room = a.memory.segment(..64).unwrap();
                far_receiver.post_receive(&mut [RecvWr::to(id, room)]).unwrap();
            }
        });
        let (sender, far_receiver) = sender.reunite(far_receiver).unwrap_err();
        sender.reunite(receiver).unwrap();
        far_sender.reunite(far_receiver).unwrap();
    });
}

#[test]
fn the_halves_of_one_queue_pair_make_it_whole_again() {
    run(|host, posting| {
        let (a, b) = host.ends::<Rc>(posting);
        let a = a.map(|pair| {
            let (sender, receiver) = pair.split();
            sender.reunite(receiver).unwrap()
        });
        b.pair.post_receive(&mut [RecvWr::to(1, b.memory.segment(..64).unwrap())]).unwrap();
        a.pair.post_send(&mut [SendWr::send(Inline(b"whole")).signaled()]).unwrap();
        a.sent().outcome().unwrap();
        b.received().outcome().unwrap();
        assert_eq!(b.bytes(0, 5), b"whole");
    });
}
