//! Which frames a flow takes, and what becomes of them.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ibverbs::{
    CounterKind, Error, EthernetMatch, Flow, FlowCounters, FlowRule, Ipv4Match, Ipv6Match,
    MacAddress, PacketMatch, PortMatch, PortNumber, Posting,
};

use crate::support::{Bench, EXPERIMENT, Station, frame, ipv4, tagged};

const TCP: u8 = 6;
const UDP: u8 = 17;
const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

fn counters(bench: &Bench) -> Arc<FlowCounters<'static>> {
    let kinds = [CounterKind::PACKETS, CounterKind::BYTES];
    Arc::new(FlowCounters::create(&bench.context, &kinds).unwrap())
}

fn counted(counters: &FlowCounters<'_>) -> [u64; 2] {
    let mut values = [u64::MAX; 2];
    counters.read(&mut values).unwrap();
    values
}

/// Whether a flow for these packets takes each of the frames.
fn takes<const N: usize>(bench: &Bench, packets: PacketMatch, frames: [&[u8]; N]) -> [bool; N] {
    let station = bench.station();
    let _flow = bench.flow(&station, FlowRule::new(packets));
    frames.map(|frame| {
        station.send(frame);
        station.received().is_some()
    })
}

/// Frames to the device itself, by their Ethernet header.
fn ethernet(bench: &Bench) -> EthernetMatch {
    EthernetMatch::new().destination(bench.mac)
}

#[test]
fn an_ethernet_header_is_matched_field_by_field() {
    let bench = Bench::new();
    let from = |last: u8| MacAddress([2, 0, 0, 0, 0, last]);
    let one = frame(bench.mac, from(1), EXPERIMENT, &[0; 46]);
    let two = frame(bench.mac, from(2), 0x88b6, &[0; 46]);
    let in_five = tagged(one.clone(), 0xe005);
    let in_six = tagged(one.clone(), 6);
    let frames = [&one[..], &two[..], &in_five[..], &in_six[..]];
    let all = PacketMatch::new();
    for (header, taken) in [
        (ethernet(&bench), [true; 4]),
        (ethernet(&bench).source(from(2)), [false, true, false, false]),
        (ethernet(&bench).ether_type(EXPERIMENT), [true, false, true, true]),
        // Of whatever priority.
        (ethernet(&bench).vlan(5).unwrap(), [false, false, true, false]),
        (
            ethernet(&bench).source_in(from(0), MacAddress([0xff, 0, 0, 0, 0, 1])),
            [false, true, false, false],
        ),
        (EthernetMatch::new().destination(from(1)), [false; 4]),
    ] {
        assert_eq!(takes(&bench, all.clone().ethernet(header), frames), taken, "{header:?}");
    }
}

#[test]
fn packets_of_ipv4_are_matched_by_address_protocol_and_port() {
    let bench = Bench::new();
    let request = ipv4(bench.mac, UDP, (THERE, 4000), (HERE, 53));
    let other = ipv4(bench.mac, UDP, (THERE, 53), (HERE, 4000));
    let stream = ipv4(bench.mac, TCP, (THERE, 4000), (HERE, 53));
    let frames = [&request[..], &other[..], &stream[..]];
    let mine = bench.mine();
    let any = Ipv4Match::new;
    for (packets, taken) in [
        (mine.clone().ipv4(any()), [true; 3]),
        (mine.clone().ipv4(any().source(THERE).destination(HERE)), [true; 3]),
        (mine.clone().ipv4(any().source(HERE)), [false; 3]),
        (mine.clone().ipv4(any().source_in(Ipv4Addr::new(198, 51, 0, 0), 16).unwrap()), [true; 3]),
        (
            mine.clone().ipv4(any().destination_in(Ipv4Addr::new(192, 0, 3, 0), 24).unwrap()),
            [false; 3],
        ),
        (mine.clone().ipv4(any().protocol(TCP)), [false, false, true]),
        (mine.clone().ipv4(any().time_to_live(63)), [false; 3]),
        (mine.clone().ipv4(any().type_of_service(0)), [true; 3]),
        (mine.clone().ipv4(any()).udp(PortMatch::new().destination(53)), [true, false, false]),
        (mine.clone().ipv4(any()).udp(PortMatch::new().source(53)), [false, true, false]),
        (mine.clone().tcp(PortMatch::new()), [false, false, true]),
        (mine.clone().ipv6(Ipv6Match::new()), [false; 3]),
    ] {
        assert_eq!(takes(&bench, packets.clone(), frames), taken, "{packets:?}");
    }
}

