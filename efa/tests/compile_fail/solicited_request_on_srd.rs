//~ E0277
//! EFA refuses requests that solicit events.
use efa::{Peer, Srd, ibverbs::{Segment, SendWr}};

pub fn request<'a>(part: Segment<'a>, peer: &'a Peer<'a>) -> SendWr<'a, Srd> {
    let send = SendWr::send_with_imm_to(part, peer.destination(), 1);
    send.solicited()
}

fn main() {}
