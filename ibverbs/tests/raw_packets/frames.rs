//! Frames on their way, and the queue pairs that send and take them.

use ibverbs::{
    Address, CompletionStatus, DeviceSelector, EthernetMatch, Flow, FlowRule, Inline, MacAddress,
    Operations, PacketMatch, PortNumber, Posting, QueueKey, QueuePair, QueuePairChange,
    QueuePairState, RawPacket, Reset, SendWr, SharedReceiveQueue, SharedReceiveQueueOptions,
};
use soft_device::{LinkLayer, SoftDevice};

use crate::support::{Bench, EXPERIMENT, ROOM, frame, ipv4, tagged};

#[test]
fn a_frame_comes_whole_to_the_port_that_has_its_address() {
    for posting in [Posting::Extended, Posting::Classic] {
        let (a, b) = (Bench::new(), Bench::new());
        let sender = a.station_with(&a.queue(), posting, false);
        let receiver = b.station_with(&b.queue(), posting, false);
        assert_eq!(receiver.pair.posting(), posting);
        let flow = b.flow(&receiver, FlowRule::new(b.mine()));
        let sent = frame(b.mac, a.mac, EXPERIMENT, &[7; 100]);
        sender.send(&sent);
        assert_eq!(receiver.received(), Some(sent));
        assert_eq!(receiver.received(), None);
        drop((sender, receiver, flow));
        a.end();
        b.end();
    }
}

#[test]
fn without_a_flow_nothing_comes() {
    let bench = Bench::new();
    let station = bench.station();
    station.send(&frame(bench.mac, bench.mac, EXPERIMENT, &[1; 50]));
    assert_eq!(station.received(), None);
    drop(station);
    bench.end();
}

#[test]
fn short_frames_are_filled_up_on_the_wire() {
    let bench = Bench::new();
    let station = bench.station();
    let _flow = bench.flow(&station, FlowRule::new(bench.mine()));
    let sent = frame(bench.mac, bench.mac, EXPERIMENT, b"ping");
    station.send(&sent);
    let came = station.received().unwrap();
    assert_eq!((came.len(), &came[..sent.len()]), (60, &sent[..]));
    assert!(came[sent.len()..].iter().all(|&byte| byte == 0));
}

#[test]
fn frames_are_gathered_and_may_be_inline() {
    let bench = Bench::new();
    let station = bench.station();
    let _flow = bench.flow(&station, FlowRule::new(bench.mine()));
    let sent = frame(bench.mac, bench.mac, EXPERIMENT, &[3; 46]);
    station.pair.post_send(&mut [SendWr::frame(Inline(&sent))]).unwrap();
    assert_eq!(station.received().as_ref(), Some(&sent));
    let start = 8 * ROOM;
    station.memory.bytes().write(start, &sent).unwrap();
    let part = |from: usize, to: usize| station.memory.segment(start + from..start + to).unwrap();
    let parts = [part(0, 14), part(14, 60)];
    station.pair.post_send(&mut [SendWr::frame(&parts)]).unwrap();
    assert_eq!(station.received(), Some(sent));
}

#[test]
fn unknown_addresses_and_groups_reach_every_other_port() {
    let (a, b, c) = (Bench::new(), Bench::new(), Bench::new());
    // Tests run at the same time on one switch: this type of frame is this test's alone.
    let only_here = EthernetMatch::new().ether_type(0x88b6);
    let stations = [&a, &b, &c].map(|bench| {
        let station = bench.station();
        let flow = bench.flow(&station, FlowRule::new(PacketMatch::new().ethernet(only_here)));
        (station, flow)
    });
    let group = MacAddress([1, 0, 0x5e, 0, 0, 1]);
    for to in [MacAddress::BROADCAST, group, MacAddress([2, 9, 9, 9, 9, 9])] {
        let sent = frame(to, a.mac, 0x88b6, &[5; 46]);
        stations[0].0.send(&sent);
        let came = stations.each_ref().map(|(station, _)| station.received());
        assert_eq!(came, [None, Some(sent.clone()), Some(sent)], "{to}");
    }
    assert!(group.is_multicast() && MacAddress::BROADCAST.is_multicast());
}

#[test]
fn a_port_that_is_down_neither_sends_nor_receives() {
    let (a, b) = (Bench::new(), Bench::new());
    let (sender, receiver) = (a.station(), b.station());
    let _flow = b.flow(&receiver, FlowRule::new(b.mine()));
    let sent = frame(b.mac, a.mac, EXPERIMENT, &[7; 50]);
    for down in [&a, &b] {
        down.device.set_port_active(1, false);
        sender.send(&sent);
        assert_eq!(receiver.received(), None);
        down.device.set_port_active(1, true);
    }
    sender.send(&sent);
    assert!(receiver.received().is_some());
}