#[test]
fn packets_of_ipv6_are_matched_too() {
    let bench = Bench::new();
    let (source, destination): (Ipv6Addr, Ipv6Addr) =
        ("2001:db8::1".parse().unwrap(), "2001:db8:1::2".parse().unwrap());
    let mut packet = vec![0x6a, 0xb1, 0x23, 0x45, 0, 8, UDP, 64];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend([0x10, 0, 0, 53, 0, 8, 0, 0]);
    let request = frame(bench.mac, bench.mac, 0x86dd, &packet);
    let mine = bench.mine();
    let any = Ipv6Match::new;
    for (packets, taken) in [
        (mine.clone().ipv6(any().source(source).destination(destination)), true),
        (mine.clone().ipv6(any().destination(source)), false),
        (mine.clone().ipv6(any().source_in("2001:db8::".parse().unwrap(), 32).unwrap()), true),
        (
            mine.clone().ipv6(any().destination_in("2001:db8:2::".parse().unwrap(), 48).unwrap()),
            false,
        ),
        (mine.clone().ipv6(any().flow_label(0x1_2345).unwrap()), true),
        (mine.clone().ipv6(any().flow_label(0x1_2346).unwrap()), false),
        (mine.clone().ipv6(any().traffic_class(0xab).hop_limit(64).next_header(UDP)), true),
        (mine.clone().ipv6(any()).udp(PortMatch::new().source(0x1000).destination(53)), true),
        (mine.clone().ipv6(any()).udp(PortMatch::new().destination(54)), false),
    ] {
        assert_eq!(takes(&bench, packets.clone(), [&request]), [taken], "{packets:?}");
    }
}

#[test]
fn what_a_tunnel_carries_is_matched_inside_of_it() {
    let bench = Bench::new();
    let inner = ipv4(MacAddress([2, 0, 0, 0, 0, 5]), TCP, (HERE, 80), (THERE, 9));
    let mut request = ipv4(bench.mac, UDP, (THERE, 4000), (HERE, 4789));
    request.truncate(42);
    request.extend([8, 0, 0, 0, 0, 0x12, 0x34, 0]);
    request.extend(&inner);
    let outside = bench.mine().udp(PortMatch::new().destination(4789));
    let inside = PacketMatch::new().ipv4(Ipv4Match::new().source(HERE));
    let vxlan = |network, inside: PacketMatch| outside.clone().vxlan(network, inside).unwrap();
    for (packets, taken) in [
        (outside.clone(), true),
        (vxlan(0x1234, PacketMatch::new()), true),
        (vxlan(0x1235, PacketMatch::new()), false),
        (vxlan(0x1234, inside.clone().tcp(PortMatch::new().source(80))), true),
        (vxlan(0x1234, inside.udp(PortMatch::new())), false),
    ] {
        assert_eq!(takes(&bench, packets.clone(), [&request]), [taken], "{packets:?}");
    }
}

