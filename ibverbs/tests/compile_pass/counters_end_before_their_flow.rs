//! A flow borrows the counters that it counts in.
use ibverbs::{
    Context, CounterKind, Flow, FlowCounters, FlowRule, PacketMatch, PortNumber, QueuePair,
    RawPacket, Result,
};

pub fn life(pair: &QueuePair<'_, RawPacket>, port: PortNumber, context: &Context) -> Result<bool> {
    let counters = FlowCounters::create(context, &[CounterKind::PACKETS])?;
    let flow = Flow::create(pair, port, FlowRule::new(PacketMatch::new()).count(&counters))?;
    Ok(flow.counters().is_some())
}

fn main() {}
