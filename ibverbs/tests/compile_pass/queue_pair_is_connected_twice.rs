//! Connecting takes the unconnected queue pair away.
use ibverbs::{ConnectOptions, QpInfo, QueuePair, Rc, Reset, Result};

pub fn connect(
    pair: QueuePair<'_, Rc, Reset>,
    remote: &QpInfo,
    options: ConnectOptions,
) -> Result<()> {
    let connected = pair.connect(remote, &options)?;
    drop(connected);
    Ok(())
}

fn main() {}
