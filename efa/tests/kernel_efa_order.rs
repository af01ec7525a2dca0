//! SRD promises no order: a program that assumes one finds out, and one that does not is right.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[expect(dead_code, reason = "these need few of the tools")]
mod support;

use efa::{
    Srd,
    ibverbs::{RecvWr, SendWr},
};
use support::{Both, has_devices, pattern, published};

const LENGTH: usize = 64 * 1024;
const CHUNK: u32 = 4096;

/// Writes a buffer in pieces and then tells the peer by a send. Returns whether all of it had arrived when the
/// peer was told. `waits` says whether the writes are awaited before the send is posted.
fn all_is_there_when_told(both: &Both, round: usize, waits: bool) -> bool {
    let bytes = pattern(round, LENGTH);
    let source = both.near.memory(bytes.clone());
    let target = both.far.memory(vec![0; LENGTH]);
    let note = both.far.memory(vec![0; 8]);
    both.far_pair.post_receive(&mut [RecvWr::to(1, note.segment(..).unwrap())]).unwrap();
    let there = published(&target).at(0).unwrap();

    let mut writes: Vec<_> =
        efa::write_wrs(&source, .., &there, &both.to_far, CHUNK).unwrap().collect();
    let count = writes.len();
    let word = source.segment(..8).unwrap();
    let tell = SendWr::<Srd>::send_with_imm_to(word, both.to_far.destination(), 1);
    if waits {
        both.near_pair.post_send(&mut writes).unwrap();
        both.near.successes(count);
        both.near_pair.post_send(&mut [tell]).unwrap();
    } else {
        writes.push(tell);
        both.near_pair.post_send(&mut writes).unwrap();
    }

    both.far.completion().outcome().unwrap();
    let mut seen = vec![0; LENGTH];
    target.bytes().read(0, &mut seen).unwrap();
    // What is still under way arrives, and completes, before the memory goes.
    let rest = if waits { 1 } else { count + 1 };
    both.near.successes(rest);
    assert_eq!(target.into_buffer().unwrap(), bytes);
    seen == bytes
}

#[test]
fn who_tells_the_peer_behind_writes_under_way_tells_too_early() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let early = (0..40).filter(|round| !all_is_there_when_told(&both, *round, false)).count();
    assert!(early > 0, "the network kept the order in 40 rounds; the model should reorder");
}

#[test]
fn who_awaits_the_writes_before_telling_the_peer_is_right() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    for round in 0..40 {
        assert!(all_is_there_when_told(&both, round, true), "round {round}");
    }
}