#[test]
fn a_frame_that_cannot_be_ends_in_an_error() {
    let bench = Bench::new();
    for length in [0, 13] {
        let station = bench.station();
        let bytes = vec![0; length];
        station.pair.post_send(&mut [SendWr::frame(Inline(&bytes)).id(3)]).unwrap();
        let mut slots = ibverbs::Completion::slots::<1>();
        let found = station.sends.poll(&mut slots).unwrap();
        assert_eq!(found[0].status(), CompletionStatus::LOCAL_LENGTH_ERROR);
        assert_eq!(station.pair.query().unwrap().state(), QueuePairState::ERROR);
    }
}

#[test]
fn a_frame_longer_than_its_receive_breaks_the_queue_pair() {
    let (a, b) = (Bench::new(), Bench::new());
    let (sender, receiver) = (a.station(), b.station());
    let _flow = b.flow(&receiver, FlowRule::new(b.mine()));
    let long = frame(b.mac, a.mac, EXPERIMENT, &vec![1; ROOM]);
    // Sent in two parts, since a station's place has room for one frame only.
    let parts = [sender.memory.segment(0..14).unwrap(), sender.memory.segment(0..ROOM).unwrap()];
    sender.memory.bytes().write(0, &long[..14]).unwrap();
    sender.pair.post_send(&mut [SendWr::frame(&parts)]).unwrap();
    let mut slots = ibverbs::Completion::slots::<1>();
    let found = receiver.receives.poll(&mut slots).unwrap();
    assert_eq!(found[0].status(), CompletionStatus::LOCAL_LENGTH_ERROR);
    assert_eq!(receiver.pair.query().unwrap().state(), QueuePairState::ERROR);
}

#[test]
fn receives_can_come_from_a_shared_queue_and_drain() {
    let bench = Bench::new();
    let queue = bench.queue();
    let options = SharedReceiveQueueOptions::new(4);
    let shared = std::sync::Arc::new(SharedReceiveQueue::create(&bench.domain, options).unwrap());
    let builder = QueuePair::<RawPacket, Reset>::builder(&bench.domain, &queue, &queue);
    let pair = builder.shared_receive_queue(&shared).create().unwrap();
    // The states one by one: receives may be posted, and rules made, before it sends.
    let pair = pair.initialize(bench.port).unwrap().ready_to_receive().unwrap();
    let rule = FlowRule::new(bench.mine());
    drop(Flow::create(&pair, bench.port, rule).unwrap());
    let pair = pair.ready_to_send().unwrap();
    pair.drain(std::time::Duration::from_secs(60), |_| ()).unwrap();
    let pair = pair.reset().unwrap().start(bench.port).unwrap();
    assert_eq!(pair.query().unwrap().state(), QueuePairState::READY_TO_SEND);
}

#[test]
fn tags_of_vlans_are_taken_out_where_that_was_asked_for() {
    let bench = Bench::new();
    for posting in [Posting::Extended, Posting::Classic] {
        let queue = bench.extended_queue();
        let station = bench.station_with(&queue, posting, true);
        let flow = bench.flow(&station, FlowRule::new(bench.mine()).tag(0x00ab_cdef));
        let plain = frame(bench.mac, bench.mac, EXPERIMENT, &[4; 60]);
        station.send(&tagged(plain.clone(), 0x6005));
        let completion = station.extended().unwrap();
        let work = completion.outcome().unwrap();
        assert_eq!((work.vlan(), work.flow_tag()), (Some(0x6005), Some(0x00ab_cdef)));
        assert_eq!(station.frame_at(work.id(), work.byte_length().unwrap()), plain);
        drop((flow, station));
    }
    bench.end();
}

#[test]
fn checksums_are_filled_in_and_looked_at() {
    let bench = Bench::new();
    assert!(bench.context.query_device().unwrap().has_raw_packet_checksums());
    let station = bench.station();
    let _flow = bench.flow(&station, FlowRule::new(bench.mine()));
    let (source, destination) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let packet = ipv4(bench.mac, 6, (source, 1000), (destination, 80));
    station.memory.bytes().write(8 * ROOM, &packet).unwrap();
    let bytes = station.memory.segment(8 * ROOM..8 * ROOM + packet.len()).unwrap();
    for filled in [false, true] {
        let request = SendWr::frame(bytes);
        let request = if filled { request.fill_checksums() } else { request };
        station.pair.post_send(&mut [request]).unwrap();
        let mut slots = ibverbs::Completion::slots::<1>();
        let found = station.receives.poll(&mut slots).unwrap();
        let work = found[0].outcome().unwrap();
        assert_eq!(work.has_right_checksums(), filled);
        let came = station.frame_at(work.id(), work.byte_length());
        assert_eq!((came[24..26] != [0, 0], came[50..52] != [0, 0]), (filled, filled));
    }
    // A queue that reads more tells it too.
    let other = Bench::new();
    let strange = other.station_with(&other.extended_queue(), Posting::Extended, false);
    let _flow = other.flow(&strange, FlowRule::new(other.mine()));
    let packet = ipv4(other.mac, 17, (source, 1000), (destination, 80));
    strange.pair.post_send(&mut [SendWr::frame(Inline(&packet[..62])).fill_checksums()]).unwrap();
    let completion = strange.extended().unwrap();
    assert_eq!(completion.outcome().unwrap().has_right_checksums(), Some(true));
}

