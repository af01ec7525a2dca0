//! A domain borrows its context.
use ibverbs::{Device, Result};

pub fn life(device: &Device) -> Result<()> {
    let context = device.open()?;
    let domain = context.allocate_protection_domain()?;
    drop(domain);
    Ok(())
}

fn main() {}
