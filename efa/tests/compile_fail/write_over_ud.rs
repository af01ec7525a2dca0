//~ E0277
//~| Ud` queue pairs cannot write to remote memory
//! Plain datagrams do not reach memory.
use efa::{Peer, Srd, ibverbs::{RemoteSegment, Segment, SendWr, Ud}};

pub fn request<'a>(part: Segment<'a>, remote: &RemoteSegment, peer: &'a Peer<'a>) -> bool {
    let _: Option<(SendWr<'_, Ud>, SendWr<'_, Srd>)> = None;
    let request = SendWr::<Ud>::write_to(part, remote, peer.destination());
    format!("{request:?}").is_empty()
}

fn main() {}
