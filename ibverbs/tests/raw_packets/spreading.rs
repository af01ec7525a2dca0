//! Work queues, the tables over them, and the queue pairs that spread frames by their hash.

use std::{net::Ipv4Addr, sync::Arc};

use ibverbs::{
    Access, AsyncEventKind, Completion, CompletionQueue, CompletionStatus, Error, EventSource,
    Flow, FlowRule, HashFields, HashKey, IndirectionTable, Ipv4Match, MacAddress, MemoryRegion,
    ProtectionDomain, RecvWr, RssQueuePair, WorkQueue, WorkQueueState,
};

use crate::support::{Bench, EXPERIMENT, ROOM, Station, frame, ipv4, tagged};

const UDP: u8 = 17;

/// Work queues over one completion queue, and memory for what they receive: each has a place for one frame after another.
struct Workers {
    queues: Vec<Arc<WorkQueue<'static>>>,
    completions: Arc<CompletionQueue<'static>>,
    memory: MemoryRegion<'static, Vec<u8>>,
}

impl Workers {
    fn new(bench: &Bench, count: usize) -> Self {
        let completions = bench.queue();
        let make = |_| Arc::new(WorkQueue::builder(&bench.domain, &completions).create().unwrap());
        let memory = vec![0; count * ROOM];
        let memory = MemoryRegion::register(&bench.domain, memory, Access::LOCAL_WRITE).unwrap();
        Self { queues: (0..count).map(make).collect(), completions, memory }
    }

    fn table(&self) -> Arc<IndirectionTable<'static>> {
        Arc::new(IndirectionTable::create(&self.queues).unwrap())
    }

    /// Posts a receive to each.
    fn post(&self) {
        (0..self.queues.len()).for_each(|number| self.post_to(number));
    }

    /// Posts a receive whose request has the number of its queue.
    fn post_to(&self, number: usize) {
        let memory = self.memory.segment(number * ROOM..(number + 1) * ROOM).unwrap();
        self.queues[number].post_receive(&mut [RecvWr::to(number as u64, memory)]).unwrap();
    }

    /// Which queue took a frame; it gets a new receive.
    fn taker(&self) -> Option<usize> {
        let mut slots = Completion::slots::<1>();
        let found = self.completions.poll(&mut slots).unwrap().first()?;
        let number = usize::try_from(found.outcome().unwrap().id()).unwrap();
        self.post_to(number);
        Some(number)
    }
}

fn spread(
    domain: &Arc<ProtectionDomain<'static>>,
    table: &Arc<IndirectionTable<'static>>,
    fields: HashFields,
) -> Arc<RssQueuePair<'static>> {
    Arc::new(RssQueuePair::create(domain, table, &HashKey::SYMMETRIC, fields).unwrap())
}

/// The hash of the specification, bit by bit: as slow and plain as it is written down.
fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1 == 1;
    let window = |at: usize| (at..at + 32).fold(0, |all, at| all << 1 | u32::from(bit(key, at)));
    (0..input.len() * 8).filter(|&at| bit(input, at)).fold(0, |hash, at| hash ^ window(at))
}

#[test]
fn each_packet_goes_to_the_queue_that_its_hash_names() {
    let bench = Bench::new();
    let sender = bench.station();
    let workers = Workers::new(&bench, 4);
    let table = workers.table();
    assert_eq!(table.queues().len(), 4);
    let mut byte = 0x5b_u8;
    let key = HashKey([(); 40].map(|()| {
        byte = byte.wrapping_mul(37).wrapping_add(11);
        byte
    }));
    let fields = HashFields::IPV4 | HashFields::UDP;
    let pair = Arc::new(RssQueuePair::create(&bench.domain, &table, &key, fields).unwrap());
    let flow = Flow::create(&pair, bench.port, FlowRule::new(bench.mine())).unwrap();
    let mut taken = [0; 4];
    workers.post();
    for number in 0..64_u8 {
        let source = (Ipv4Addr::new(198, 51, 100, number), 1000 + u16::from(number));
        let destination = (Ipv4Addr::new(192, 0, 2, 1), 53);
        sender.send(&ipv4(bench.mac, UDP, source, destination));
        let mut input = [source.0.octets(), destination.0.octets()].concat();
        input.extend([source.1.to_be_bytes(), destination.1.to_be_bytes()].concat());
        let expected = usize::try_from(toeplitz(&key.0, &input) % 4).unwrap();
        assert_eq!(workers.taker(), Some(expected));
        assert_eq!(workers.taker(), None);
        taken[expected] += 1;
    }
    assert!(taken.iter().all(|&count| count > 4), "{taken:?}");
    drop((flow, pair, table, workers, sender));
    bench.end();
}

