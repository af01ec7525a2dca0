//! A one-sided read from GPU to GPU: rank 0 pulls memory of rank 1's GPU.
//!
//! Rank 1 waits for the stream that produced the memory before it publishes the key; rank 0 takes the completion of its
//! read for access to what landed.
//!
//! ```text
//! cargo run --example gpu_read
//! ```

use std::process::ExitCode;

use cuda_interop::{Gpu, register};
use example_support::{
    AnyError, World, any_device_for_gpus, check_pattern, connect, pattern, report, run, wait,
};
use ibverbs::{Access, DeviceSelector, Rc, RemoteMemory, SendWr};

/// How many bytes are read.
const LENGTH: usize = 1 << 20;

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
    let incoming = if world.rank() == 1 { Access::REMOTE_READ } else { Access::empty() };
    let pair = connect(world, &port, pair, incoming)?;

    let buffer = gpu.allocate::<u8>(&stream, LENGTH)?;
    if world.rank() == 0 {
        let memory = register(&domain, buffer, Access::LOCAL_WRITE)?;
        let source = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?;
        // The zeros of a new allocation are work of the stream too, and must not come after the bytes.
        let read = SendWr::read(memory.landing_after(&stream)?.segment(..)?, &source.at(0)?);
        pair.post_send(&mut [read.id(3).signaled()])?;
        let bytes = wait(world, "the completion of the read", &queue, |work| {
            let arrived = memory.arrived(work)?;
            Ok::<_, AnyError>(stream.clone_dtoh(&arrived.device())?)
        })??;
        check_pattern(1, &bytes)?;
        world.say(format!("GPU {} read and verified {LENGTH} bytes", gpu.ordinal()));
        world.barrier()?;
    } else {
        let mut memory = register(&domain, buffer, Access::REMOTE_READ)?;
        stream.memcpy_htod(&pattern(1, LENGTH), &mut memory.device_mut()?)?;
        let ready = memory.ready_after(&stream)?;
        world.broadcast(1, &ready.remote().to_bytes())?;
        // A read tells its target nothing.
        world.barrier()?;
        world.say(format!("memory of GPU {} was read", gpu.ordinal()));
    }
    Ok(())
}
