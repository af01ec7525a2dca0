//~ E0505
//! A receive borrows its list of segments.
use ibverbs::{QueuePair, Rc, RecvWr, Segment};

pub fn post(pair: &QueuePair<'_, Rc>, part: Segment<'_>) {
    let list = vec![part, part];
    let request = RecvWr::to(1, &list[..]);
    drop(list);
    pair.post_receive(&mut [request]).unwrap();
}

fn main() {}
