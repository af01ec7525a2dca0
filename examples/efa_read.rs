//! A one-sided read over SRD: rank 0 pulls rank 1's memory in pieces that the device can move.
//!
//! ```text
//! cargo run --example efa_read
//! ```

use std::process::ExitCode;

use efa::{EfaCapabilities, Srd};
use example_support::{
    AnyError, World, check_pattern, efa_devices, efa_peer, pattern, report, run, wait,
};
use ibverbs::{Access, DeviceSelector, QueueKey, RemoteMemory};

/// How many bytes are read.
const LENGTH: usize = 1 << 20;
/// The longest piece, to have several: devices take up to 1 GiB at a time.
const PIECE: u32 = 100_000;
/// What both queue pairs accept.
const KEY: QueueKey = QueueKey(0x1234);

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let devices = efa_devices(world)?;
    let context = devices[0].open()?;
    let attributes = efa::query_device(&context)?;
    attributes.require(EfaCapabilities::RDMA_READ)?;
    let port = context.local_port(&DeviceSelector::default())?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(32)?;
    let pair = efa::queue_pair::<Srd>(&domain, &queue, &queue).prepare(&port, KEY)?;
    let peer = efa_peer(world, &domain, &port, &pair, KEY)?;

    if world.rank() == 0 {
        let memory = domain.register(vec![0_u8; LENGTH], Access::LOCAL_WRITE)?;
        let source = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?.at(0)?;
        let piece = attributes.max_rdma_size().min(PIECE);
        let mut reads: Vec<_> = efa::read_wrs(&memory, .., &source, &peer, piece)?.collect();
        pair.post_send(&mut reads)?;
        for _ in &reads {
            wait(world, "the completion of a read", &queue, |_| ())?;
        }
        let pieces = reads.len();
        drop(reads);
        check_pattern(1, &memory.into_buffer()?)?;
        world.say(format!("read {LENGTH} bytes in {pieces} pieces and verified them"));
        // A read tells its target nothing: that the memory may be used again is said here.
        world.barrier()?;
    } else {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = domain.register(pattern(1, LENGTH), access)?;
        world.broadcast(1, &memory.remote().to_bytes())?;
        world.barrier()?;
        world.say("my memory was read, and nothing told me");
    }
    Ok(())
}
