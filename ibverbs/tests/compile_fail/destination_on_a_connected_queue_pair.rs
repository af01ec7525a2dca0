//~ E0277
//~| Rc` queue pairs name no destination
//~| connected queue pairs send to their one peer: `send`
//! A connected queue pair has one peer.
use ibverbs::{Destination, Rc, RemoteSegment, Segment, SendWr};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Rc>::send_to(part, to));
}

fn main() {}
