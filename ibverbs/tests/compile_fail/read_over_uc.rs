//~ E0277
//~| Uc` queue pairs cannot read remote memory
//~| needs `Rc`, `XrcInitiator` or `efa::Srd`
//! Reads need a reliable transport.
use ibverbs::{Destination, RemoteSegment, Segment, SendWr, Uc};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Uc>::read(part, memory));
}

fn main() {}
