//~ E0277
//! Every message of SRD names its destination.
use efa::{Peer, Srd, ibverbs::{Segment, SendWr}};

pub fn request<'a>(part: Segment<'a>, peer: &'a Peer<'a>) -> SendWr<'a, Srd> {
    let _ = peer;
    SendWr::send_with_imm(part, 1)
}

fn main() {}
