//! A slice excludes every other way to the bytes.
use std::sync::atomic::Ordering;

use ibverbs::MemoryRegion;

pub fn alias(region: &mut MemoryRegion<'_, Vec<u8>>) -> u64 {
    let word = region.bytes().word(0).unwrap();
    region.bytes().set(0, 1_u8).unwrap();
    word.load(Ordering::Relaxed)
}

fn main() {}
