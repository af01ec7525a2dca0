//! Datagrams: addresses, routing headers, queue keys.

use std::sync::Arc;

use ibverbs::{
    Access, Address, AddressHandle, DatagramInfo, DatagramOptions, Destination, Inline, Operation,
    Posting, ProtectionDomain, QueueKey, RecvWr, SendWr, Ud,
};

use super::{A_WHILE, End, Host, PATIENCE, pattern, within};
use crate::run;

const KEY: QueueKey = QueueKey(0x1357_9bdf & 0x7fff_ffff);

impl Host {
    fn datagrams(&self, posting: Posting) -> End<Ud> {
        let options = DatagramOptions::new(&self.port, KEY);
        self.end(posting).map(|pair| pair.activate(&options).unwrap())
    }

    fn told(&self, end: &End<Ud>) -> DatagramInfo {
        end.pair.datagram_endpoint(&DatagramOptions::new(&self.port, KEY))
    }

    fn to_itself(&self) -> Address {
        Address::new(&self.port, self.port.gid.gid, self.port.attributes.lid())
    }

    fn handle(&self) -> AddressHandle<'static> {
        AddressHandle::create(&self.domain, &self.to_itself()).unwrap()
    }
}

#[test]
fn a_datagram_arrives_behind_its_routing_header() {
    run(|host, posting| {
        let (a, b) = (host.datagrams(posting), host.datagrams(posting));
        let handle = host.handle();
        let payload = pattern(1, 100);
        a.memory.bytes().write(0, &payload).unwrap();
        let room = b.memory.segment(..).unwrap();
        b.pair.post_receive(&mut [RecvWr::to(7, room)]).unwrap();
        let from = a.memory.segment(..100).unwrap();
        let datagram = SendWr::send_to(from, host.told(&b).destination(&handle));
        a.pair.post_send(&mut [datagram.id(3).signaled()]).unwrap();
        assert_eq!(a.sent().outcome().unwrap().id(), 3);
        let completion = b.received();
        let work = completion.outcome().unwrap();
        assert_eq!((work.id(), work.operation()), (7, Operation::RECEIVE));
        assert_eq!(work.byte_length(), 140);
        let arrived = work.datagram(&b.memory.bytes(), 0).unwrap();
        assert_eq!(arrived.payload(), 40..140);
        assert_eq!(arrived.queue_pair, a.pair.number());
        let header = arrived.header.unwrap();
        assert_eq!(header.source(), host.port.gid.gid, "{header:?}");
        assert_eq!(header.destination(), host.port.gid.gid);
        assert_eq!(b.bytes(40, 100), payload);
    });
}

#[test]
fn an_address_handle_of_another_context_is_refused() {
    run(|host, posting| {
        let a = host.datagrams(posting);
        let other = Arc::new(host.context.device().open().unwrap());
        let domain = Arc::new(ProtectionDomain::allocate(&other).unwrap());
        let foreign = AddressHandle::create(&domain, &host.to_itself()).unwrap();
        let own = host.handle();
        let told = host.told(&a);
        let datagram = |handle| SendWr::send_to(Inline(b"lost"), told.destination(handle));
        let refused = a.pair.post_send(&mut [datagram(&own), datagram(&foreign)]).unwrap_err();
        assert_eq!((refused.posted(), refused.refused()), (0, Some(1)), "{refused}");
        assert!(refused.error().to_string().contains("different contexts"), "{refused}");
    });
}

#[test]
fn a_reply_needs_nothing_but_the_datagram() {
    run(|host, posting| {
        let (a, b) = (host.datagrams(posting), host.datagrams(posting));
        let handle = host.handle();
        b.pair.post_receive(&mut [RecvWr::to(1, b.memory.segment(..1024).unwrap())]).unwrap();
        a.pair.post_receive(&mut [RecvWr::to(2, a.memory.segment(..1024).unwrap())]).unwrap();
        let to = host.told(&b).destination(&handle);
        let question = SendWr::send_with_imm_to(Inline(b"question"), to, 0xC0DE);
        a.pair.post_send(&mut [question.signaled()]).unwrap();
        a.sent().outcome().unwrap();
        let completion = b.received();
        let work = completion.outcome().unwrap();
        assert_eq!(work.immediate(), Some(0xC0DE));
        let arrived = work.datagram(&b.memory.bytes(), 0).unwrap();
        assert_eq!(b.bytes(40, 8), b"question");
        let (header, port) = (arrived.header, host.port.port);
        let address = Address::reply(&host.domain, &work, header.as_ref(), port).unwrap();
        assert_eq!(address.gid(), host.port.gid.gid);
        let back = AddressHandle::reply(&host.domain, &work, header.as_ref(), port).unwrap();
        let back = Destination::new(&back, arrived.queue_pair, KEY);
        let answer = SendWr::send_to(Inline(b"answer"), back);
        b.pair.post_send(&mut [answer.signaled()]).unwrap();
        b.sent().outcome().unwrap();
        a.received().outcome().unwrap();
        assert_eq!(a.bytes(40, 6), b"answer");
    });
}

