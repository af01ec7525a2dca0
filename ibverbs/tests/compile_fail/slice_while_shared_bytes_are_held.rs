//~ E0502
//! A slice excludes every other way to the bytes.
use ibverbs::MemoryRegion;

pub fn alias(region: &mut MemoryRegion<'_, Vec<u8>>) {
    let bytes = region.bytes();
    bytes.write(0, &[1]).unwrap();
    let slice = region.as_mut_slice().unwrap();
    slice[0] = 1;
    bytes.write(0, &[2]).unwrap();
}

fn main() {}
