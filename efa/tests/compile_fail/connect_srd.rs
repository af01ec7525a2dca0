//~ E0277
//~| Srd` queue pairs are not connected to a peer
//~| for `efa::Srd` by `prepare`
//! SRD has no connections: a queue pair is made ready, and each request names its peer.
use efa::{Srd, ibverbs::{ConnectOptions, LocalPort, QpInfo, QueueKey, QueuePair, Reset}};

pub fn ready(pair: QueuePair<'static, Srd, Reset>, port: &LocalPort, peer: &QpInfo) -> bool {
    let _ = (ConnectOptions::new(port), peer, QueueKey(1));
    pair.connect(peer, &ConnectOptions::new(port)).is_ok()
}

fn main() {}
