//! An RDMA write with immediate over SRD between two ranks.
//!
//! Rank 0 writes a patterned buffer into memory of rank 1 and attaches the number 0xC0DE, which completes one of rank
//! 1's receives. SRD has no connections: each request names its peer, and both ranks must know each other even though
//! data goes one way.
//!
//! ```text
//! cargo run --example efa_write_with_imm          both ranks here, on two EFA devices or in software
//! torchrun --no-python --nproc-per-node 2 target/debug/examples/efa_write_with_imm
//! mpirun -n 2 -H host0,host1 efa_write_with_imm   one rank on each host
//! ```
//!
//! `RDMA_DEVICE` chooses the devices.

use std::process::ExitCode;

use efa::{EfaCapabilities, Srd};
use example_support::{
    AnyError, World, check_pattern, efa_devices, efa_peer, pattern, report, run, wait,
};
use ibverbs::{Access, DeviceSelector, Operation, QueueKey, RecvWr, RemoteMemory, SendWr};

/// How many bytes are written.
const LENGTH: usize = 1 << 20;
/// What the receiver is told.
const WRITE_COMPLETE: u32 = 0xC0DE;
/// What both queue pairs accept.
const KEY: QueueKey = QueueKey(0x1234);

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let devices = efa_devices(world)?;
    let context = devices[0].open()?;
    efa::query_device(&context)?.require(EfaCapabilities::RDMA_WRITE)?;
    let port = context.local_port(&DeviceSelector::default())?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(32)?;
    let pair = efa::queue_pair::<Srd>(&domain, &queue, &queue).prepare(&port, KEY)?;
    let peer = efa_peer(world, &domain, &port, &pair, KEY)?;

    if world.rank() == 0 {
        let memory = domain.register(pattern(0, LENGTH), Access::LOCAL_WRITE)?;
        let target = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?.at(0)?;
        let write = SendWr::<Srd>::write_with_imm_to(
            memory.segment(..)?,
            &target,
            peer.destination(),
            WRITE_COMPLETE,
        );
        pair.post_send(&mut [write.id(2)])?;
        wait(world, "the completion of the write", &queue, |_| ())?;
        world.say(format!("wrote {LENGTH} bytes into rank 1's memory with {WRITE_COMPLETE:#X}"));
    } else {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = domain.register(vec![0_u8; LENGTH], access)?;
        // The credit that the immediate uses up. EFA drops receives without memory, so that it names a byte, which
        // the write does not touch.
        let credit = domain.register(vec![0_u8], Access::LOCAL_WRITE)?;
        pair.post_receive(&mut [RecvWr::to(1, credit.segment(..)?)])?;
        world.broadcast(1, &memory.remote().to_bytes())?;
        let (operation, immediate) =
            wait(world, "rank 0's write", &queue, |work| (work.operation(), work.immediate()))?;
        if operation != Operation::RECEIVE_WRITE_WITH_IMMEDIATE || immediate != Some(WRITE_COMPLETE)
        {
            return Err(format!("something else came: {operation} with {immediate:?}").into());
        }
        world.say(format!("was notified with {WRITE_COMPLETE:#X}"));
        let bytes = memory.into_buffer()?;
        check_pattern(0, &bytes)?;
        world.say(format!("verified all {} bytes", bytes.len()));
    }
    // Nobody leaves while the other may still need an answer from this side's device.
    world.barrier()?;
    Ok(())
}
