//! Every kind of transfer between two devices, with its data compared.

use std::{sync::Arc, thread, time::Duration};

use efa::{
    EfaCapabilities, EndpointInfo, Srd,
    ibverbs::{
        Completion, CompletionChannel, CompletionQueue, Inline, Operation, QueueKey, RecvWr,
        SendWr, Ud,
    },
};

use crate::support::{Both, Lane, PATIENCE, has_devices, pattern, published, told};

#[test]
fn a_send_with_immediate_gathers_and_scatters() {
    if !has_devices(2) {
        return;
    }
    let both = Both::with(|builder| builder.max_send_segments(2).max_receive_segments(2));
    let source = both.near.memory(pattern(1, 6000));
    let target = both.far.memory(vec![0; 8000]);
    let into = [target.segment(..1000).unwrap(), target.segment(2000..).unwrap()];
    both.far_pair.post_receive(&mut [RecvWr::to(3, &into)]).unwrap();

    let from = [source.segment(..2500).unwrap(), source.segment(3000..).unwrap()];
    let send = SendWr::<Srd>::send_with_imm_to(&from, both.to_far.destination(), 0xBEEF).id(4);
    both.near_pair.post_send(&mut [send]).unwrap();

    assert_eq!(both.near.completion().outcome().unwrap().id(), 4);
    let received = both.far.completion();
    let received = received.outcome().unwrap();
    assert_eq!((received.id(), received.operation()), (3, Operation::RECEIVE));
    assert_eq!((received.immediate(), received.byte_length()), (Some(0xBEEF), 5500));
    assert_eq!(received.source_queue_pair(), both.near_pair.number());
    let (sent, got) = (source.into_buffer().unwrap(), target.into_buffer().unwrap());
    let message = [&sent[..2500], &sent[3000..]].concat();
    assert_eq!(got[..1000], message[..1000]);
    assert_eq!(got[2000..6500], message[1000..]);
}

#[test]
fn inline_bytes_are_copied_when_they_are_posted() {
    if !has_devices(2) {
        return;
    }
    let most = efa::query_device(&Lane::open(0).context).unwrap().max_inline();
    let both = Both::with(|builder| builder.max_inline(most));
    let target = both.far.memory(vec![0; 4096]);
    both.far_pair.post_receive(&mut [RecvWr::to(1, target.segment(..).unwrap())]).unwrap();
    let mut bytes = pattern(2, most as usize);
    let sent = bytes.clone();
    let send = SendWr::<Srd>::send_to(Inline(&bytes), both.to_far.destination());
    both.near_pair.post_send(&mut [send]).unwrap();
    bytes.fill(0xff);
    both.near.completion().outcome().unwrap();
    assert_eq!(both.far.completion().outcome().unwrap().byte_length(), most);
    assert_eq!(target.into_buffer().unwrap()[..sent.len()], sent);
}

#[test]
fn a_write_is_seen_by_nobody_but_the_memory() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let source = both.near.memory(pattern(3, 70_000));
    let target = both.far.memory(vec![0; 100_000]);
    let place = published(&target).part(20_000..90_000).unwrap();
    let write =
        SendWr::<Srd>::write_to(source.segment(..).unwrap(), &place, both.to_far.destination());
    both.near_pair.post_send(&mut [write.id(5)]).unwrap();
    let done = both.near.completion();
    assert_eq!(done.outcome().unwrap().operation(), Operation::WRITE);
    both.far.expect_silence();
    let (sent, got) = (source.into_buffer().unwrap(), target.into_buffer().unwrap());
    assert_eq!(got[20_000..90_000], sent);
    assert!(got[..20_000].iter().chain(&got[90_000..]).all(|byte| *byte == 0));
}

