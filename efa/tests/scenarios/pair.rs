//! Every kind of transfer between two machines, with its data compared. Rank 0 begins; both run each test.
#![expect(unsafe_code, reason = "vouches for memory behind a descriptor")]

use std::os::fd::AsFd;

use efa::{
    Srd, VendorStatus,
    ibverbs::{DmaBufPart, MemoryRegion, Operation, RecvWr, SendWr},
};

use crate::{
    meeting::{Meeting, Rank},
    support::{ALL, Lane, memory_file::MemoryFile, pattern, told},
};

/// In one request; devices of some runs take no more.
const LENGTH: usize = 60_000;

#[test]
fn a_send_with_immediate_crosses_in_both_directions() {
    const MESSAGE: usize = 4000;
    let Some(rank) = Rank::at(1) else { return };
    let outbox = rank.lane.memory(pattern(rank.meeting.rank, MESSAGE));
    let inbox = rank.lane.memory(vec![0; MESSAGE]);
    rank.pair.post_receive(&mut [RecvWr::to(1, inbox.segment(..).unwrap())]).unwrap();
    rank.meeting.barrier();
    let bytes = outbox.segment(..).unwrap();
    let number = u32::try_from(rank.meeting.rank).unwrap();
    let send = SendWr::<Srd>::send_with_imm_to(bytes, rank.peer.destination(), number).id(2);
    rank.pair.post_send(&mut [send]).unwrap();
    // The one that was sent and the one that came, in whatever order.
    for completion in rank.lane.completions(2) {
        let work = completion.outcome().unwrap();
        if work.id() == 1 {
            assert_eq!(work.immediate(), Some(1 - number));
            assert_eq!(work.byte_length() as usize, MESSAGE);
        }
    }
    assert_eq!(inbox.into_buffer().unwrap(), pattern(1 - rank.meeting.rank, MESSAGE));
    rank.meeting.barrier();
}

#[test]
fn a_write_and_a_read_cross_and_the_other_side_is_not_told() {
    let Some(rank) = Rank::at(2) else { return };
    let memory = rank.lane.memory(vec![0; LENGTH]);
    let there = rank.meeting.regions(&memory).at(0).unwrap();
    if rank.begins() {
        let source = rank.lane.memory(pattern(1, LENGTH));
        let to = rank.peer.destination();
        let write = SendWr::<Srd>::write_to(source.segment(..).unwrap(), &there, to);
        rank.pair.post_send(&mut [write]).unwrap();
        rank.lane.successes(1);
        let read = SendWr::<Srd>::read_from(memory.segment(..).unwrap(), &there, to);
        rank.pair.post_send(&mut [read]).unwrap();
        rank.lane.successes(1);
        rank.meeting.barrier();
    } else {
        rank.meeting.barrier();
        rank.lane.expect_silence();
    }
    assert_eq!(memory.into_buffer().unwrap(), pattern(1, LENGTH));
    rank.meeting.barrier();
}

#[test]
fn a_write_with_immediate_tells_the_other_machine() {
    let Some(rank) = Rank::at(3) else { return };
    let memory = rank.lane.memory(pattern(1 - rank.meeting.rank, LENGTH));
    let there = rank.meeting.regions(&memory).at(0).unwrap();
    if rank.begins() {
        let source = rank.lane.memory(pattern(2, LENGTH));
        let (bytes, to) = (source.segment(..).unwrap(), rank.peer.destination());
        rank.meeting.barrier();
        let write = SendWr::<Srd>::write_with_imm_to(bytes, &there, to, 0xC0DE);
        rank.pair.post_send(&mut [write]).unwrap();
        rank.lane.successes(1);
    } else {
        let credit = rank.lane.memory(vec![7; 1]);
        rank.pair.post_receive(&mut [RecvWr::to(9, credit.segment(..).unwrap())]).unwrap();
        rank.meeting.barrier();
        let received = rank.lane.completion();
        let work = received.outcome().unwrap();
        assert_eq!((work.id(), work.immediate()), (9, Some(0xC0DE)));
        assert_eq!(work.operation(), Operation::RECEIVE_WRITE_WITH_IMMEDIATE);
        assert_eq!(memory.into_buffer().unwrap(), pattern(2, LENGTH));
    }
    rank.meeting.barrier();
}

