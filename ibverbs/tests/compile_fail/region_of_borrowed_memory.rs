//~ E0277
//! Borrowed memory is registered in a scope.
use ibverbs::{Access, ProtectionDomain};

pub fn register(domain: &ProtectionDomain<'_>, memory: &mut [u8]) {
    domain.register(memory, Access::LOCAL_WRITE).unwrap();
}

fn main() {}
