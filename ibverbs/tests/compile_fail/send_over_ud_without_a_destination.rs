//~ E0277
//~| Ud` queue pairs are not connected to a peer
//~| each request of a datagram transport names a `Destination`: `send_to`
//! Each datagram names its destination.
use ibverbs::{Destination, RemoteSegment, Segment, SendWr, Ud};

pub fn request<'a>(part: Segment<'a>, memory: &RemoteSegment, to: Destination<'a>) {
    let _ = (part, memory, to);
    drop(SendWr::<Ud>::send(part));
}

fn main() {}
