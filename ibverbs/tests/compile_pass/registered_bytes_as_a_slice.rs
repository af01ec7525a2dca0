//! Memory that a device may write is copied, never borrowed.
use ibverbs::MemoryRegion;

pub fn look(region: &MemoryRegion<'_, Vec<u8>>) -> Vec<u8> {
    region.bytes().to_vec()
}

fn main() {}