#[test]
fn an_unsolicited_write_takes_no_receive() {
    let unsolicited = efa::QueuePairBuilder::unsolicited_write_receives;
    let Some(rank) = Rank::with(4, Lane::telling, unsolicited) else {
        return;
    };
    let memory = rank.lane.memory(vec![0; LENGTH]);
    let there = rank.meeting.regions(&memory).at(0).unwrap();
    if rank.begins() {
        let source = rank.lane.memory(pattern(3, LENGTH));
        let (bytes, to) = (source.segment(..).unwrap(), rank.peer.destination());
        let write = SendWr::<Srd>::write_with_imm_to(bytes, &there, to, 0xF00D);
        rank.pair.post_send(&mut [write]).unwrap();
        rank.lane.successes(1);
    } else {
        let received = told(&rank.lane.queue);
        assert_eq!(received.is_unsolicited(), Some(true));
        assert_eq!(received.outcome().unwrap().immediate(), Some(0xF00D));
        assert_eq!(memory.into_buffer().unwrap(), pattern(3, LENGTH));
    }
    rank.meeting.barrier();
}

#[test]
fn a_transfer_over_the_largest_size_goes_in_pieces_both_ways() {
    const LONG: usize = 1_000_001;
    let Some(rank) = Rank::at(5) else { return };
    let memory = rank.lane.memory(vec![0; LONG]);
    let there = rank.meeting.regions(&memory).at(0).unwrap();
    if rank.begins() {
        // Some runs have a device whose largest size is just that.
        let most = efa::query_device(&rank.lane.context).unwrap().max_rdma_size().min(65_536);
        let source = rank.lane.memory(pattern(4, LONG));
        let writes = efa::write_wrs(&source, .., &there, &rank.peer, most).unwrap();
        let mut writes: Vec<_> = writes.collect();
        assert_eq!(writes.len(), 16);
        rank.pair.post_send(&mut writes).unwrap();
        rank.lane.successes(16);
        let reads = efa::read_wrs(&memory, .., &there, &rank.peer, most).unwrap();
        rank.pair.post_send(&mut reads.collect::<Vec<_>>()).unwrap();
        rank.lane.successes(16);
    }
    rank.meeting.barrier();
    assert_eq!(memory.into_buffer().unwrap(), pattern(4, LONG));
    rank.meeting.barrier();
}

#[test]
fn eight_queue_pairs_of_one_device_reach_eight_of_the_other_machine() {
    const PAIRS: usize = 8;
    const PART: usize = 40_000;
    let Some(meeting) = Meeting::at(6) else { return };
    let lane = Lane::open(0);
    let pairs: Vec<_> = (0..PAIRS).map(|_| lane.pair()).collect();
    let peers: Vec<_> = pairs.iter().map(|pair| meeting.peer(&lane, pair)).collect();
    let memory = lane.memory(vec![0; PAIRS * PART]);
    let there = meeting.regions(&memory);
    if meeting.rank == 0 {
        let source = lane.memory(pattern(5, PAIRS * PART));
        for (index, (pair, peer)) in pairs.iter().zip(&peers).enumerate() {
            let start = index * PART;
            let part = there.part(start as u64..(start + PART) as u64).unwrap();
            let writes = efa::write_wrs(&source, start..start + PART, &part, peer, 5000).unwrap();
            pair.post_send(&mut writes.collect::<Vec<_>>()).unwrap();
        }
        lane.successes(PAIRS * 8);
        meeting.barrier();
    } else {
        meeting.barrier();
        assert_eq!(memory.into_buffer().unwrap(), pattern(5, PAIRS * PART));
    }
    meeting.barrier();
}

