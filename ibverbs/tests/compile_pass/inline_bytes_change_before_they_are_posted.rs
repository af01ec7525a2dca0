//! Inline bytes are borrowed until they are posted.
use ibverbs::{Inline, QueuePair, Rc, SendWr};

pub fn post(pair: &QueuePair<'_, Rc>) {
    let mut bytes = [1_u8; 8];
    let request = SendWr::send(Inline(&bytes));
    pair.post_send(&mut [request]).unwrap();
    bytes.fill(3);
}

fn main() {}
