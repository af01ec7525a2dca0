//! A queue pair that is not connected sends nothing.
use ibverbs::{Inline, PostError, QueuePair, Rc, SendWr};

pub fn post(pair: &QueuePair<'_, Rc, ibverbs::ReadyToSend>) -> Result<(), PostError> {
    pair.post_send(&mut [SendWr::send(Inline(b"hello"))])
}

fn main() {}