#[test]
fn a_queue_pair_without_the_capability_says_which_it_is() {
    let bench = Bench::new();
    let queue = bench.queue();
    for verb in ["ibv_create_qp_ex", "ibv_create_qp"] {
        bench.device.refuse(verb, 1, libc::EPERM);
    }
    let builder = QueuePair::<RawPacket, Reset>::builder(&bench.domain, &queue, &queue);
    let error = builder.create().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EPERM));
    assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
}

#[test]
fn each_port_has_flows_of_its_own() {
    let (bench, other) = (Bench::of(SoftDevice::builder().ports(2)), Bench::new());
    let second = PortNumber::new(2).unwrap();
    let stations = [bench.station(), bench.station()];
    let address = MacAddress(bench.device.mac(2).unwrap());
    assert_ne!(address, bench.mac);
    let header = EthernetMatch::new().ether_type(0x88ba);
    let rule = || FlowRule::new(PacketMatch::new().ethernet(header));
    let _first = bench.flow(&stations[0], rule());
    let _second = Flow::create(&stations[1].pair, second, rule()).unwrap();
    let sender = other.station();
    for (to, came) in [(bench.mac, [true, false]), (address, [false, true])] {
        sender.send(&frame(to, other.mac, 0x88ba, &[0; 46]));
        assert_eq!(stations.each_ref().map(|station| station.received().is_some()), came);
    }
    // The other port of the same device is one more on the switch.
    stations[0].send(&frame(address, bench.mac, 0x88ba, &[0; 46]));
    assert!(stations[1].received().is_some());
}

#[test]
fn a_rate_can_be_set_while_it_sends() {
    let bench = Bench::new();
    let station = bench.station();
    station.pair.modify(&QueuePairChange::within().rate_limit(1000)).unwrap();
    let wrong = QueuePairChange::within().queue_key(QueueKey(1));
    let error = station.pair.modify(&wrong).unwrap_err();
    assert!(error.to_string().contains("IBV_QP_QKEY"), "{error}");
}

#[test]
fn only_ethernet_has_frames() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let bench = Bench::of(SoftDevice::builder().link_layer(link));
        let queue = bench.queue();
        let builder = QueuePair::<RawPacket, Reset>::builder(&bench.domain, &queue, &queue);
        assert_eq!(builder.create().is_ok(), link == LinkLayer::Ethernet);
    }
}

#[test]
fn a_device_without_extended_posting_sends_frames_too() {
    let bench = Bench::of(SoftDevice::builder().extended_posting(false));
    let queue = bench.queue();
    let builder = QueuePair::<RawPacket, Reset>::builder(&bench.domain, &queue, &queue);
    let builder = builder.operations(Operations::SEND);
    let pair = builder.create().unwrap().start(bench.port).unwrap();
    assert_eq!(pair.posting(), Posting::Classic);
    let sent = frame(bench.mac, bench.mac, EXPERIMENT, &[1; 46]);
    let memory =
        ibverbs::MemoryRegion::register(&bench.domain, sent, ibverbs::Access::READ_ONLY).unwrap();
    let request = SendWr::frame(memory.segment(..).unwrap());
    pair.post_send(&mut [request.signaled()]).unwrap();
    let mut slots = ibverbs::Completion::slots::<1>();
    queue.poll(&mut slots).unwrap()[0].outcome().unwrap();
}

#[test]
fn the_link_address_behind_a_gid_is_found() {
    let (bench, other) = (Bench::new(), Bench::new());
    let here = bench.context.local_port(&DeviceSelector::default()).unwrap();
    let there = other.context.local_port(&DeviceSelector::default()).unwrap();
    let resolve = |gid| bench.context.resolve_link_address(&Address::new(&here, gid, 0));
    assert_eq!(resolve(there.gid.gid).unwrap(), (other.mac, None));
    assert_eq!(resolve(here.gid.gid).unwrap(), (bench.mac, None));
    let group = MacAddress([0x33, 0x33, 0, 0, 0, 0x16]);
    assert_eq!(resolve("ff02::16".parse().unwrap()).unwrap(), (group, None));
    let error = resolve("2001:db8::1".parse().unwrap()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EHOSTUNREACH));
    assert_eq!(bench.context.query_port_speed(bench.port).unwrap(), 100_000);
    bench.device.refuse("ibv_query_port_speed", 1, libc::EOPNOTSUPP);
    let error = bench.context.query_port_speed(bench.port).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
}

#[test]
fn the_address_of_a_port_is_that_of_its_first_gid() {
    let bench = Bench::new();
    let gid = bench.context.query_gid(bench.port, 0).unwrap();
    assert_eq!(MacAddress::of_link_local(gid), Some(bench.mac));
}
