//~ E0277
//~| Uc` queue pairs have no atomic operations on remote memory
//~| needs `Rc` or `XrcInitiator`
//! Atomics need a reliable transport.
use ibverbs::{Destination, RemoteSegment, Segment, SendWr, Uc};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Uc>::fetch_and_add(part, memory, 1));
}

fn main() {}
