//! Multicast groups. The kernel's software device would need two machines for them.

use std::sync::Arc;

use ibverbs::{
    Address, AddressHandle, DatagramOptions, Destination, Error, Gid, Inline, MulticastMembership,
    QueueKey, QueuePairNumber, RecvWr, SendWr, Ud,
};

use crate::{
    run,
    scenarios::{A_WHILE, End, Host, within},
};

const KEY: QueueKey = QueueKey(0x2468);

#[test]
fn a_datagram_to_a_group_reaches_its_members_until_they_leave() {
    run(|host: &Host, posting| {
        let group: Gid = "ff0e::1:2".parse().unwrap();
        let options = DatagramOptions::new(&host.port, KEY);
        let member = || {
            let end: End<Ud> = host.end(posting).map(|pair| pair.activate(&options).unwrap());
            let room = end.memory.segment(..).unwrap();
            end.pair.post_receive(&mut [RecvWr::to(1, room), RecvWr::to(2, room)]).unwrap();
            (Arc::new(end.pair), end.receives, end.memory)
        };
        let (first, second) = (member(), member());
        let joined = [&first, &second]
            .map(|(pair, ..)| MulticastMembership::attach(pair, group, 0).unwrap());
        assert_eq!(joined[0].group(), group);
        let sender: End<Ud> = host.end(posting).map(|pair| pair.activate(&options).unwrap());
        let address = Address::new(&host.port, group, 0xc000);
        let handle = AddressHandle::create(&host.domain, &address).unwrap();
        let send = || {
            let all = Destination::new(&handle, QueuePairNumber::MULTICAST, KEY);
            let datagram = SendWr::send_to(Inline(b"to all"), all).signaled();
            sender.pair.post_send(&mut [datagram]).unwrap();
            sender.sent().outcome().unwrap();
        };
        send();
        for (_, receives, memory) in [&first, &second] {
            let completion = within(receives, super::scenarios::PATIENCE).unwrap();
            let work = completion.outcome().unwrap();
            let arrived = work.datagram(&memory.bytes(), 0).unwrap();
            assert_eq!(arrived.header.unwrap().destination(), group);
        }
        let [left, stayed] = joined;
        drop(left);
        send();
        assert!(within(&second.1, super::scenarios::PATIENCE).is_some());
        assert!(within(&first.1, A_WHILE).is_none());
        drop(stayed);
    });
}

#[test]
fn an_address_of_one_port_is_no_group() {
    run(|host, posting| {
        let end = host.end::<Ud>(posting);
        let refused = MulticastMembership::attach(&end.pair, host.port.gid.gid, 0).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        assert!("::ffff:239.1.2.3".parse::<Gid>().unwrap().is_multicast());
        assert!(!"::ffff:10.1.2.3".parse::<Gid>().unwrap().is_multicast());
    });
}