#[test]
fn a_write_with_immediate_places_its_bytes_and_completes_a_receive() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let source = both.near.memory(pattern(4, 100_000));
    let target = both.far.memory(vec![0; 100_000]);
    let credit = both.far.memory(vec![7; 1]);
    both.far_pair.post_receive(&mut [RecvWr::to(7, credit.segment(..).unwrap())]).unwrap();

    let (memory, to) = (published(&target).at(0).unwrap(), both.to_far.destination());
    let write = SendWr::<Srd>::write_with_imm_to(source.segment(..).unwrap(), &memory, to, 0xC0DE);
    both.near_pair.post_send(&mut [write.id(9)]).unwrap();

    assert_eq!(both.near.completion().outcome().unwrap().id(), 9);
    let received = both.far.completion();
    let received = received.outcome().unwrap();
    assert_eq!(received.id(), 7);
    assert_eq!(received.operation(), Operation::RECEIVE_WRITE_WITH_IMMEDIATE);
    assert_eq!((received.immediate(), received.byte_length()), (Some(0xC0DE), 100_000));
    assert_eq!(credit.into_buffer().unwrap(), [7]);
    assert_eq!(target.into_buffer().unwrap(), source.into_buffer().unwrap());
}

#[test]
fn a_receive_without_memory_is_refused_instead_of_lost() {
    if !has_devices(2) {
        return;
    }
    let pair = Lane::open(0).pair();
    let error = pair.post_receive(&mut [RecvWr::new(1)]).unwrap_err();
    assert_eq!(error.refused(), Some(0));
    assert!(error.error().to_string().contains("without memory"), "{}", error.error());
}

#[test]
fn an_unsolicited_write_takes_no_receive_and_says_so() {
    if !has_devices(2) {
        return;
    }
    let both = Both::between(Lane::telling(0), Lane::telling(1), |builder| {
        builder.unsolicited_write_receives()
    });
    let source = both.near.memory(pattern(5, 50_000));
    let target = both.far.memory(vec![0; 50_000]);
    let (memory, to) = (published(&target).at(0).unwrap(), both.to_far.destination());
    let write = SendWr::<Srd>::write_with_imm_to(source.segment(..).unwrap(), &memory, to, 0xF00D);
    both.near_pair.post_send(&mut [write]).unwrap();
    both.near.completion().outcome().unwrap();

    let received = told(&both.far.queue);
    assert_eq!(received.is_unsolicited(), Some(true));
    let work = received.outcome().unwrap();
    assert_eq!(work.operation(), Some(Operation::RECEIVE_WRITE_WITH_IMMEDIATE));
    assert_eq!((work.immediate(), work.byte_length()), (Some(0xF00D), Some(50_000)));
    assert_eq!(target.into_buffer().unwrap(), source.into_buffer().unwrap());
}

#[test]
fn a_completion_tells_the_gid_of_a_sender_without_address_handle() {
    if !has_devices(2) {
        return;
    }
    let (near, far) = (Lane::open(0), Lane::telling(1));
    let (near_pair, far_pair) = (near.pair(), far.pair());
    let to_far = near.peer(&far, &far_pair);
    let target = far.memory(vec![0; 200]);
    let receive = |id| RecvWr::to(id, target.segment(..100).unwrap());
    let send = || {
        let bytes = near.memory(pattern(6, 100));
        let send =
            SendWr::<Srd>::send_with_imm_to(bytes.segment(..).unwrap(), to_far.destination(), 1);
        near_pair.post_send(&mut [send]).unwrap();
        near.completion().outcome().unwrap();
    };
    far_pair.post_receive(&mut [receive(1)]).unwrap();
    send();
    let stranger = told(&far.queue);
    assert_eq!(stranger.sender_gid(), Some(near.port.gid.gid));
    assert_eq!(stranger.is_unsolicited(), Some(false));

    let to_near = far.peer(&near, &near_pair);
    far_pair.post_receive(&mut [receive(2)]).unwrap();
    send();
    let known = told(&far.queue);
    assert_eq!((known.id(), known.sender_gid()), (2, None));
    let number = efa::address_handle_number(to_near.address_handle()).unwrap();
    assert_eq!(known.outcome().unwrap().source_lid(), Some(number.into()));
}

