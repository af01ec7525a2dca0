//~ E0515
//! A region that leaves a function takes its domain along, or does not leave.
use std::sync::Arc;

use ibverbs::{Access, Context, MemoryRegion, ProtectionDomain, Result};

pub fn life(context: &Arc<Context>) -> Result<MemoryRegion<'static, Vec<u8>>> {
    let domain = Arc::new(ProtectionDomain::allocate(context)?);
    MemoryRegion::register(&*domain, vec![0_u8; 8], Access::READ_ONLY)
}

fn main() {}
