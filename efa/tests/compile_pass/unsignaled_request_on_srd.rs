//! EFA refuses requests that are not signaled: all of SRD are, and nothing makes one that is not.
use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr}};

pub fn request<'a>(part: Segment<'a>, remote: &RemoteSegment, peer: &'a Peer<'a>) -> SendWr<'a, Srd> {
    let write = SendWr::write_to(part, remote, peer.destination());
    write.signaled()
}

fn main() {}