#[test]
fn only_the_declared_fields_count() {
    let bench = Bench::new();
    let sender: Station = bench.station();
    let workers = Workers::new(&bench, 8);
    let table = workers.table();
    let pair = spread(&bench.domain, &table, HashFields::SOURCE_IPV4);
    let _flow = Flow::create(&pair, bench.port, FlowRule::new(bench.mine())).unwrap();
    let source = Ipv4Addr::new(198, 51, 100, 9);
    workers.post();
    let takers: Vec<_> = (0..8)
        .map(|number| {
            let destination = (Ipv4Addr::new(192, 0, 2, number), 53);
            sender.send(&ipv4(bench.mac, UDP, (source, u16::from(number)), destination));
            workers.taker().unwrap()
        })
        .collect();
    assert!(takers.iter().all(|&taker| taker == takers[0]), "{takers:?}");
    // A frame without any of the fields has the hash 0.
    sender.send(&frame(bench.mac, bench.mac, EXPERIMENT, &[0; 46]));
    assert_eq!(workers.taker(), Some(0));
}

#[test]
fn both_directions_of_a_connection_have_one_hash_under_the_symmetric_key() {
    let (a, b) = (Ipv4Addr::new(198, 51, 100, 9), Ipv4Addr::new(192, 0, 2, 1));
    let bytes = |from: Ipv4Addr, to: Ipv4Addr, ports: [u16; 2]| {
        let ports = ports.map(u16::to_be_bytes).concat();
        [&from.octets()[..], &to.octets(), &ports].concat()
    };
    let key = HashKey::SYMMETRIC.0;
    let there = toeplitz(&key, &bytes(a, b, [4000, 53]));
    assert_eq!(there, toeplitz(&key, &bytes(b, a, [53, 4000])));
    assert_ne!(there, toeplitz(&key, &bytes(b, a, [53, 4001])));
}

#[test]
fn one_queue_can_stand_in_a_table_more_than_once() {
    let bench = Bench::new();
    let workers = Workers::new(&bench, 1);
    let entries = [&workers.queues[0]; 4];
    let table = IndirectionTable::create(entries).unwrap();
    assert!(table.queues().all(|queue| queue.number() == workers.queues[0].number()));
    drop((table, workers));
    bench.end();
}

#[test]
fn a_table_has_a_power_of_two_of_entries_within_the_limit() {
    let (bench, other) = (Bench::new(), Bench::new());
    let workers = Workers::new(&bench, 3);
    let error = IndirectionTable::create(&workers.queues).unwrap_err();
    assert!(error.to_string().contains("not a power of two"), "{error}");
    let none: [&Arc<WorkQueue<'static>>; 0] = [];
    let error = IndirectionTable::create(none).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { asked: 0, minimum: 1, .. }), "{error}");
    let limits = bench.context.query_device().unwrap();
    let most = limits.max_indirection_entries() as usize;
    assert!(most.is_power_of_two() && limits.max_work_queues() > 0);
    let error = IndirectionTable::create(vec![&workers.queues[0]; 2 * most]).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    let foreign = Workers::new(&other, 1);
    let mixed = [&workers.queues[0], &foreign.queues[0]];
    let error = IndirectionTable::create(mixed).unwrap_err();
    assert!(error.to_string().contains("different contexts"), "{error}");
    assert_eq!(bench.device.calls("ibv_create_rwq_ind_table"), 0);
}

