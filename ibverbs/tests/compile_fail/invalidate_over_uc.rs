//~ E0277
//~| Uc` queue pairs cannot take a key of the peer away
//~| `SendWr::local_invalidate`
//! Taking keys away needs a reliable transport.
use ibverbs::{Destination, RemoteSegment, Segment, SendWr, Uc};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Uc>::send_with_invalidate(part, memory.key()));
}

fn main() {}
