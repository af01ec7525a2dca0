//! One GPU buffer over four queue pairs: each lane writes its quarter and notifies with its number.
//!
//! The lanes share the domain, the region and the completion queue. Order is kept within a queue pair, not between them:
//! the memory is looked at when every lane's notification is there, after one flush for all.
//!
//! ```text
//! cargo run --example gpu_multi_qp
//! ```

use std::process::ExitCode;

use cuda_interop::{Gpu, Visibility, register};
use example_support::{
    AnyError, World, any_device_for_gpus, check_pattern, connect, pattern, report, run, wait,
};
use ibverbs::{Access, DeviceSelector, Rc, RecvWr, RemoteMemory, SendWr};

/// How many queue pairs there are.
const LANES: usize = 4;
/// How many bytes each lane writes.
const PART: usize = 1 << 20;

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
    let incoming = if world.rank() == 1 { Access::REMOTE_WRITE } else { Access::empty() };
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        let pair = domain.queue_pair::<Rc>(&queue, &queue).create()?;
        lanes.push(connect(world, &port, pair, incoming)?);
    }

    let buffer = gpu.allocate::<u8>(&stream, LANES * PART)?;
    if world.rank() == 0 {
        let mut memory = register(&domain, buffer, Access::READ_ONLY)?;
        stream.memcpy_htod(&pattern(4, LANES * PART), &mut memory.device_mut()?)?;
        let ready = memory.ready_after(&stream)?;
        let target = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?;
        for ((lane, pair), number) in lanes.iter().enumerate().zip(0_u32..) {
            let range = lane * PART..(lane + 1) * PART;
            let to = target.part(range.start as u64..range.end as u64)?;
            let write = SendWr::write_with_imm(ready.segment(range)?, &to, number);
            pair.post_send(&mut [write.id(lane as u64).signaled()])?;
        }
        for _ in 0..LANES {
            wait(world, "the completion of a lane's write", &queue, |_| ())?;
        }
        world.say(format!("GPU {} wrote {LANES} parts of {PART} bytes", gpu.ordinal()));
    } else {
        let memory = register(&domain, buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        for (lane, pair) in lanes.iter().enumerate() {
            pair.post_receive(&mut [RecvWr::new(lane as u64)])?;
        }
        world.broadcast(1, &memory.landing_after(&stream)?.remote().to_bytes())?;
        let mut arrived = [false; LANES];
        for _ in 0..LANES {
            let lane = wait(world, "a lane's notification", &queue, |work| work.immediate())?;
            let lane = lane.ok_or("a notification without a number")? as usize;
            *arrived.get_mut(lane).ok_or("a notification of a lane that is not there")? = true;
        }
        if arrived != [true; LANES] {
            return Err(format!("lanes arrived: {arrived:?}").into());
        }
        let bytes = stream.clone_dtoh(&memory.flush(Visibility::Owner)?.device())?;
        check_pattern(4, &bytes)?;
        world.say(format!(
            "every lane arrived; GPU {} has all {} bytes",
            gpu.ordinal(),
            bytes.len()
        ));
    }
    world.barrier()?;
    Ok(())
}
