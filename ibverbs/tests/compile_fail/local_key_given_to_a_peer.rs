//~ E0308
//! The two keys of a region are of two types.
use ibverbs::{Region, RemoteMemory, Result};

pub fn describe(region: &Region) -> Result<RemoteMemory> {
    let key = region.local_key();
    RemoteMemory::new(region.address(), region.len() as u64, key)
}

fn main() {}
