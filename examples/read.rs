//! A one-sided read: rank 0 pulls rank 1's memory, and rank 1's processor has no part in it.
//!
//! ```text
//! cargo run --example read
//! ```

use std::process::ExitCode;

use example_support::{
    AnyError, World, any_device, check_pattern, connect, pattern, report, run, wait,
};
use ibverbs::{Access, DeviceSelector, Rc, RemoteMemory, SendWr};

/// How many bytes are read.
const LENGTH: usize = 1 << 20;

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
    let incoming = if world.rank() == 1 { Access::REMOTE_READ } else { Access::empty() };
    let pair = connect(world, &port, pair, incoming)?;

    if world.rank() == 0 {
        let memory = domain.register(vec![0_u8; LENGTH], Access::LOCAL_WRITE)?;
        let source = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?;
        let read = SendWr::read(memory.segment(..)?, &source.at(0)?);
        pair.post_send(&mut [read.id(3).signaled()])?;
        wait(world, "the completion of the read", &queue, |_| ())?;
        check_pattern(1, &memory.into_buffer()?)?;
        world.say(format!("read {LENGTH} bytes out of rank 1's memory and verified them"));
        // A read tells its target nothing: that the memory may be used again is said here.
        world.barrier()?;
    } else {
        let memory = domain.register(pattern(1, LENGTH), Access::REMOTE_READ)?;
        world.broadcast(1, &memory.remote().to_bytes())?;
        world.barrier()?;
        world.say("my memory was read, and nothing told me");
    }
    Ok(())
}
