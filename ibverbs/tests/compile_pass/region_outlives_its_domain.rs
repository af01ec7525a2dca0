//! A region borrows its domain.
use ibverbs::{Access, Context, Result};

pub fn life(context: &Context) -> Result<usize> {
    let domain = context.allocate_protection_domain()?;
    let region = domain.register(vec![0_u8; 8], Access::READ_ONLY)?;
    Ok(region.len())
}

fn main() {}
