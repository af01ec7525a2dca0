//~ E0277
//~| `u32` is no transport of queue pairs
//~| the transports are `Rc`, `Uc`, `Ud`
//! Transports are types of this crate, or of a vendor's.
use ibverbs::{CompletionQueue, ProtectionDomain, Ud};

pub fn make<'a>(domain: &'a ProtectionDomain<'a>, queue: &'a CompletionQueue<'a>) {
    let _: Option<Ud> = None;
    drop(domain.queue_pair::<u32>(queue, queue));
}

fn main() {}
