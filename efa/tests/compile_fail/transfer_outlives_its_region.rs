//~ E0505
//! The requests of a transfer borrow its region.
use efa::{Peer, ibverbs::{MemoryRegion, RemoteSegment}};

pub fn count(region: MemoryRegion<'_, Vec<u8>>, to: &RemoteSegment, peer: &Peer<'_>) -> usize {
    let writes = efa::write_wrs(&region, .., to, peer, 4096);
    drop(region);
    writes.map_or(0, Iterator::count)
}

fn main() {}
