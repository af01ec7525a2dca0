//! Reads need a reliable transport.
use ibverbs::{Destination, RemoteSegment, Segment, SendWr, Uc};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Uc>::write(part, memory));
}

fn main() {}
