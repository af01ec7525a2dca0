//! A membership that nobody keeps has ended before the first datagram comes.
#![deny(unused_must_use)]
use ibverbs::{Gid, MulticastMembership, QueuePair, Result, Ud};

pub fn join(pair: &QueuePair<'_, Ud>, group: Gid) -> Result<()> {
    let _membership = MulticastMembership::attach(pair, group, 0)?;
    Ok(())
}

fn main() {}
