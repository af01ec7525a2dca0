//! Memory of a scope outlives it.
use ibverbs::{Access, ProtectionDomain};

pub fn register(domain: &ProtectionDomain<'_>) {
    let mut memory = [0_u8; 8];
    domain.scope(|scope| {
        scope.register(&mut memory, Access::LOCAL_WRITE).unwrap();
    });
}

fn main() {}
