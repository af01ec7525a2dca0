//! An indirection table borrows its work queues, and a queue pair that spreads by it borrows the table.
use ibverbs::{
    HashFields, HashKey, IndirectionTable, ProtectionDomain, Result, RssQueuePair, WorkQueue,
};

pub fn life<'a>(domain: &'a ProtectionDomain<'a>, queue: WorkQueue<'a>) -> Result<u32> {
    let table = IndirectionTable::create([&queue])?;
    let pair = RssQueuePair::create(domain, &table, &HashKey::SYMMETRIC, HashFields::IPV4)?;
    Ok(pair.number().get())
}

fn main() {}
