//! One buffer over four queue pairs: each lane writes its quarter and notifies with its number.
//!
//! The lanes share the domain, the region and the completion queue. Order is kept within a queue pair, not
//! between them: the transfer is complete when every lane's notification is there.
//!
//! ```text
//! cargo run --example multi_qp
//! ```

use std::process::ExitCode;

use example_support::{
    AnyError, World, any_device, check_pattern, connect, pattern, report, run, wait,
};
use ibverbs::{Access, DeviceSelector, Rc, RecvWr, RemoteMemory, SendWr};

/// How many queue pairs there are.
const LANES: usize = 4;
/// Room for every completion that can be outstanding.
const COMPLETIONS: u32 = 16;
/// How many bytes each lane writes.
const PART: usize = 256 << 10;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = any_device(world, &selector)?.open()?;
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(COMPLETIONS)?;
    let incoming = if world.rank() == 1 { Access::REMOTE_WRITE } else { Access::empty() };
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        let pair = domain.queue_pair::<Rc>(&queue, &queue).max_send_requests(4).create()?;
        lanes.push(connect(world, &port, pair, incoming)?);
    }

    if world.rank() == 0 {
        let memory = domain.register(pattern(4, LANES * PART), Access::READ_ONLY)?;
        let target = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?;
        for ((lane, pair), number) in lanes.iter().enumerate().zip(0_u32..) {
            let range = lane * PART..(lane + 1) * PART;
            let to = target.part(range.start as u64..range.end as u64)?;
            let write = SendWr::write_with_imm(memory.segment(range)?, &to, number);
            pair.post_send(&mut [write.id(lane as u64).signaled()])?;
        }
        for _ in 0..LANES {
            wait(world, "the completion of a lane's write", &queue, |_| ())?;
        }
        world.say(format!("wrote {LANES} parts of {PART} bytes over {LANES} queue pairs"));
    } else {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = domain.register(vec![0_u8; LANES * PART], access)?;
        for (lane, pair) in lanes.iter().enumerate() {
            pair.post_receive(&mut [RecvWr::new(lane as u64)])?;
        }
        world.broadcast(1, &memory.remote().to_bytes())?;
        let mut arrived = [false; LANES];
        for _ in 0..LANES {
            let lane = wait(world, "a lane's notification", &queue, |work| work.immediate())?;
            let lane = lane.ok_or("a notification without a number")? as usize;
            *arrived.get_mut(lane).ok_or("a notification of a lane that is not there")? = true;
        }
        if arrived != [true; LANES] {
            return Err(format!("lanes arrived: {arrived:?}").into());
        }
        check_pattern(4, &memory.into_buffer()?)?;
        world.say(format!("every lane arrived; verified all {} bytes", LANES * PART));
    }
    world.barrier()?;
    Ok(())
}
