//! A buffer leaves its region when no request that is still to be posted names it.
use ibverbs::{MemoryRegion, QueuePair, Rc, SendWr};

pub fn take(pair: &QueuePair<'_, Rc>, region: MemoryRegion<'_, Vec<u8>>) {
    let request = SendWr::send(region.segment(..).unwrap());
    let _buffer = region.bytes().to_vec();
    pair.post_send(&mut [request]).unwrap();
}

fn main() {}
