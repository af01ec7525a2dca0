//! A request borrows its list of segments.
use ibverbs::{QueuePair, Rc, Segment, SendWr};

pub fn post(pair: &QueuePair<'_, Rc>, part: Segment<'_>) {
    let list = vec![part, part];
    let request = SendWr::send(&list[..]);
    pair.post_send(&mut [request]).unwrap();
}

fn main() {}
