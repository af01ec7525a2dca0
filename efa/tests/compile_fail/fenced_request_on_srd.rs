//~ E0277
//~| Srd` queue pairs can be neither solicited nor fenced
//~| await the completions of what must come before
//! SRD has no order, and nothing to make one: EFA refuses fences.
use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr}};

pub fn request<'a>(part: Segment<'a>, remote: &RemoteSegment, peer: &'a Peer<'a>) -> SendWr<'a, Srd> {
    let write = SendWr::write_to(part, remote, peer.destination());
    write.fenced()
}

fn main() {}
