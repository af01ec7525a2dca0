//~ E0277
//~| Srd` queue pairs have no atomic operations on remote memory
//! SRD has no atomic operations.
use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr}};

pub fn request<'a>(part: Segment<'a>, remote: &RemoteSegment, peer: &'a Peer<'a>) -> SendWr<'a, Srd> {
    let _ = peer;
    SendWr::fetch_and_add(part, remote, 1)
}

fn main() {}
