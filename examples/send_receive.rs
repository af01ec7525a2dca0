//! Messages between two ranks: send, send with an immediate, send of inline bytes, and a send gathered from
//! two places.
//!
//! Unlike a write, a send goes where the receiver says: into the memory of its next posted receive.
//!
//! ```text
//! cargo run --example send_receive
//! ```

use std::process::ExitCode;

use example_support::{
    AnyError, World, any_device, check_pattern, connect, pattern, report, run, wait,
};
use ibverbs::{Access, DeviceSelector, Inline, Rc, RecvWr, SendWr};

/// The longest message.
const LENGTH: usize = 4096;
/// How many messages are sent.
const MESSAGES: usize = 4;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = any_device(world, &selector)?.open()?;
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(16)?;
    let pair =
        domain.queue_pair::<Rc>(&queue, &queue).max_send_segments(2).max_inline(64).create()?;
    let pair = connect(world, &port, pair, Access::empty())?;

    if world.rank() == 0 {
        let memory = domain.register(pattern(7, LENGTH), Access::READ_ONLY)?;
        let halves = [memory.segment(..LENGTH / 2)?, memory.segment(LENGTH / 2..)?];
        let bytes = pattern(7, 64);
        // The receives are there once the other rank has passed this.
        world.barrier()?;
        let mut batch = [
            SendWr::send(memory.segment(..)?).id(0),
            SendWr::send_with_imm(memory.segment(..100)?, 0xBEEF).id(1),
            SendWr::send(Inline(&bytes)).id(2),
            SendWr::send(&halves).id(3).signaled(),
        ];
        pair.post_send(&mut batch)?;
        // One queue pair works in order: the last one's completion stands for all.
        wait(world, "the last send", &queue, |_| ())?;
        world.say(format!("sent {MESSAGES} messages behind one doorbell"));
    } else {
        let memory = domain.register(vec![0_u8; MESSAGES * LENGTH], Access::LOCAL_WRITE)?;
        let mut receives = Vec::new();
        for message in 0..MESSAGES {
            let place = memory.segment(message * LENGTH..(message + 1) * LENGTH)?;
            receives.push(RecvWr::to(message as u64, place));
        }
        pair.post_receive(&mut receives)?;
        world.barrier()?;
        for message in 0..MESSAGES {
            let (length, immediate) = wait(world, "a message", &queue, |work| {
                (work.byte_length() as usize, work.immediate())
            })?;
            let mut bytes = vec![0; length];
            memory.bytes().read(message * LENGTH, &mut bytes)?;
            check_pattern(7, &bytes)?;
            match immediate {
                Some(number) => world.say(format!("{length} bytes came, with {number:#X}")),
                None => world.say(format!("{length} bytes came")),
            }
        }
    }
    world.barrier()?;
    Ok(())
}
