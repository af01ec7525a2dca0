//~ unused_must_use
//~| the queue pair leaves the group when this is dropped
//! A membership that nobody keeps has ended before the first datagram comes.
#![deny(unused_must_use)]
use ibverbs::{Gid, MulticastMembership, QueuePair, Result, Ud};

pub fn join(pair: &QueuePair<'_, Ud>, group: Gid) -> Result<()> {
    MulticastMembership::attach(pair, group, 0)?;
    Ok(())
}

fn main() {}