#[test]
fn a_reply_without_the_header_that_came_is_refused() {
    run(|host, posting| {
        let (a, b) = (host.datagrams(posting), host.datagrams(posting));
        let handle = host.handle();
        b.pair.post_receive(&mut [RecvWr::to(1, b.memory.segment(..).unwrap())]).unwrap();
        let datagram = SendWr::send_to(Inline(b"x"), host.told(&b).destination(&handle));
        a.pair.post_send(&mut [datagram.signaled()]).unwrap();
        let completion = b.received();
        let work = completion.outcome().unwrap();
        let refused = AddressHandle::reply(&host.domain, &work, None, host.port.port).unwrap_err();
        assert!(refused.to_string().contains("routing header"), "{refused}");
        a.sent().outcome().unwrap();
    });
}

#[test]
fn a_datagram_with_another_queue_key_is_not_delivered() {
    run(|host, posting| {
        let (a, b) = (host.datagrams(posting), host.datagrams(posting));
        let handle = host.handle();
        b.pair.post_receive(&mut [RecvWr::to(1, b.memory.segment(..).unwrap())]).unwrap();
        let number = b.pair.number();
        let to = |key| Destination::new(&handle, number, key);
        let wrong = SendWr::send_to(Inline(b"wrong"), to(QueueKey(KEY.0 ^ 1)));
        a.pair.post_send(&mut [wrong.signaled()]).unwrap();
        // Nobody tells the sender.
        a.sent().outcome().unwrap();
        assert!(within(&b.receives, A_WHILE).is_none());
        let right = SendWr::send_to(Inline(b"right"), to(KEY));
        a.pair.post_send(&mut [right.signaled()]).unwrap();
        a.sent().outcome().unwrap();
        b.received().outcome().unwrap();
        assert_eq!(b.bytes(40, 5), b"right");
    });
}

#[test]
fn a_batch_of_mixed_datagrams_arrives_whole() {
    run(|host, posting| {
        let (a, b) = (host.datagrams(posting), host.datagrams(posting));
        let handle = host.handle();
        let payload = pattern(9, 64);
        a.memory.bytes().write(0, &payload).unwrap();
        let mut receives = Vec::new();
        for id in 0..6 {
            let start = id * 512;
            let room = b.memory.segment(start..start + 512).unwrap();
            receives.push(RecvWr::to(id as u64, room));
        }
        b.pair.post_receive(&mut receives).unwrap();
        let part = |range: std::ops::Range<usize>| a.memory.segment(range).unwrap();
        // Of one length: the `rxe` of rdma-core 56 takes each for as long as the first in `ibv_wr_set_sge_list`.
        let list = [part(0..16), part(16..32), part(32..48), part(48..64)];
        let to = host.told(&b).destination(&handle);
        let mut batch = [
            SendWr::send_to(part(0..64), to),
            SendWr::send_to(part(0..64), to),
            SendWr::send_to(Inline(&payload), to),
            SendWr::send_to(&list, to),
            SendWr::send_with_imm_to(part(0..64), to, 4),
            SendWr::send_with_imm_to(Inline(&payload), to, 5).signaled(),
        ];
        a.pair.post_send(&mut batch).unwrap();
        a.sent().outcome().unwrap();
        for _ in 0..6 {
            let completion = b.received();
            let work = completion.outcome().unwrap();
            let start = usize::try_from(work.id()).unwrap() * 512;
            assert_eq!(work.byte_length(), 104, "datagram {}, {posting:?}", work.id());
            assert_eq!(b.bytes(start + 40, 64), payload, "datagram {}", work.id());
            let immediate = u32::try_from(work.id()).ok().filter(|id| *id >= 4);
            assert_eq!(work.immediate(), immediate);
        }
    });
}

#[test]
fn a_handle_can_be_dropped_as_soon_as_its_datagrams_are_posted() {
    run(|host, posting| {
        let (a, b) = (host.datagrams(posting), host.datagrams(posting));
        for round in 0..8 {
            b.pair.post_receive(&mut [RecvWr::to(round, b.memory.segment(..).unwrap())]).unwrap();
            let handle = host.handle();
            let from = a.memory.segment(..64).unwrap();
            let to = host.told(&b).destination(&handle);
            let datagram = SendWr::send_to(from, to).id(round).signaled();
            a.pair.post_send(&mut [datagram]).unwrap();
            drop(handle);
            let others = [host.handle(), host.handle()];
            // Whether it was sent is the device's to say, but it must say something.
            let done = within(&a.sends, PATIENCE).expect("no completion came");
            assert_eq!(done.id(), round);
            drop(others);
        }
    });
}

#[test]
fn queue_pairs_are_queried_as_they_were_made_ready() {
    run(|host, posting| {
        let end = host.datagrams(posting);
        let attributes = end.pair.query().unwrap();
        assert_eq!(attributes.state(), ibverbs::QueuePairState::READY_TO_SEND);
        assert_eq!(attributes.queue_key(), KEY);
        let told = host.told(&end);
        assert_eq!((told.number, told.gid), (end.pair.number(), host.port.gid.gid));
        assert_eq!(told.mtu, host.port.attributes.active_mtu());
        assert_eq!(DatagramInfo::from_bytes(&told.to_bytes()).unwrap(), told);
        assert_eq!(told.address(&host.port).gid(), host.port.gid.gid);
        let refused = end.memory.window(.., Access::REMOTE_READ).unwrap_err();
        assert!(refused.to_string().contains("windows"), "{refused}");
    });
}