#[test]
fn four_lanes_reach_the_four_devices_of_the_other_machine() {
    const PART: usize = 100_000;
    let Some(meeting) = Meeting::at(7) else { return };
    let lanes: Vec<_> = (0..4).map(Lane::open).collect();
    let pairs: Vec<_> = lanes.iter().map(Lane::pair).collect();
    let ends: Vec<_> = lanes
        .iter()
        .zip(&pairs)
        .map(|(lane, pair)| {
            let memory = lane.memory(vec![0; PART]);
            let there = meeting.regions(&memory);
            (meeting.peer(lane, pair), memory, there)
        })
        .collect();
    let sources: Vec<_> =
        lanes.iter().enumerate().map(|(index, lane)| lane.memory(pattern(index, PART))).collect();
    if meeting.rank == 0 {
        for ((pair, source), (peer, _, there)) in pairs.iter().zip(&sources).zip(&ends) {
            let writes = efa::write_wrs(source, .., &there.at(0).unwrap(), peer, 7000).unwrap();
            pair.post_send(&mut writes.collect::<Vec<_>>()).unwrap();
        }
        for lane in &lanes {
            lane.successes(PART.div_ceil(7000));
        }
    }
    meeting.barrier();
    if meeting.rank == 1 {
        for (index, (_, memory, _)) in ends.into_iter().enumerate() {
            assert_eq!(memory.into_buffer().unwrap(), pattern(index, PART));
        }
    }
    meeting.barrier();
}

#[test]
fn a_dma_buf_is_written_and_read_by_the_other_machine() {
    let Some(rank) = Rank::at(8) else { return };
    let file = MemoryFile::new(32 * 4096);
    let dma_buf = file.dma_buf();
    let part = DmaBufPart { fd: dma_buf.as_fd(), offset: 0, length: LENGTH, address: 0 };
    // SAFETY: the pages are reached through this region and by file I/O only, and stay the file's.
    let memory =
        unsafe { MemoryRegion::register_dma_buf(&rank.lane.domain, Vec::<u8>::new(), part, ALL) };
    let memory = memory.unwrap();
    let there = rank.meeting.regions(&memory).at(0).unwrap();
    if rank.begins() {
        file.write(0, &pattern(6, LENGTH));
        let to = rank.peer.destination();
        let write = SendWr::<Srd>::write_to(memory.segment(..).unwrap(), &there, to);
        rank.pair.post_send(&mut [write]).unwrap();
        rank.lane.successes(1);
        let back = rank.lane.memory(vec![0; LENGTH]);
        let read = SendWr::<Srd>::read_from(back.segment(..).unwrap(), &there, to);
        rank.pair.post_send(&mut [read]).unwrap();
        rank.lane.successes(1);
        assert_eq!(back.into_buffer().unwrap(), pattern(6, LENGTH));
    }
    rank.meeting.barrier();
    assert_eq!(file.read(0, LENGTH), pattern(6, LENGTH));
    rank.meeting.barrier();
}

#[test]
fn what_the_other_machine_has_ended_is_told() {
    let Some(Rank { meeting, lane, pair, peer }) = Rank::at(9) else { return };
    let memory = lane.memory(vec![1; 64]);
    let there = meeting.regions(&memory).at(0).unwrap();
    if meeting.rank == 1 {
        drop(peer);
        meeting.barrier();
        meeting.barrier();
        drop(pair);
        meeting.barrier();
        meeting.barrier();
        return;
    }
    meeting.barrier();
    let bytes = memory.segment(..).unwrap();
    let write = SendWr::<Srd>::write_to(bytes, &there, peer.destination());
    pair.post_send(&mut [write]).unwrap();
    assert_eq!(lane.failure().vendor_status(), VendorStatus::UNKNOWN_PEER);
    meeting.barrier();
    meeting.barrier();
    let send = SendWr::<Srd>::send_with_imm_to(bytes, peer.destination(), 1);
    pair.post_send(&mut [send]).unwrap();
    assert_eq!(lane.failure().vendor_status(), VendorStatus::REMOTE_BAD_QUEUE_PAIR);
    meeting.barrier();
}
