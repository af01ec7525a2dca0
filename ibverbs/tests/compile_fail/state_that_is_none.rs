//~ E0277
//~| `u8` is no state of a queue pair
//~| the states are `Reset`, `Initialized`
//! States are types of this crate.
use ibverbs::{QueuePair, Rc, Reset};

pub fn take(pair: QueuePair<'_, Rc>) {
    let _: Option<Reset> = None;
    drop(pair.into_state::<u8>());
}

fn main() {}
