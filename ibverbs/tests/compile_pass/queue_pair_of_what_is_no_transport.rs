//! Transports are types of this crate, or of a vendor's.
use ibverbs::{CompletionQueue, ProtectionDomain, Ud};

pub fn make<'a>(domain: &'a ProtectionDomain<'a>, queue: &'a CompletionQueue<'a>) {
    let _: Option<Ud> = None;
    drop(domain.queue_pair::<Ud>(queue, queue));
}

fn main() {}
