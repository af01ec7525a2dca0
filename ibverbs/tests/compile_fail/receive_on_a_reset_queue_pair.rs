//~ E0277
//~| receives cannot be posted to a queue pair in state `
//~| bring it there first: `initialize` is enough for receives
//! Receives can be posted from initialized on.
use ibverbs::{PostError, QueuePair, Rc, RecvWr};

pub fn post(pair: &QueuePair<'_, Rc, ibverbs::Reset>) -> Result<(), PostError> {
    pair.post_receive(&mut [RecvWr::new(1)])
}

fn main() {}
