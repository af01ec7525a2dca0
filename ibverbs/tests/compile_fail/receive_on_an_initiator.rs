//~ E0277
//~| XrcInitiator` queue pairs take no messages
//~| names a shared receive queue of its peer in each request
//! An initiator only sends.
use ibverbs::{PostError, QueuePair, Rc, RecvWr, XrcInitiator};

pub type Initiator = (XrcInitiator, Rc);

pub fn post(pair: &QueuePair<'_, XrcInitiator>, batch: &mut [RecvWr<'_>]) -> Result<(), PostError> {
    pair.post_receive(batch)
}

fn main() {}
