//~ E0382
//! A vector belongs to its region, so that it cannot move its elements.
use ibverbs::{Access, ProtectionDomain};

pub fn grow(domain: &ProtectionDomain<'_>) {
    let mut buffer = vec![0_u8; 8];
    buffer.push(1);
    let region = domain.register(buffer, Access::LOCAL_WRITE).unwrap();
    buffer.push(2);
    drop(region);
}

fn main() {}
