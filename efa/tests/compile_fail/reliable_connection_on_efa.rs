//~ E0277
//~| EFA has no `
//~| SRD is as reliable as `Rc`
//! EFA has no connections.
use efa::{Srd, ibverbs::{CompletionQueue, ProtectionDomain, Rc}};

pub fn make<'a>(domain: &'a ProtectionDomain<'a>, queue: &'a CompletionQueue<'a>) {
    let _: Option<(Rc, Srd)> = None;
    drop(efa::queue_pair::<Rc>(domain, queue, queue));
}

fn main() {}