#[test]
fn the_rule_of_the_smaller_number_gets_a_frame_that_several_want() {
    let bench = Bench::new();
    let stations = [(); 3].map(|()| bench.station());
    let rule = |priority| FlowRule::new(bench.mine()).priority(priority);
    let flows = [2, 1, 3].map(rule);
    let [first, second, third] = flows;
    let _first = bench.flow(&stations[0], first);
    let second = bench.flow(&stations[1], second);
    let third = bench.flow(&stations[2], third.let_pass());
    let sent = frame(bench.mac, bench.mac, EXPERIMENT, &[0; 46]);
    let who = || {
        stations[0].send(&sent);
        stations.each_ref().map(|station| station.received().is_some())
    };
    assert_eq!(who(), [false, true, false]);
    drop(second);
    assert_eq!(who(), [true, false, false]);
    drop(third);
    let _before = bench.flow(&stations[2], rule(0).let_pass());
    assert_eq!(who(), [true, false, true], "it lets pass what it saw");
}

#[test]
fn frames_that_no_rule_takes_go_to_those_for_the_rest() {
    let (bench, other) = (Bench::new(), Bench::new());
    let stations = [(); 4].map(|()| bench.station());
    let [named, groups, rest, sniffer] = &stations;
    let only_here = EthernetMatch::new().ether_type(0x88b7);
    let _named = bench.flow(named, FlowRule::new(bench.mine().ethernet(only_here)));
    let _groups = bench.flow(groups, FlowRule::remaining_multicast());
    let _rest = bench.flow(rest, FlowRule::remaining());
    let _sniffer = bench.flow(sniffer, FlowRule::sniffer());
    let sender = other.station();
    let send = |to: MacAddress, ether_type: u16| {
        sender.send(&frame(to, other.mac, ether_type, &[0; 46]));
        // Frames to groups come from other tests as well, so that only this sender's count.
        stations.each_ref().map(|station| {
            let mine = |frame: &Vec<u8>| frame[6..12] == other.mac.0;
            std::iter::from_fn(|| station.received()).any(|frame| mine(&frame))
        })
    };
    assert_eq!(send(bench.mac, 0x88b7), [true, false, false, true]);
    assert_eq!(send(MacAddress::BROADCAST, 0x88b9), [false, true, false, true]);
    assert_eq!(send(bench.mac, 0x88b9), [false, false, true, true]);
    // What the port sends is seen as well.
    let away = frame(other.mac, bench.mac, 0x88b9, &[0; 46]);
    named.send(&away);
    let seen: Vec<_> = std::iter::from_fn(|| sniffer.received()).collect();
    assert!(seen.contains(&away));
}

#[test]
fn packets_and_bytes_are_counted_also_of_what_is_discarded() {
    let bench = Bench::new();
    let (taken, discarded) = (counters(&bench), counters(&bench));
    let station = bench.station();
    let udp = |port| bench.mine().ipv4(Ipv4Match::new()).udp(PortMatch::new().destination(port));
    let rule = FlowRule::new(udp(53)).count(&taken);
    let flows = [
        bench.flow(&station, rule),
        bench.flow(&station, FlowRule::new(udp(54)).count(&taken)),
        bench.flow(&station, FlowRule::new(udp(55)).count(&discarded).discard()),
    ];
    assert_eq!(flows[0].counters().unwrap().as_raw(), taken.as_raw());
    let send = |port| station.send(&ipv4(bench.mac, UDP, (THERE, 1), (HERE, port)));
    (53..57).for_each(send);
    send(55);
    let came: Vec<_> = std::iter::from_fn(|| station.received()).collect();
    assert_eq!(came.len(), 2);
    let length = came[0].len() as u64;
    assert_eq!(counted(&taken), [2, 2 * length]);
    assert_eq!(counted(&discarded), [2, 2 * length]);
    let mut cached = [0; 2];
    taken.read_cached(&mut cached).unwrap();
    assert_eq!(cached, counted(&taken));
    drop(flows);
    // They keep what they counted.
    send(53);
    assert_eq!(counted(&taken), [2, 2 * length]);
    drop((taken, discarded, station));
    bench.end();
}

