//~ E0599
//! Memory that a device may write is copied, never borrowed.
use ibverbs::MemoryRegion;

pub fn look(region: &MemoryRegion<'_, Vec<u8>>) -> Vec<u8> {
    region.as_slice().to_vec()
}

fn main() {}
