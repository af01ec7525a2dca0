//~ E0505
//! A request borrows the memory that it names.
use ibverbs::{MemoryRegion, QueuePair, Rc, SendWr};

pub fn post(pair: &QueuePair<'_, Rc>, region: MemoryRegion<'_, Vec<u8>>) {
    let request = SendWr::send(region.segment(..).unwrap());
    drop(region);
    pair.post_send(&mut [request]).unwrap();
}

fn main() {}