#[test]
fn a_tag_tells_which_rule_a_frame_came_by() {
    let bench = Bench::new();
    let station = bench.station_with(&bench.extended_queue(), Posting::Extended, false);
    let rule = |ether_type| {
        FlowRule::new(PacketMatch::new().ethernet(ethernet(&bench).ether_type(ether_type)))
    };
    let rules = [rule(0x88b5).tag(5), rule(0x88b6).tag(6), rule(0x88b7)];
    let _flows = rules.map(|rule| bench.flow(&station, rule));
    for (ether_type, tag) in [(0x88b6, 6), (0x88b5, 5), (0x88b7, 0)] {
        station.send(&tagged(frame(bench.mac, bench.mac, ether_type, &[0; 46]), 9));
        let completion = station.extended().unwrap();
        let work = completion.outcome().unwrap();
        assert_eq!(work.flow_tag(), Some(tag));
        assert_eq!((work.vlan(), work.byte_length()), (Some(0), Some(64)), "it is not taken out");
    }
}

#[test]
fn a_rule_that_cannot_be_is_refused_with_its_reason() {
    let (bench, other) = (Bench::new(), Bench::new());
    let station = bench.station();
    let refused = |rule: FlowRule<'static>, port: u8| {
        let port = PortNumber::new(port).unwrap();
        Flow::create(&station.pair, port, rule).unwrap_err()
    };
    let error = refused(FlowRule::new(bench.mine()).tag(1).discard(), 1);
    assert!(error.to_string().contains("nobody would see"), "{error}");
    let error = refused(FlowRule::sniffer().let_pass(), 1);
    assert!(error.to_string().contains("only rules for headers"), "{error}");
    let error = refused(FlowRule::new(bench.mine()).count(counters(&other)), 1);
    assert!(error.to_string().contains("different contexts"), "{error}");
    let error = refused(FlowRule::new(bench.mine()).tag(1 << 24), 1);
    assert_eq!(error.errno(), Some(libc::EINVAL));
    let error = refused(FlowRule::new(bench.mine()), 2);
    assert!(error.to_string().contains("the port is not one of its own"), "{error}");
    bench.device.refuse("ibv_create_flow", 1, libc::ENXIO);
    let error = refused(FlowRule::new(bench.mine()), 1);
    assert!(error.to_string().contains("switched off"), "{error}");
    bench.device.refuse("ibv_create_flow", 1, libc::EPERM);
    let error = refused(FlowRule::new(bench.mine()), 1);
    assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    drop(station);
    bench.end();
    other.end();
}

#[test]
fn counters_are_read_all_at_once_and_are_at_least_one() {
    let bench = Bench::new();
    let counters = counters(&bench);
    let error = counters.read(&mut [0; 3]).unwrap_err();
    assert_eq!(error.to_string(), "the number of places for counters cannot be 3: it must be 2");
    let error = FlowCounters::create(&bench.context, &[]).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { asked: 0, minimum: 1, .. }), "{error}");
    let unknown = [CounterKind::PACKETS, CounterKind(99)];
    let error = FlowCounters::create(&bench.context, &unknown).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOTSUP));
    for verb in ["ibv_create_counters", "ibv_attach_counters_point_flow"] {
        bench.device.refuse(verb, 1, libc::EOPNOTSUPP);
        let kinds = [CounterKind::PACKETS];
        assert!(FlowCounters::create(&bench.context, &kinds).is_err(), "{verb}");
    }
    bench.device.refuse("ibv_read_counters", 1, libc::EIO);
    assert_eq!(counters.read(&mut [0; 2]).unwrap_err().errno(), Some(libc::EIO));
    drop(counters);
    bench.end();
}

#[test]
fn a_station_can_have_many_flows() {
    let bench = Bench::new();
    let station: Station = bench.station();
    let flows: Vec<_> = (0..1000)
        .map(|number| {
            let header = ethernet(&bench).ether_type(0x9000 + number);
            let rule = FlowRule::new(PacketMatch::new().ethernet(header)).priority(number % 7);
            bench.flow(&station, rule)
        })
        .collect();
    station.send(&frame(bench.mac, bench.mac, 0x9000 + 999, &[0; 46]));
    assert!(station.received().is_some());
    drop((station, flows));
    bench.end();
}
