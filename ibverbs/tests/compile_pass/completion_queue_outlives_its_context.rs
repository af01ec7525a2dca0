//! A completion queue borrows its context.
use ibverbs::{Device, Result};

pub fn life(device: &Device) -> Result<u32> {
    let context = device.open()?;
    let queue = context.create_completion_queue(8)?;
    Ok(queue.capacity())
}

fn main() {}
