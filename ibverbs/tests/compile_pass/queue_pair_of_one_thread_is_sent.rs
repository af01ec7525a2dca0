//! A queue pair without locks stays in its thread.
use ibverbs::{Rc, Result, ThreadDomain, CompletionQueue};

fn sent<'a>(domain: &'a ThreadDomain<'a>, queue: &'a CompletionQueue<'a>) -> Result<()> {
    let pair = domain.queue_pair::<Rc>(queue, queue).create()?;
    pair.number();
    Ok(())
}

fn main() {
    let _ = sent;
}
