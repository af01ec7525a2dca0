//! One buffer over eight queue pairs of one EFA device.
//!
//! The queue pairs share the context, the domain, the region, the completion queue and the way to the peer. More
//! queue pairs mean more requests under way, which helps small transfers; for large ones one queue pair fills the
//! device, and more devices (`efa_multi_lane`) are what helps.
//!
//! ```text
//! cargo run --example efa_multi_qp
//! ```

use std::process::ExitCode;

use efa::{EfaCapabilities, Peer, Srd};
use example_support::{
    AnyError, World, check_pattern, efa_devices, efa_peer, pattern, report, run, wait,
};
use ibverbs::{
    Access, CompletionQueue, DeviceSelector, LocalPort, ProtectionDomain, QueueKey, QueuePair,
    RemoteMemory,
};

/// How many queue pairs there are.
const PAIRS: usize = 8;
/// How many bytes each queue pair writes.
const PART: usize = 128 << 10;
/// The longest piece of a part, to have many requests under way.
const PIECE: u32 = 16 << 10;
/// What every queue pair accepts.
const KEY: QueueKey = QueueKey(0x1234);

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let devices = efa_devices(world)?;
    let context = devices[0].open()?;
    let attributes = efa::query_device(&context)?;
    attributes.require(EfaCapabilities::RDMA_WRITE)?;
    let port = context.local_port(&DeviceSelector::default())?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(256)?;
    let pairs = (0..PAIRS)
        .map(|_| lane(world, &domain, &queue, &port))
        .collect::<Result<Vec<_>, AnyError>>()?;

    if world.rank() == 0 {
        let memory = domain.register(pattern(4, PAIRS * PART), Access::LOCAL_WRITE)?;
        let target = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?;
        let piece = attributes.max_rdma_size().min(PIECE);
        let mut posted = 0;
        // All are posted before the first completion is waited for.
        for (index, (pair, peer)) in pairs.iter().enumerate() {
            let range = index * PART..(index + 1) * PART;
            let to = target.part(range.start as u64..range.end as u64)?;
            let mut writes: Vec<_> = efa::write_wrs(&memory, range, &to, peer, piece)?.collect();
            pair.post_send(&mut writes)?;
            posted += writes.len();
        }
        for _ in 0..posted {
            wait(world, "the completion of a write", &queue, |_| ())?;
        }
        world.say(format!("{posted} writes over {PAIRS} queue pairs have completed"));
        world.barrier()?;
    } else {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = domain.register(vec![0_u8; PAIRS * PART], access)?;
        world.broadcast(1, &memory.remote().to_bytes())?;
        // Plain writes tell nobody; that all have completed is said outside of RDMA.
        world.barrier()?;
        check_pattern(4, &memory.into_buffer()?)?;
        world.say(format!("verified all {} bytes", PAIRS * PART));
    }
    world.barrier()?;
    Ok(())
}

/// A queue pair that knows the one of the other rank.
fn lane<'a>(
    world: &World,
    domain: &'a ProtectionDomain<'a>,
    queue: &'a CompletionQueue<'a>,
    port: &LocalPort,
) -> Result<(QueuePair<'a, Srd>, Peer<'a>), AnyError> {
    let pair = efa::queue_pair::<Srd>(domain, queue, queue).prepare(port, KEY)?;
    let peer = efa_peer(world, domain, port, &pair, KEY)?;
    Ok((pair, peer))
}
