//~ E0505
//! A request borrows its peer until it was posted.
use efa::{Peer, Srd, ibverbs::{QueuePair, Segment, SendWr}};

pub fn post(pair: &QueuePair<'_, Srd>, part: Segment<'_>, peer: Peer<'_>) -> bool {
    let mut batch = [SendWr::send_with_imm_to(part, peer.destination(), 1)];
    drop(peer);
    pair.post_send(&mut batch).is_ok()
}

fn main() {}
