//! A receive borrows the memory that it names.
use ibverbs::{MemoryRegion, QueuePair, Rc, RecvWr};

pub fn post(pair: &QueuePair<'_, Rc>, region: MemoryRegion<'_, Vec<u8>>) {
    let request = RecvWr::to(1, region.segment(..).unwrap());
    pair.post_receive(&mut [request]).unwrap();
}

fn main() {}
