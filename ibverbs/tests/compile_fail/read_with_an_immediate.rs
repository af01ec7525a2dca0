//~ E0061
//! A read carries no immediate.
use ibverbs::{Rc, RemoteSegment, Segment, SendWr};

pub fn request<'a>(part: Segment<'a>, remote: &RemoteSegment) -> SendWr<'a, Rc> {
    let _ = part;
    SendWr::read(part, remote, 5)
}

fn main() {}
