//! What the tests of rdma4py's package `efa` found on real hardware, and that are not told elsewhere here.

use efa::{
    Srd,
    ibverbs::{Completion, Operation, Operations, QueuePair, QueuePairState, RecvWr, SendWr},
};

use crate::support::{Both, KEY, Lane, has_devices, pattern, published};

#[test]
fn every_device_is_of_amazon_and_has_an_address_and_limits() {
    if !has_devices(4) {
        return;
    }
    for number in 0..4 {
        let lane = Lane::open(number);
        let common = lane.context.query_device().unwrap();
        assert_eq!(common.vendor_id(), 0x1d0f);
        assert!(common.max_queue_pairs() > 0 && common.max_memory_regions() > 0);
        assert!(!lane.port.gid.gid.is_zero());
        let own = efa::query_device(&lane.context).unwrap();
        assert!(own.max_send_requests() > 0 && own.max_receive_requests() > 0);
        assert!(own.max_send_segments() >= 1 && own.max_receive_segments() >= 1);
        let memory = lane.memory(vec![0; 64]);
        assert!(memory.local_key().0 != 0 && memory.remote().key().0 != 0);
    }
}

#[test]
fn a_queue_pair_tells_what_it_was_prepared_with() {
    if !has_devices(1) {
        return;
    }
    let lane = Lane::open(0);
    let pair = lane.builder().receiver_not_ready_retries(3).prepare(&lane.port, KEY).unwrap();
    let told = pair.query().unwrap();
    assert_eq!(told.state(), QueuePairState::READY_TO_SEND);
    assert_eq!((told.queue_key(), told.receiver_not_ready_retries()), (KEY, 3));
}

#[test]
fn a_queue_pair_that_was_made_for_sends_does_no_write() {
    if !has_devices(2) {
        return;
    }
    let sends = Operations::SEND | Operations::SEND_WITH_IMMEDIATE;
    let both = Both::with(|builder| builder.operations(sends));
    let (source, target) = (both.near.memory(vec![1; 64]), both.far.memory(vec![0; 64]));
    let there = published(&target).at(0).unwrap();
    let bytes = source.segment(..).unwrap();
    let write = SendWr::<Srd>::write_to(bytes, &there, both.to_far.destination());
    let error = both.near_pair.post_send(&mut [write]).unwrap_err();
    assert!(error.error().to_string().contains("was not made for a "), "{}", error.error());
    assert_eq!(target.into_buffer().unwrap(), [0; 64]);
}

#[test]
fn plain_verbs_make_no_queue_pair_whose_requests_could_go_unsignaled() {
    if !has_devices(1) {
        return;
    }
    let lane = Lane::open(0);
    QueuePair::<Srd, _>::builder(&lane.domain, &lane.queue, &lane.queue).create().unwrap_err();
}

#[test]
fn a_batch_of_sends_completes_whole_on_both_sides_without_a_routing_header() {
    const COUNT: usize = 8;
    const LENGTH: usize = 256;
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let source = both.near.memory(pattern(9, LENGTH));
    let target = both.far.memory(vec![0; COUNT * LENGTH]);
    let place = |index| target.segment(index * LENGTH..(index + 1) * LENGTH).unwrap();
    let mut receives: Vec<_> =
        (0..COUNT).map(|index| RecvWr::to(100 + index as u64, place(index))).collect();
    both.far_pair.post_receive(&mut receives).unwrap();
    let (bytes, to) = (source.segment(..).unwrap(), both.to_far.destination());
    let send = |index| SendWr::<Srd>::send_with_imm_to(bytes, to, 0).id(index as u64);
    both.near_pair.post_send(&mut (0..COUNT).map(send).collect::<Vec<_>>()).unwrap();

    let sorted = |lane: &Lane, operation| {
        let done = lane.completions(COUNT);
        let id = |done: &Completion| {
            let work = done.outcome().unwrap();
            assert_eq!(work.operation(), operation);
            if operation == Operation::RECEIVE {
                assert_eq!(work.byte_length() as usize, LENGTH);
                assert_eq!(work.source_queue_pair(), both.near_pair.number());
            }
            work.id()
        };
        let mut ids: Vec<_> = done.iter().map(id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(sorted(&both.near, Operation::SEND), (0..8).collect::<Vec<_>>());
    assert_eq!(sorted(&both.far, Operation::RECEIVE), (100..108).collect::<Vec<_>>());
    assert_eq!(target.into_buffer().unwrap(), pattern(9, LENGTH).repeat(COUNT));
}

#[test]
fn two_queue_pairs_of_one_device_reach_each_other() {
    if !has_devices(1) {
        return;
    }
    let lane = Lane::open(0);
    let (one, other) = (lane.pair(), lane.pair());
    let peer = lane.peer(&lane, &other);
    let (source, target) = (lane.memory(pattern(10, 512)), lane.memory(vec![0; 512]));
    let there = published(&target).at(0).unwrap();
    let write = SendWr::<Srd>::write_to(source.segment(..).unwrap(), &there, peer.destination());
    one.post_send(&mut [write]).unwrap();
    lane.successes(1);
    assert_eq!(target.into_buffer().unwrap(), source.into_buffer().unwrap());
}
