//! The scenarios of the guest on devices inside the process, whose messages overtake each other.
#![cfg(test)]

#[path = "backend/soft.rs"]
mod backend;
#[path = "scenarios/extras.rs"]
mod extras;
#[path = "scenarios/failures.rs"]
mod failures;
#[path = "scenarios/hardware.rs"]
mod hardware;
#[expect(dead_code, reason = "the process has no dma-buf of its own")]
mod support;
#[path = "scenarios/transfers.rs"]
mod transfers;

use std::{sync::Arc, time::Instant};

use cuda_interop::{Gpu, Visibility};
use efa::{
    EfaCapabilities, EndpointInfo, Poller, Srd,
    ibverbs::{
        CompletionFields, CompletionQueue, DeviceSelector, Devices, MemoryRegion, ProtectionDomain,
        RecvWr, SendWr,
    },
};
use support::{ALL, Both, KEY, PATIENCE, pattern, published};

#[test]
fn nothing_is_left_when_everything_was_dropped_in_any_order() {
    {
        let Both { near, far, near_pair, far_pair, to_far, .. } = Both::new();
        let source = near.memory(pattern(1, 4096));
        let target = far.memory(vec![0; 4096]);
        let there = published(&target).at(0).unwrap();
        let mut writes: Vec<_> =
            efa::write_wrs(&source, .., &there, &to_far, 64).unwrap().take(60).collect();
        near_pair.post_send(&mut writes).unwrap();
        // Parents first: each is shared by what was made of it.
        drop((near, far));
        drop(writes);
        drop((target, source));
        drop(to_far);
        drop((far_pair, near_pair));
    }
    assert_eq!(backend::leftovers(), Vec::<String>::new());
}

#[test]
fn devices_of_other_kinds_are_passed_over() {
    let plain = soft_device::SoftDevice::new();
    let mine = backend::device(0);
    let list = Devices::of(soft_device::library()).unwrap();
    let found = efa::devices_of(&list).unwrap();
    assert!(found.iter().any(|device| device.name() == mine.name()));
    assert!(found.iter().all(|device| device.name() != plain.name()));
    let context = list.by_name(plain.name()).unwrap().open().unwrap();
    let error = efa::query_device(&context).unwrap_err();
    assert!(error.to_string().contains("is not an EFA device"), "{error}");
}

#[test]
fn a_poller_asks_nothing_that_the_library_has_no_entry_for() {
    // As rdma-core 44 is: the table that tells about completions has no entry for unsolicited writes.
    let of_old = |limits: &mut soft_device::EfaLimits| {
        limits.device_caps &= !EfaCapabilities::UNSOLICITED_WRITE_RECV.bits();
    };
    let software = soft_device::SoftDevice::builder().efa(of_old).build();
    let list = Devices::of(soft_device::library()).unwrap();
    let context = Arc::new(list.by_name(software.name()).unwrap().open().unwrap());
    let port = context.local_port(&DeviceSelector::default()).unwrap();
    let domain = Arc::new(ProtectionDomain::allocate(&context).unwrap());
    let telling = efa::completion_queue(&context, 16).sender_gids().create().unwrap();
    let plain = CompletionQueue::builder(&context, 16).fields(CompletionFields::BYTE_LENGTH);
    for queue in [telling, plain.create().unwrap()] {
        let queue = Arc::new(queue);
        let pair = efa::queue_pair::<Srd>(&domain, &queue, &queue).prepare(&port, KEY).unwrap();
        let peer = EndpointInfo::new(&pair, &port, KEY).peer(&domain, &port).unwrap();
        let memory = MemoryRegion::register(&domain, pattern(1, 64), ALL).unwrap();
        pair.post_receive(&mut [RecvWr::to(1, memory.segment(..32).unwrap())]).unwrap();
        let send = SendWr::send_to(memory.segment(32..).unwrap(), peer.destination());
        pair.post_send(&mut [send.id(2)]).unwrap();
        let mut poller = Poller::of(&queue).unwrap();
        let mut ended = Vec::new();
        let started = Instant::now();
        while ended.len() < 2 {
            assert!(started.elapsed() < PATIENCE);
            for completion in poller.poll().unwrap() {
                completion.outcome().unwrap();
                assert_eq!(completion.is_unsolicited(), None);
                ended.push(completion.id());
            }
        }
    }
    assert_eq!(software.violations(), Vec::<String>::new());
}

#[test]
fn memory_of_a_gpu_is_written_and_read_over_srd() {
    const LENGTH: usize = 1 << 20;
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            let demanded = std::env::var("CUDA_REQUIRE_DEVICE").is_ok_and(|value| value == "1");
            assert!(!demanded, "{error}");
            println!("skipped: {error}");
            return;
        }
    };
    backend::reach_gpus();
    let both = Both::new();
    let stream = gpu.context().new_stream().unwrap();
    let zeros = || gpu.allocate::<u8>(&stream, LENGTH).unwrap();
    let mut source = cuda_interop::register(&both.near.domain, zeros(), ALL).unwrap();
    let target = cuda_interop::register(&both.far.domain, zeros(), ALL).unwrap();
    let back = cuda_interop::register(&both.near.domain, zeros(), ALL).unwrap();
    let bytes = pattern(7, LENGTH);
    stream.memcpy_htod(&bytes, &mut source.device_mut().unwrap()).unwrap();

    let there = target.landing_after(&stream).unwrap().remote().at(0).unwrap();
    let ready = source.ready_after(&stream).unwrap();
    let to = both.to_far.destination();
    let write = SendWr::<Srd>::write_to(ready.segment(..).unwrap(), &there, to);
    both.near_pair.post_send(&mut [write]).unwrap();
    both.near.successes(1);
    let arrived = target.flush(Visibility::Owner).unwrap();
    assert_eq!(stream.clone_dtoh(&arrived.device()).unwrap(), bytes);

    let landing = back.landing_after(&stream).unwrap();
    let read = SendWr::<Srd>::read_from(landing.segment(..).unwrap(), &there, to);
    both.near_pair.post_send(&mut [read]).unwrap();
    let done = both.near.completion();
    let arrived = back.arrived(done.outcome().unwrap()).unwrap();
    assert_eq!(stream.clone_dtoh(&arrived.device()).unwrap(), bytes);
}
