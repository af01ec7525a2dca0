//! An initiator only sends.
use ibverbs::{PostError, QueuePair, Rc, RecvWr, XrcInitiator};

pub type Initiator = (XrcInitiator, Rc);

pub fn post(pair: &QueuePair<'_, Rc>, batch: &mut [RecvWr<'_>]) -> Result<(), PostError> {
    pair.post_receive(batch)
}

fn main() {}
