//! Borrowed memory is registered in a scope.
use ibverbs::{Access, ProtectionDomain};

pub fn register(domain: &ProtectionDomain<'_>, memory: &mut [u8]) {
    domain.scope(|scope| drop(scope.register(memory, Access::LOCAL_WRITE)));
}

fn main() {}
