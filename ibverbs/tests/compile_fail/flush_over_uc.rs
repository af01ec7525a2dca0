//~ E0277
//~| Uc` queue pairs can neither flush remote memory nor write it atomically
//! Flushes need a reliable transport.
use ibverbs::{Destination, RemoteSegment, Segment, SendWr, Uc};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Uc>::atomic_write(memory, 1));
}

fn main() {}
