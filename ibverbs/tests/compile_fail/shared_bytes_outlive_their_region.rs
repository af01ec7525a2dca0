//~ E0505
//! The bytes of a region are there as long as the region is.
use ibverbs::MemoryRegion;

pub fn outlive(region: MemoryRegion<'_, Vec<u8>>) -> Vec<u8> {
    let bytes = region.bytes();
    drop(region);
    bytes.to_vec()
}

fn main() {}
