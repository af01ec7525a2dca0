//! Who keeps whom: nothing that a flow, a table or a spreading queue pair needs ends before it, and what cannot be destroyed is
//! leaked.

use std::{any::Any, mem, sync::Arc};

use ibverbs::{
    CounterKind, Flow, FlowCounters, FlowRule, HashFields, HashKey, IndirectionTable, RssQueuePair,
    WorkQueue,
};

use crate::{
    log_lines::logged,
    support::{Bench, EXPERIMENT, frame},
};

/// Every order of so many things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for next in 0..count {
        let longer = |order: &Vec<usize>| {
            (0..=order.len())
                .map(|place| [&order[..place], &[next], &order[place..]].concat())
                .collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// Drops things in an order.
fn drop_in(order: &[usize], mut parts: Vec<Option<Box<dyn Any>>>) {
    for &part in order {
        drop(parts[part].take());
    }
}

fn part<T: 'static>(thing: T) -> Option<Box<dyn Any>> {
    Some(Box::new(thing))
}

#[test]
fn a_flow_keeps_its_queue_pair_and_counters_whatever_is_dropped_first() {
    for order in orders(5) {
        let bench = Bench::new();
        let station = bench.station();
        let kinds = [CounterKind::PACKETS];
        let counters = Arc::new(FlowCounters::create(&bench.context, &kinds).unwrap());
        let flow = bench.flow(&station, FlowRule::new(bench.mine()).count(&counters));
        let Bench { domain, context, device, .. } = bench;
        let parts = vec![part(flow), part(station), part(counters), part(domain), part(context)];
        drop_in(&order, parts);
        assert_eq!(device.leaks(), [""; 0], "{order:?}");
        assert_eq!(device.violations(), [""; 0], "{order:?}");
    }
}

#[test]
fn a_spreading_queue_pair_keeps_its_table_and_that_its_queues() {
    for order in orders(6) {
        let bench = Bench::new();
        let completions = bench.queue();
        let queue = || Arc::new(WorkQueue::builder(&bench.domain, &completions).create().unwrap());
        let queues = [queue(), queue()];
        let table = Arc::new(IndirectionTable::create(&queues).unwrap());
        let (key, fields) = (HashKey::SYMMETRIC, HashFields::IPV4);
        let pair = RssQueuePair::create(&bench.domain, &table, &key, fields).unwrap();
        let pair = Arc::new(pair);
        let flow = Flow::create(&pair, bench.port, FlowRule::new(bench.mine())).unwrap();
        let Bench { domain, context, device, .. } = bench;
        let parts = vec![
            part(flow),
            part(pair),
            part(table),
            part(queues),
            part(completions),
            part((domain, context)),
        ];
        drop_in(&order, parts);
        assert_eq!(device.leaks(), [""; 0], "{order:?}");
    }
}

#[test]
#[expect(clippy::mem_forget, reason = "safe code may")]
fn a_forgotten_flow_keeps_what_it_leads_to_and_frees_no_memory_under_the_device() {
    let (bench, other) = (Bench::new(), Bench::new());
    let (station, sender) = (bench.station(), other.station());
    mem::forget(bench.flow(&station, FlowRule::new(bench.mine())));
    let pair = Arc::clone(&station.pair);
    drop(station);
    // The memory is deregistered, so that a frame finds none: the queue pair breaks, and nothing is written.
    sender.send(&frame(bench.mac, other.mac, EXPERIMENT, &[9; 50]));
    let Bench { domain, context, device, .. } = bench;
    drop((pair, domain, context));
    let leaks = device.leaks();
    assert!(leaks.iter().any(|leak| leak.starts_with("flow ")), "{leaks:?}");
    assert!(!leaks.iter().any(|leak| leak.contains("memory region")), "{leaks:?}");
    assert_eq!(device.violations(), [""; 0]);
}

#[test]
fn a_flow_that_is_not_destroyed_is_leaked_with_what_it_leads_to() {
    let bench = Bench::new();
    let station = bench.station();
    let kinds = [CounterKind::BYTES];
    let counters = Arc::new(FlowCounters::create(&bench.context, &kinds).unwrap());
    let flow = bench.flow(&station, FlowRule::new(bench.mine()).count(counters));
    bench.device.refuse("ibv_destroy_flow", 1, libc::EIO);
    let ((), lines) = logged(|| drop((flow, station)));
    for verb in ["ibv_destroy_flow", "ibv_destroy_counters", "ibv_destroy_qp"] {
        assert!(lines.contains(&format!("{verb} failed")), "{lines}");
    }
    let leaks = bench.device.leaks();
    for kind in ["flow ", "flow counters ", "queue pair "] {
        assert!(leaks.iter().any(|leak| leak.starts_with(kind)), "{leaks:?}");
    }
}

#[test]
fn a_table_that_is_not_destroyed_is_leaked_with_its_queues() {
    let bench = Bench::new();
    let completions = bench.queue();
    let queue = Arc::new(WorkQueue::builder(&bench.domain, &completions).create().unwrap());
    let table = IndirectionTable::create([&queue]).unwrap();
    bench.device.refuse("ibv_destroy_rwq_ind_table", 1, libc::EIO);
    let ((), lines) = logged(|| drop((table, queue, completions)));
    for verb in ["ibv_destroy_rwq_ind_table", "ibv_destroy_wq", "ibv_destroy_cq"] {
        assert!(lines.contains(&format!("{verb} failed")), "{lines}");
    }
}

#[test]
fn each_object_is_destroyed_once() {
    let bench = Bench::new();
    let completions = bench.queue();
    let queue = Arc::new(WorkQueue::builder(&bench.domain, &completions).create().unwrap());
    let table = Arc::new(IndirectionTable::create([&queue]).unwrap());
    let (key, fields) = (HashKey::SYMMETRIC, HashFields::IPV4);
    let pair = Arc::new(RssQueuePair::create(&bench.domain, &table, &key, fields).unwrap());
    let kinds = [CounterKind::BYTES];
    let counters = Arc::new(FlowCounters::create(&bench.context, &kinds).unwrap());
    let rule = FlowRule::new(bench.mine()).count(&counters);
    drop(Flow::create(&pair, bench.port, rule).unwrap());
    drop((pair, table, queue, counters, completions));
    for verb in [
        "ibv_destroy_flow",
        "ibv_destroy_counters",
        "ibv_destroy_wq",
        "ibv_destroy_rwq_ind_table",
        "ibv_destroy_qp",
    ] {
        assert_eq!(bench.device.calls(verb), 1, "{verb}");
    }
    bench.end();
}

#[test]
fn everything_goes_between_threads() {
    fn both<T: Send + Sync>() {}
    both::<Flow<'_>>();
    both::<FlowCounters<'_>>();
    both::<WorkQueue<'_>>();
    both::<IndirectionTable<'_>>();
    both::<RssQueuePair<'_>>();
}
