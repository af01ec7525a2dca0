//! A stream over several reliable connections whose receives come from one shared queue.

use std::{sync::Arc, time::Duration};

use ibverbs::{
    Completion, CompletionQueue, ConnectOptions, QpInfo, QueuePair, Rc, RecvWr, SendWr,
    SharedReceiveQueue, SharedReceiveQueueOptions,
};

use crate::{
    common::{Host, link::Link},
    kernel::open,
    support::{
        LENGTH, Slots, WINDOW, awaited, message, messages, part_ways, sleepy_queue, slot_of,
        two_processes,
    },
};

/// Connections.
const LANES: usize = 4;
/// Sends that are outstanding on a connection at most.
const AHEAD: u64 = 16;

/// Connects all lanes; the queue pairs take their receives from a shared queue if there is one.
fn connect(
    host: &Host,
    queue: &Arc<CompletionQueue<'static>>,
    shared: Option<&Arc<SharedReceiveQueue<'static>>>,
    link: &mut Link,
) -> [QueuePair<'static, Rc>; LANES] {
    // Waits little for a receive that is not there yet, for ever if need be.
    let options = ConnectOptions::new(&host.port)
        .receiver_not_ready_timer(Duration::from_micros(160))
        .receiver_not_ready_retries(7);
    [(); LANES].map(|()| {
        let builder = QueuePair::<Rc, _>::builder(&host.domain, queue, queue).max_send_requests(32);
        let builder = match shared {
            Some(shared) => builder.shared_receive_queue(shared),
            None => builder,
        };
        let pair = builder.create().unwrap();
        let peer = link.exchange(pair.endpoint(&host.port).to_bytes());
        pair.connect(&QpInfo::from_bytes(&peer).unwrap(), &options).unwrap()
    })
}

#[test]
fn a_stream_into_a_shared_receive_queue_loses_no_completion_and_no_wake_up() {
    two_processes(
        "shared_receives::a_stream_into_a_shared_receive_queue_loses_no_completion_and_no_wake_up",
        receive,
        send,
    );
}

/// How many of the messages go over a lane.
fn share(lane: usize) -> u64 {
    let (lanes, lane) = (LANES as u64, lane as u64);
    (messages() + lanes - 1 - lane) / lanes
}

fn receive(device: &str, mut link: Link) {
    let host = open(device).unwrap();
    let queue = sleepy_queue(&host);
    let options = SharedReceiveQueueOptions::new(u32::try_from(WINDOW).unwrap());
    let shared = Arc::new(SharedReceiveQueue::create(&host.domain, options).unwrap());
    let slots = Slots::new(&host.domain, WINDOW);
    let post = |slot| {
        shared.post_receive(&mut [RecvWr::to(slot as u64, slots.room(slot))]).unwrap();
    };
    (0..WINDOW).for_each(post);
    let lanes = connect(&host, &queue, Some(&shared), &mut link);
    link.meet();
    let count = messages();
    let mut found = Completion::slots::<16>();
    let mut next = [0_u64; LANES];
    while next.iter().sum::<u64>() < count {
        for completion in awaited(&queue, &mut found, || format!("after {next:?} of {count}")) {
            let work = completion.outcome().unwrap();
            let lane = lanes.iter().position(|pair| pair.number() == work.queue_pair()).unwrap();
            let slot = slot_of(work.id());
            assert_eq!(work.byte_length() as usize, LENGTH);
            let bytes = slots.read(slot, 0);
            assert_eq!(bytes, message(lane as u64, next[lane]), "after {next:?} of {count}");
            next[lane] += 1;
            post(slot);
        }
    }
    assert!((0..LANES).all(|lane| next[lane] == share(lane)), "{next:?} of {count}");
    part_ways(&mut link, &queue);
}

fn send(device: &str, mut link: Link) {
    let host = open(device).unwrap();
    let queue = sleepy_queue(&host);
    let ahead = slot_of(AHEAD);
    let slots = Slots::new(&host.domain, LANES * ahead);
    let lanes = connect(&host, &queue, None, &mut link);
    link.meet();
    let mut found = Completion::slots::<16>();
    let (mut sent, mut done) = ([0; LANES], [0; LANES]);
    while (0..LANES).any(|lane| done[lane] < share(lane)) {
        for (lane, pair) in lanes.iter().enumerate() {
            while sent[lane] < share(lane) && sent[lane] < done[lane] + AHEAD {
                let slot = lane * ahead + slot_of(sent[lane] % AHEAD);
                let from = slots.fill(slot, &message(lane as u64, sent[lane]));
                pair.post_send(&mut [SendWr::send(from).id(sent[lane]).signaled()]).unwrap();
                sent[lane] += 1;
            }
        }
        let progress = || format!("after {sent:?} sends of which {done:?} are done");
        for completion in awaited(&queue, &mut found, progress) {
            let work = completion.outcome().unwrap();
            let lane = lanes.iter().position(|pair| pair.number() == work.queue_pair()).unwrap();
            assert_eq!(work.id(), done[lane], "a completion of lane {lane} is missing or doubled");
            done[lane] += 1;
        }
    }
    part_ways(&mut link, &queue);
}
