//~ E0277
//~| sends cannot be posted to a queue pair in state `
//~| `connect` gives the queue pair that sends
//! A queue pair that is ready to receive does not send yet.
use ibverbs::{Inline, PostError, QueuePair, Rc, SendWr};

pub fn post(pair: &QueuePair<'_, Rc, ibverbs::ReadyToReceive>) -> Result<(), PostError> {
    pair.post_send(&mut [SendWr::send(Inline(b"hello"))])
}

fn main() {}
