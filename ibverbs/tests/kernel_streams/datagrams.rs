//! A stream of datagrams. The network between the two hosts loses none, and the receiver grants no more than it has receives
//! for, so that each must arrive.

use std::sync::Arc;

use ibverbs::{
    AddressHandle, Completion, CompletionQueue, DatagramInfo, DatagramOptions, Destination, Inline,
    QueueKey, QueuePair, RecvWr, RoutingHeader, SendWr, Ud,
};

use crate::{
    common::{Host, link::Link},
    kernel::open,
    support::{
        LENGTH, Slots, WINDOW, awaited, message, messages, part_ways, sleepy_queue, slot_of,
        two_processes,
    },
};

const KEY: QueueKey = QueueKey(0x0057_4ea1);
/// Datagrams that the receiver takes before it grants as many more.
const GRANT: u64 = 16;
/// Address handles that the sender uses by turns.
const HANDLES: usize = 3;

/// A datagram queue pair that reports all its work to one queue.
struct End {
    host: Host,
    pair: QueuePair<'static, Ud>,
    queue: Arc<CompletionQueue<'static>>,
    slots: Slots,
    peer: DatagramInfo,
}

impl End {
    fn new(device: &str, link: &mut Link) -> Self {
        let host = open(device).unwrap();
        let queue = sleepy_queue(&host);
        let room = u32::try_from(WINDOW).unwrap();
        let pair = QueuePair::<Ud, _>::builder(&host.domain, &queue, &queue)
            .max_send_requests(room)
            .max_receive_requests(room)
            .max_inline(16)
            .create()
            .unwrap();
        let options = DatagramOptions::new(&host.port, KEY);
        let pair = pair.activate(&options).unwrap();
        let slots = Slots::new(&host.domain, WINDOW);
        let own = pair.datagram_endpoint(&options);
        let peer = DatagramInfo::from_bytes(&link.exchange(own.to_bytes())).unwrap();
        Self { host, pair, queue, slots, peer }
    }

    fn post_receive(&self, slot: usize) {
        let receive = RecvWr::to(slot as u64, self.slots.room(slot));
        self.pair.post_receive(&mut [receive]).unwrap();
    }
}

#[test]
fn a_stream_of_datagrams_with_credits_loses_no_message_no_completion_and_no_wake_up() {
    two_processes(
        "datagrams::a_stream_of_datagrams_with_credits_loses_no_message_no_completion_and_no_wake_up",
        receive,
        send,
    );
}

fn receive(device: &str, mut link: Link) {
    let end = End::new(device, &mut link);
    (0..WINDOW).for_each(|slot| end.post_receive(slot));
    link.meet();
    let count = messages();
    let mut found = Completion::slots::<16>();
    // Made from the first datagram, as a server does that knows nobody.
    let mut back: Option<AddressHandle<'_>> = None;
    let (mut next, mut grants, mut granted) = (0, 0, 0);
    while next < count || granted < grants {
        let progress =
            || format!("after {next} of {count} datagrams, {granted} of {grants} grants");
        for completion in awaited(&end.queue, &mut found, progress) {
            let work = completion.outcome().unwrap();
            if !work.operation().is_receive() {
                granted += 1;
                assert_eq!(work.id(), granted, "a completion of a grant is missing or doubled");
                continue;
            }
            let slot = slot_of(work.id());
            let memory = end.slots.region().bytes();
            let arrived = work.datagram(&memory, slot * crate::support::SLOT).unwrap();
            assert_eq!((arrived.queue_pair, arrived.payload_length), (end.peer.number, LENGTH));
            let bytes = end.slots.read(slot, RoutingHeader::LENGTH);
            // Another number than the next: if it is higher, datagrams were lost on the way or dropped for want of a receive,
            // or their completions were; if it is lower, one came twice. Without an end, the last one is missing.
            assert_eq!(bytes, message(0, next), "datagram {next} of {count} did not come");
            next += 1;
            end.post_receive(slot);
            let (domain, port) = (&end.host.domain, end.host.port.port);
            let handle = back.get_or_insert_with(|| {
                AddressHandle::reply(domain, &work, arrived.header.as_ref(), port).unwrap()
            });
            if next % GRANT == 0 {
                grants += 1;
                let to = Destination::new(handle, arrived.queue_pair, KEY);
                let taken = u32::try_from(next).unwrap();
                let grant = SendWr::send_with_imm_to(Inline(&[]), to, taken).id(grants).signaled();
                end.pair.post_send(&mut [grant]).unwrap();
            }
        }
    }
    part_ways(&mut link, &end.queue);
}

fn send(device: &str, mut link: Link) {
    let end = End::new(device, &mut link);
    (0..WINDOW / 2).for_each(|slot| end.post_receive(WINDOW / 2 + slot));
    let address = end.peer.address(&end.host.port);
    let handles =
        [(); HANDLES].map(|()| AddressHandle::create(&end.host.domain, &address).unwrap());
    link.meet();
    let (count, window) = (messages(), u64::try_from(WINDOW).unwrap());
    let mut found = Completion::slots::<16>();
    let (mut sent, mut done, mut taken) = (0, 0, 0);
    // The last grant is waited for as well, so that both sides have seen everything.
    while done < count || taken < count / GRANT * GRANT {
        while sent < count && sent < taken + window && sent < done + window / 2 {
            // Its slot is free: requests finish in their order.
            let slot = slot_of(sent % (window / 2));
            let from = end.slots.fill(slot, &message(0, sent));
            let handle = &handles[slot % HANDLES];
            let to = end.peer.destination(handle);
            let datagram = SendWr::send_to(from, to).id(sent).signaled();
            end.pair.post_send(&mut [datagram]).unwrap();
            sent += 1;
        }
        let progress = || format!("after {sent} of {count} datagrams, {done} done, {taken} taken");
        for completion in awaited(&end.queue, &mut found, progress) {
            let work = completion.outcome().unwrap();
            if work.operation().is_receive() {
                let told = work.immediate().unwrap().into();
                assert_eq!(told, taken + GRANT, "a grant is missing or doubled");
                taken = told;
                end.post_receive(slot_of(work.id()));
            } else {
                assert_eq!(work.id(), done, "a completion of a send is missing or doubled");
                done += 1;
            }
        }
    }
    part_ways(&mut link, &end.queue);
}
