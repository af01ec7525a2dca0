//~ E0597
//! Memory of a scope outlives it.
use ibverbs::{Access, ProtectionDomain};

pub fn register(domain: &ProtectionDomain<'_>) {
    domain.scope(|scope| {
        let mut memory = [0_u8; 8];
        scope.register(&mut memory, Access::LOCAL_WRITE).unwrap();
    });
}

fn main() {}
