//! Each handle is the only one of its object.
use ibverbs::{
    CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair, Rc, Region, Reset,
};

fn copies<T: Send>() {}

pub fn handles() {
    copies::<Context>();
    copies::<ProtectionDomain<'_>>();
    copies::<CompletionQueue<'_>>();
    copies::<QueuePair<'_, Rc, Reset>>();
    copies::<QueuePair<'_, Rc>>();
    copies::<MemoryRegion<'_, Vec<u8>>>();
    copies::<Region>();
}

fn main() {}
