//~ E0506
//! Memory of a scope is borrowed until the scope has ended.
use ibverbs::{Access, ProtectionDomain};

pub fn register(domain: &ProtectionDomain<'_>) -> [u8; 8] {
    let mut memory = [0_u8; 8];
    domain.scope(|scope| {
        scope.register(&mut memory, Access::LOCAL_WRITE).unwrap();
        memory[0] = 1;
    });
    memory
}

fn main() {}