#[test]
fn a_work_queue_goes_from_reset_to_ready_to_error_and_back() {
    let bench = Bench::new();
    let completions = bench.queue();
    let mut queue = WorkQueue::builder(&bench.domain, &completions).create().unwrap();
    assert_eq!(queue.state(), WorkQueueState::READY);
    assert_eq!(queue.completion_queue().as_raw(), completions.as_raw());
    queue.post_receive(&mut [RecvWr::new(1)]).unwrap();
    queue.fail().unwrap();
    let mut slots = Completion::slots::<2>();
    let found = completions.poll(&mut slots).unwrap();
    assert_eq!(found[0].status(), CompletionStatus::WORK_FLUSHED);
    let error = queue.make_ready().unwrap_err();
    assert!(error.to_string().contains("call `reset` first"), "{error}");
    queue.reset().unwrap();
    let error = queue.fail().unwrap_err();
    assert!(error.to_string().contains("call `make_ready` first"), "{error}");
    let error = queue.post_receive(&mut [RecvWr::new(1)]).unwrap_err();
    assert_eq!((error.refused(), error.errno()), (Some(0), Some(libc::EINVAL)));
    queue.make_ready().unwrap();
    queue.post_receive(&mut [RecvWr::new(1)]).unwrap();
    queue.post_receive(&mut []).unwrap();
    bench.device.refuse("ibv_modify_wq", 1, libc::EIO);
    assert_eq!(queue.fail().unwrap_err().errno(), Some(libc::EIO));
    assert_eq!(queue.state(), WorkQueueState::READY);
    drop((queue, completions));
    bench.end();
}

#[test]
fn a_full_work_queue_says_so_until_its_receives_end() {
    let bench = Bench::new();
    let completions = bench.queue();
    let builder = WorkQueue::builder(&bench.domain, &completions).max_requests(1);
    let mut queue = builder.strip_vlan().create().unwrap();
    queue.post_receive(&mut [RecvWr::new(1)]).unwrap();
    let error = queue.post_receive(&mut [RecvWr::new(2)]).unwrap_err();
    assert!(error.error().to_string().contains("the queue is full"), "{error}");
    queue.fail().unwrap();
    queue.reset().unwrap();
    queue.make_ready().unwrap();
    queue.post_receive(&mut [RecvWr::new(3)]).unwrap();
}

#[test]
fn a_frame_longer_than_its_receive_breaks_the_work_queue_and_raises_an_event() {
    let bench = Bench::new();
    let sender = bench.station();
    let workers = Workers::new(&bench, 1);
    let table = workers.table();
    let pair = spread(&bench.domain, &table, HashFields::IPV4);
    let flow = Flow::create(&pair, bench.port, FlowRule::new(bench.mine())).unwrap();
    let short = workers.memory.segment(..20).unwrap();
    let queue = &workers.queues[0];
    queue.post_receive(&mut [RecvWr::to(1, short), RecvWr::new(2)]).unwrap();
    sender.send(&tagged(frame(bench.mac, bench.mac, EXPERIMENT, &[0; 46]), 1));
    let mut slots = Completion::slots::<3>();
    let found = workers.completions.poll(&mut slots).unwrap();
    let statuses: Vec<_> = found.iter().map(Completion::status).collect();
    let flushed = CompletionStatus::WORK_FLUSHED;
    assert_eq!(statuses, [CompletionStatus::LOCAL_LENGTH_ERROR, flushed]);
    let event = bench.context.next_event().unwrap();
    assert_eq!(event.kind, AsyncEventKind::WORK_QUEUE_FATAL);
    assert_eq!(event.source, EventSource::WorkQueue(queue.number()));
    // Once the table is gone the queue can be used again.
    drop((flow, pair, table));
    let Workers { queues, completions, memory } = workers;
    let mut queues = queues.into_iter().map(|queue| Arc::into_inner(queue).unwrap());
    let mut queue = queues.next().unwrap();
    queue.reset().unwrap();
    queue.make_ready().unwrap();
    let workers = Workers { queues: vec![Arc::new(queue)], completions, memory };
    let table = workers.table();
    let pair = spread(&bench.domain, &table, HashFields::IPV4);
    let flow = Flow::create(&pair, bench.port, FlowRule::new(bench.mine())).unwrap();
    workers.post();
    sender.send(&frame(bench.mac, bench.mac, EXPERIMENT, &[0; 46]));
    assert_eq!(workers.taker(), Some(0));
    drop((flow, pair, table, workers, sender));
    bench.end();
}

