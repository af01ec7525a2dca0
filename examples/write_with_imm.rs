//! An RDMA write with immediate between two ranks.
//!
//! Rank 0 writes a patterned buffer straight into memory that rank 1 has registered, and attaches the number
//! 0xC0DE. The write takes no part of rank 1's processor; the number completes one of its receives, which is
//! how it learns that the bytes are there. Rank 1 then checks each of them.
//!
//! ```text
//! cargo run --example write_with_imm              both ranks here, on a real device or in software
//! torchrun --no-python --nproc-per-node 2 target/debug/examples/write_with_imm
//! mpirun -n 2 -H host0,host1 write_with_imm       one rank on each host
//! ```
//!
//! `RDMA_DEVICE`, `RDMA_PORT` and `RDMA_GID_INDEX` choose the device, its port and the GID.

use std::process::ExitCode;

use example_support::{AnyError, World, any_device, check_pattern, pattern, report, run, wait};
use ibverbs::{
    Access, ConnectOptions, DeviceSelector, Operation, QpInfo, Rc, RecvWr, RemoteMemory, SendWr,
};

/// How many bytes are written.
const LENGTH: usize = 1 << 20;
/// What the receiver is told.
const WRITE_COMPLETE: u32 = 0xC0DE;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = any_device(world, &selector)?.open()?;
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(16)?;
    let pair = domain.queue_pair::<Rc>(&queue, &queue).create()?;

    // Each rank tells the other where its queue pair is, then both connect.
    let local = pair.endpoint(&port);
    let remote = QpInfo::from_bytes(&world.exchange_with_peer(&local.to_bytes())?)?;
    let incoming = if world.rank() == 1 { Access::REMOTE_WRITE } else { Access::empty() };
    let pair = pair.connect(&remote, &ConnectOptions::new(&port).access(incoming))?;
    world.say(format!(
        "queue pair {} at {} ({}) is connected to {} at {}",
        local.number, local.gid, port.gid.kind, remote.number, remote.gid
    ));

    if world.rank() == 0 {
        let memory = domain.register(pattern(0, LENGTH), Access::READ_ONLY)?;
        let target = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?;
        let write = SendWr::write_with_imm(memory.segment(..)?, &target.at(0)?, WRITE_COMPLETE);
        pair.post_send(&mut [write.id(2).signaled()])?;
        wait(world, "the completion of the write", &queue, |_| ())?;
        world.say(format!("wrote {LENGTH} bytes into rank 1's memory with {WRITE_COMPLETE:#X}"));
    } else {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = domain.register(vec![0_u8; LENGTH], access)?;
        // The credit that the immediate uses up: it needs no memory of its own.
        pair.post_receive(&mut [RecvWr::new(1)])?;
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
