//~ E0277
//~| Ud` queue pairs cannot read remote memory
//~| let the peer send the bytes instead
//! Datagrams do not reach memory.
use ibverbs::{Destination, RemoteSegment, Segment, SendWr, Ud};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Ud>::read(part, memory));
}

fn main() {}
