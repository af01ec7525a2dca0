//! Frames of any bytes, from several threads, while rules come and go.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use ibverbs::{
    Access, Completion, CounterKind, EthernetMatch, Flow, FlowCounters, FlowRule, HashFields,
    HashKey, IndirectionTable, Inline, Ipv4Match, PacketMatch, PortMatch, QueuePair, RawPacket,
    RecvWr, RssQueuePair, SendWr, WorkQueue,
};

use crate::support::{Bench, ROOM};

/// Frames that each thread sends.
const FRAMES: u64 = 2_000;

/// The dice of xorshift.
fn throw(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A frame to the address of a device; the rest is chance, in most of them behind the types of IP and of VLANs.
fn random_frame(to: [u8; 6], dice: &mut u64) -> Vec<u8> {
    let length = 14 + usize::try_from(throw(dice) % 200).unwrap();
    let mut bytes: Vec<u8> = (0..length).map(|_| throw(dice).to_le_bytes()[3]).collect();
    bytes[..6].copy_from_slice(&to);
    let kind: &[u8] = match throw(dice) % 6 {
        0 => &[8, 0, 0x45],
        1 => &[8, 0],
        2 => &[0x86, 0xdd, 0x60],
        3 => &[0x81, 0, 0, 1, 8, 0, 0x45],
        4 => &[0x81, 0],
        _ => &[],
    };
    let end = (12 + kind.len()).min(length);
    bytes[12..end].copy_from_slice(&kind[..end - 12]);
    // In some, UDP to the port of tunnels.
    if throw(dice).is_multiple_of(3) && length > 60 {
        bytes[23] = 17;
        bytes[36..38].copy_from_slice(&4789_u16.to_be_bytes());
    }
    bytes
}

#[test]
fn frames_of_any_bytes_pass_rules_that_come_and_go() {
    let bench = Bench::new();
    storm(&bench);
    bench.end();
}

fn storm(bench: &Bench) {
    let (sends, receives) = (bench.queue(), bench.queue());
    let builder = QueuePair::<RawPacket, _>::builder(&bench.domain, &receives, &receives);
    let receiver = builder.create().unwrap().start(bench.port).unwrap();
    let workers = [(); 2].map(|()| WorkQueue::builder(&bench.domain, &receives).create().unwrap());
    let table = IndirectionTable::create(&workers).unwrap();
    let fields = HashFields::IPV4 | HashFields::UDP;
    let spread = RssQueuePair::create(&bench.domain, &table, &HashKey::SYMMETRIC, fields).unwrap();
    let kinds = [CounterKind::PACKETS, CounterKind::BYTES];
    let counters = FlowCounters::create(&bench.context, &kinds).unwrap();
    let memory = bench.domain.register(vec![0; ROOM], Access::LOCAL_WRITE).unwrap();
    let done = AtomicBool::new(false);
    let to_us = EthernetMatch::new().destination(bench.mac);
    let mine = || PacketMatch::new().ethernet(to_us);
    let rest = FlowRule::new(mine()).priority(9).count(&counters);
    let _rest = Flow::create(&receiver, bench.port, rest).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let udp = mine().udp(PortMatch::new().destination(4789));
                let inside = PacketMatch::new().ipv4(Ipv4Match::new());
                let rules = [
                    FlowRule::new(mine().ipv4(Ipv4Match::new())).priority(3),
                    FlowRule::new(udp.clone()).priority(1).tag(7).let_pass(),
                    FlowRule::new(udp.vxlan(5, inside).unwrap()).discard().count(&counters),
                ];
                for rule in rules {
                    drop(Flow::create(&spread, bench.port, rule).unwrap());
                }
                drop(Flow::create(&receiver, bench.port, FlowRule::sniffer()).unwrap());
            }
        });
        scope.spawn(|| {
            let mut slots = Completion::slots::<16>();
            while !done.load(Ordering::Relaxed) {
                for completion in receives.poll(&mut slots).unwrap() {
                    completion.outcome().unwrap();
                }
                let receive = || [RecvWr::to(1, memory.segment(..).unwrap())];
                // Full queues are as good as any.
                drop(receiver.post_receive(&mut receive()));
                for worker in &workers {
                    drop(worker.post_receive(&mut receive()));
                }
            }
        });
        let senders = [1_u64, 2].map(|seed| {
            let sends = &sends;
            scope.spawn(move || {
                let builder = QueuePair::<RawPacket, _>::builder(&bench.domain, sends, sends);
                let pair = builder.signal_all().max_inline(256).create().unwrap();
                let pair = pair.start(bench.port).unwrap();
                let mut dice = seed;
                let mut slots = Completion::slots::<16>();
                for _ in 0..FRAMES {
                    let frame = random_frame(bench.mac.0, &mut dice);
                    let request = || SendWr::frame(Inline(&frame)).fill_checksums();
                    while pair.post_send(&mut [request()]).is_err() {
                        for completion in sends.poll(&mut slots).unwrap() {
                            completion.outcome().unwrap();
                        }
                    }
                }
            })
        });
        for sender in senders {
            sender.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let mut counted = [0; 2];
    counters.read(&mut counted).unwrap();
    assert!(counted[0] > 0 && counted[1] >= 60 * counted[0], "{counted:?}");
}