#[test]
fn what_the_device_does_not_hash_is_refused_with_its_reason() {
    let (bench, other) = (Bench::new(), Bench::new());
    let workers = Workers::new(&bench, 1);
    let table = workers.table();
    let refused = |domain: &Arc<ProtectionDomain<'static>>, fields| {
        RssQueuePair::create(domain, &table, &HashKey::SYMMETRIC, fields).unwrap_err()
    };
    let error = refused(&bench.domain, HashFields::IPV4 | HashFields::IPV6);
    assert!(error.to_string().contains("one queue pair for each"), "{error}");
    let error = refused(&bench.domain, HashFields::IPSEC_INDEX);
    assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
    assert!(!bench.context.query_device().unwrap().hash_fields().contains(HashFields::INNER));
    let error = refused(&other.domain, HashFields::IPV4);
    assert!(error.to_string().contains("different contexts"), "{error}");
    bench.device.refuse("ibv_create_qp_ex", 1, libc::EPERM);
    let error = refused(&bench.domain, HashFields::IPV4);
    assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    drop((workers, table));
    bench.end();
}

#[test]
fn one_table_serves_several_queue_pairs() {
    let bench = Bench::new();
    let sender = bench.station();
    let workers = Workers::new(&bench, 2);
    let table = workers.table();
    let tcp = spread(&bench.domain, &table, HashFields::IPV4 | HashFields::TCP);
    let udp = spread(&bench.domain, &table, HashFields::IPV4 | HashFields::UDP);
    assert_ne!(tcp.number(), udp.number());
    assert_eq!(tcp.indirection_table().as_raw(), udp.indirection_table().as_raw());
    let rule = |protocol| FlowRule::new(bench.mine().ipv4(Ipv4Match::new().protocol(protocol)));
    let flows = [(&tcp, 6), (&udp, UDP)]
        .map(|(pair, protocol)| Flow::create(pair, bench.port, rule(protocol)).unwrap());
    let from = (Ipv4Addr::new(198, 51, 100, 9), 7);
    workers.post();
    for protocol in [6, UDP, 1] {
        sender.send(&ipv4(bench.mac, protocol, from, (Ipv4Addr::new(192, 0, 2, 1), 53)));
        assert_eq!(workers.taker().is_some(), protocol != 1);
    }
    drop((flows, tcp, udp, table, workers, sender));
    bench.end();
}

#[test]
fn a_refused_step_of_making_a_work_queue_leaves_nothing() {
    let bench = Bench::new();
    let completions = bench.queue();
    for verb in ["ibv_create_wq", "ibv_modify_wq"] {
        bench.device.refuse(verb, 1, libc::ENOMEM);
        let error = WorkQueue::builder(&bench.domain, &completions).create().unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOMEM), "{verb}");
    }
    let builder = WorkQueue::builder(&bench.domain, &completions).max_segments(1 << 20);
    assert!(matches!(builder.create().unwrap_err(), Error::OutOfRange { .. }));
    let other = Bench::new();
    let error = WorkQueue::builder(&other.domain, &completions).create().unwrap_err();
    assert!(error.to_string().contains("different contexts"), "{error}");
    drop(completions);
    bench.end();
}

#[test]
fn addresses_are_read_as_they_are_printed() {
    let address: MacAddress = "02:00:5e:10:00:01".parse().unwrap();
    assert_eq!(address.to_string(), "02:00:5e:10:00:01");
}
