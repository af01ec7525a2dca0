//~ E0277
//~| Srd` queue pairs are not connected to a peer
//~| `write_to`
//! Every request of SRD names its destination.
use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr}};

pub fn request<'a>(part: Segment<'a>, remote: &RemoteSegment, peer: &'a Peer<'a>) -> SendWr<'a, Srd> {
    let _ = peer;
    SendWr::write(part, remote)
}

fn main() {}
