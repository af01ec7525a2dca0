//! A flow borrows the queue pair that it leads to.
use ibverbs::{Flow, FlowRule, PacketMatch, PortNumber, QueuePair, RawPacket, Result};

pub fn life(pair: QueuePair<'_, RawPacket>, port: PortNumber) -> Result<bool> {
    let flow = Flow::create(&pair, port, FlowRule::new(PacketMatch::new()))?;
    Ok(flow.counters().is_some())
}

fn main() {}
