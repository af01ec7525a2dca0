//~ E0277
//~| not every pattern of bytes is a `bool`
//~| register numbers or arrays of numbers
//! A device writes any bytes, so that every pattern must be a value.
use ibverbs::{Access, ProtectionDomain};

pub fn register(domain: &ProtectionDomain<'_>) {
    let buffer = vec![true; 8];
    domain.register(buffer, Access::LOCAL_WRITE).unwrap();
}

fn main() {}
