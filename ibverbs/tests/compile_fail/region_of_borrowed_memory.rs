//~ E0277
//~| a `&mut [u8]` cannot be registered
//~| borrowed memory is registered by `ProtectionDomain::scope`
//! Borrowed memory is registered in a scope.
use ibverbs::{Access, ProtectionDomain};

pub fn register(domain: &ProtectionDomain<'_>, memory: &mut [u8]) {
    domain.register(memory, Access::LOCAL_WRITE).unwrap();
}

fn main() {}
