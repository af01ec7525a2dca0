//! Only a raw packet queue pair sends whole frames.
use ibverbs::{Inline, PostError, QueuePair, RawPacket, Rc, SendWr};

pub fn post(bytes: &[u8], pair: &QueuePair<'_, RawPacket>) -> Result<(), PostError> {
    let _ = SendWr::<Rc>::send(Inline(bytes));
    pair.post_send(&mut [SendWr::frame(Inline(bytes))])
}

fn main() {}
