//! A queue pair borrows its domain and its completion queues.
use ibverbs::{Context, Rc, Result};

pub fn life(context: &Context) -> Result<u32> {
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(8)?;
    let pair = domain.queue_pair::<Rc>(&queue, &queue).create()?;
    Ok(pair.number().get())
}

fn main() {}
