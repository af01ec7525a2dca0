//! A connected queue pair has one peer.
use ibverbs::{Destination, Rc, RemoteSegment, Segment, SendWr};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Rc>::send(part));
}

fn main() {}
