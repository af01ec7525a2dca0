//~ E0277
//! What is read needs registered memory to land in.
use ibverbs::{Inline, Rc, RemoteSegment, Segment, SendWr};

pub fn request<'a>(part: Segment<'a>, remote: &RemoteSegment) -> SendWr<'a, Rc> {
    let _ = part;
    SendWr::read(Inline(b"hello"), remote)
}

fn main() {}
