//! An RDMA write with immediate from GPU to GPU.
//!
//! Rank 0 fills memory of its GPU on a stream, waits for just that stream, and writes the memory into that of
//! rank 1's GPU with the number 0xC0DE. Rank 1 learns by the number that the bytes are there; taking the completion
//! for access flushes them where the GPU needs that.
//!
//! ```text
//! cargo run --example gpu_write_with_imm          both ranks here, on a real device or in software
//! torchrun --no-python --nproc-per-node 2 target/debug/examples/gpu_write_with_imm
//! ```
//!
//! Needs a GPU; a machine with two gives each rank one of its own.

use std::process::ExitCode;

use cuda_interop::{Gpu, register};
use example_support::{
    AnyError, World, any_device_for_gpus, check_pattern, connect, pattern, report, run, wait,
};
use ibverbs::{Access, DeviceSelector, Rc, RecvWr, RemoteMemory, SendWr};

/// How many bytes are written.
const LENGTH: usize = 1 << 20;
/// What the receiver is told.
const WRITE_COMPLETE: u32 = 0xC0DE;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let gpu = Gpu::open(world.local_rank() % Gpu::count()?.max(1))?;
    let stream = gpu.context().new_stream()?;
    let selector = DeviceSelector::from_env()?;
    let context = any_device_for_gpus(world, &selector)?.open()?;
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(16)?;
    let pair = domain.queue_pair::<Rc>(&queue, &queue).create()?;
    let incoming = if world.rank() == 1 { Access::REMOTE_WRITE } else { Access::empty() };
    let pair = connect(world, &port, pair, incoming)?;

    let buffer = gpu.allocate::<u8>(&stream, LENGTH)?;
    if world.rank() == 0 {
        let mut memory = register(&domain, buffer, Access::READ_ONLY)?;
        stream.memcpy_htod(&pattern(0, LENGTH), &mut memory.device_mut()?)?;
        // Without this wait there is no segment to send from.
        let ready = memory.ready_after(&stream)?;
        let target = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?;
        let write = SendWr::write_with_imm(ready.segment(..)?, &target.at(0)?, WRITE_COMPLETE);
        pair.post_send(&mut [write.id(2).signaled()])?;
        wait(world, "the completion of the write", &queue, |_| ())?;
        world.say(format!("GPU {} wrote {LENGTH} bytes", gpu.ordinal()));
    } else {
        let memory = register(&domain, buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        pair.post_receive(&mut [RecvWr::new(1)])?;
        world.broadcast(1, &memory.landing_after(&stream)?.remote().to_bytes())?;
        let bytes = wait(world, "rank 0's write", &queue, |work| {
            if work.immediate() != Some(WRITE_COMPLETE) {
                return Err(format!("something else came: {work:?}").into());
            }
            // What the completion brought is the GPU's to see from here on.
            let arrived = memory.arrived(work)?;
            Ok::<_, AnyError>(stream.clone_dtoh(&arrived.device())?)
        })??;
        check_pattern(0, &bytes)?;
        world.say(format!("GPU {} has all {} bytes", gpu.ordinal(), bytes.len()));
    }
    world.barrier()?;
    Ok(())
}
