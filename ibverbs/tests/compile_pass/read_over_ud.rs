//! Datagrams do not reach memory.
use ibverbs::{Destination, RemoteSegment, Segment, SendWr, Ud};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Ud>::send_to(part, to));
}

fn main() {}
