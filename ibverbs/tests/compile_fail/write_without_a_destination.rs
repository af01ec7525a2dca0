//~ E0061
//! A write names the memory of the peer.
use ibverbs::{Rc, RemoteSegment, Segment, SendWr};

pub fn request<'a>(part: Segment<'a>, remote: &RemoteSegment) -> SendWr<'a, Rc> {
    let _ = part;
    SendWr::write(part)
}

fn main() {}
