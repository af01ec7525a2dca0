//! SRD has no atomic operations.
use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr}};

pub fn request<'a>(part: Segment<'a>, remote: &RemoteSegment, peer: &'a Peer<'a>) -> SendWr<'a, Srd> {
    let _ = peer;
    SendWr::read_from(part, remote, peer.destination())
}

fn main() {}