#[test]
fn a_read_brings_the_bytes_and_the_peer_is_not_told() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let source = both.far.memory(pattern(7, 80_000));
    let target = both.near.memory(vec![0; 80_000]);
    let memory = published(&source).at(0).unwrap();
    let read =
        SendWr::<Srd>::read_from(target.segment(..).unwrap(), &memory, both.to_far.destination());
    both.near_pair.post_send(&mut [read.id(6)]).unwrap();
    assert_eq!(both.near.completion().outcome().unwrap().id(), 6);
    both.far.expect_silence();
    assert_eq!(target.into_buffer().unwrap(), source.into_buffer().unwrap());
}

#[test]
fn a_long_transfer_goes_in_pieces_both_ways() {
    if !has_devices(2) {
        return;
    }
    const LENGTH: usize = 1_000_001;
    const CHUNK: u32 = 30_000;
    let both = Both::new();
    let source = both.near.memory(pattern(8, LENGTH));
    let target = both.far.memory(vec![0; LENGTH]);
    let back = both.near.memory(vec![0; LENGTH]);
    let there = published(&target).at(0).unwrap();

    let writes = efa::write_wrs(&source, .., &there, &both.to_far, CHUNK).unwrap();
    assert_eq!(writes.len(), 34);
    for write in writes.ids_from(100) {
        both.near_pair.post_send(&mut [write]).unwrap();
    }
    let mut ids: Vec<_> =
        both.near.completions(34).iter().map(|done| done.outcome().unwrap().id()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (100..134).collect::<Vec<_>>());

    let mut reads: Vec<_> =
        efa::read_wrs(&back, .., &there, &both.to_far, CHUNK).unwrap().collect();
    both.near_pair.post_send(&mut reads).unwrap();
    both.near.successes(34);
    let sent = source.into_buffer().unwrap();
    assert_eq!(target.into_buffer().unwrap(), sent);
    assert_eq!(back.into_buffer().unwrap(), sent);
}

#[test]
fn eight_queue_pairs_share_one_device() {
    if !has_devices(2) {
        return;
    }
    const PAIRS: usize = 8;
    const PART: usize = 40_000;
    let (near, far) = (Lane::open(0), Lane::open(1));
    let pairs: Vec<_> = (0..PAIRS).map(|_| (near.pair(), far.pair())).collect();
    let to_far: Vec<_> = pairs.iter().map(|(_, far_pair)| near.peer(&far, far_pair)).collect();
    let _to_near = pairs.first().map(|(near_pair, _)| far.peer(&near, near_pair));
    let source = near.memory(pattern(9, PAIRS * PART));
    let target = far.memory(vec![0; PAIRS * PART]);
    let there = published(&target);
    for (index, ((pair, _), peer)) in pairs.iter().zip(&to_far).enumerate() {
        let start = index * PART;
        let part = there.part(start as u64..(start + PART) as u64).unwrap();
        let writes = efa::write_wrs(&source, start..start + PART, &part, peer, 5000).unwrap();
        let mut writes: Vec<_> = writes.ids_from((index * 100) as u64).collect();
        pair.post_send(&mut writes).unwrap();
    }
    near.successes(PAIRS * 8);
    assert_eq!(target.into_buffer().unwrap(), source.into_buffer().unwrap());
}

#[test]
fn four_lanes_run_on_four_devices() {
    if !has_devices(4) {
        return;
    }
    const PART: usize = 100_000;
    let lanes: Vec<_> = (0..4).map(Lane::open).collect();
    let pairs: Vec<_> = lanes.iter().map(|lane| (lane.pair(), lane.pair())).collect();
    // Lane n of one side talks to lane n of the other side, which is the next device here.
    let other = |index: usize| (index + 1) % lanes.len();
    let mut memories = Vec::new();
    let mut peers = Vec::new();
    for (index, lane) in lanes.iter().enumerate() {
        let far = &lanes[other(index)];
        memories.push((lane.memory(pattern(index, PART)), far.memory(vec![0; PART])));
        peers.push(lane.peer(far, &pairs[other(index)].1));
        peers.push(far.peer(lane, &pairs[index].0));
    }
    for (index, (source, target)) in memories.iter().enumerate() {
        let (there, peer) = (published(target).at(0).unwrap(), &peers[2 * index]);
        let mut writes: Vec<_> = efa::write_wrs(source, .., &there, peer, 7000).unwrap().collect();
        pairs[index].0.post_send(&mut writes).unwrap();
    }
    for lane in &lanes {
        lane.successes(PART.div_ceil(7000));
    }
    for (source, target) in memories {
        assert_eq!(target.into_buffer().unwrap(), source.into_buffer().unwrap());
    }
}

