//! States are types of this crate.
use ibverbs::{QueuePair, Rc, Reset};

pub fn take(pair: QueuePair<'_, Rc>) {
    let _: Option<Reset> = None;
    drop(pair.into_state::<Reset>());
}

fn main() {}
