//~ E0499
//! Completions lie in the slots that they were polled into.
use ibverbs::{Completion, CompletionQueue, Result};

pub fn poll(queue: &CompletionQueue<'_>) -> Result<usize> {
    let mut slots = Completion::slots::<4>();
    let found = queue.poll(&mut slots)?;
    queue.poll(&mut slots)?;
    Ok(found.len())
}

fn main() {}