#[test]
fn a_datagram_brings_its_routing_header() {
    if !has_devices(2) {
        return;
    }
    let (near, far) = (Lane::open(0), Lane::open(1));
    let make = |lane: &Lane| {
        efa::queue_pair::<Ud>(&lane.domain, &lane.queue, &lane.queue)
            .prepare(&lane.port, QueueKey(0x777))
            .unwrap()
    };
    let (near_pair, far_pair) = (make(&near), make(&far));
    let info = EndpointInfo::new(&far_pair, &far.port, QueueKey(0x777));
    let peer = info.peer(&near.domain, &near.port).unwrap();
    let source = near.memory(pattern(10, 256));
    let target = far.memory(vec![0; 256 + 40]);
    far_pair.post_receive(&mut [RecvWr::to(1, target.segment(..).unwrap())]).unwrap();
    let bytes = source.segment(..).unwrap();
    let send = SendWr::<Ud>::send_with_imm_to(bytes, peer.destination(), 5);
    near_pair.post_send(&mut [send]).unwrap();
    near.completion().outcome().unwrap();
    let received = far.completion();
    let received = received.outcome().unwrap();
    assert_eq!((received.immediate(), received.byte_length()), (Some(5), 256 + 40));
    assert_eq!(target.into_buffer().unwrap()[40..], source.into_buffer().unwrap());
}

#[test]
fn a_completion_wakes_who_waits_for_it() {
    if !has_devices(2) {
        return;
    }
    let (near, mut far) = (Lane::open(0), Lane::open(1));
    let channel = Arc::new(CompletionChannel::create(&far.context).unwrap());
    let queue = CompletionQueue::builder(&far.context, 16).channel(&channel).create().unwrap();
    far.queue = Arc::new(queue);
    let (near_pair, far_pair) = (near.pair(), far.pair());
    let to_far = near.peer(&far, &far_pair);
    let target = far.memory(vec![0; 64]);
    far_pair.post_receive(&mut [RecvWr::to(1, target.segment(..).unwrap())]).unwrap();
    let waiting = thread::spawn(move || {
        let mut slots = Completion::slots::<1>();
        far.queue.wait(&mut slots, PATIENCE).unwrap()[0].outcome().unwrap().id()
    });
    thread::sleep(Duration::from_millis(200));
    let source = near.memory(vec![1; 64]);
    let bytes = source.segment(..).unwrap();
    let send = SendWr::<Srd>::send_with_imm_to(bytes, to_far.destination(), 1);
    near_pair.post_send(&mut [send]).unwrap();
    near.completion().outcome().unwrap();
    assert_eq!(waiting.join().unwrap(), 1);
}

#[test]
fn the_device_tells_what_it_can() {
    if !has_devices(1) {
        return;
    }
    let lane = Lane::open(0);
    let attributes = efa::query_device(&lane.context).unwrap();
    attributes.require(EfaCapabilities::RDMA_READ | EfaCapabilities::RDMA_WRITE).unwrap();
    assert!(attributes.max_inline() >= 32);
    assert!(attributes.max_rdma_size() >= 4096);
    assert!(attributes.max_send_requests() >= 64);
    let memory = lane.memory(vec![0; 4096]);
    let ids = efa::query_region(&memory).unwrap();
    // The model tells three numbers, the device inside the process none.
    let ids = [ids.receive, ids.read, ids.write_receive];
    assert!(ids == [Some(1), Some(2), Some(3)] || ids == [None; 3], "{ids:?}");
}
