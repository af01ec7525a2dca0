//! One shared receive queue for several queue pairs: rank 0 sends over three connections, and each message takes the
//! next receive of rank 1's one queue.
//!
//! A server with thousands of clients so needs memory for the messages that are under way, not for those that
//! each client could send. The queue is filled again while messages come.
//!
//! ```text
//! cargo run --example srq
//! ```

use std::process::ExitCode;

use example_support::{
    AnyError, World, any_device, check_pattern, connect, pattern, report, run, wait,
};
use ibverbs::{Access, DeviceSelector, Rc, RecvWr, SendWr, SharedReceiveQueueOptions};

/// How many queue pairs there are.
const LANES: usize = 3;
/// How many messages come over each.
const MESSAGES: u32 = 20;
/// How many come in all.
const TOTAL: u32 = 60;
/// Receives in the shared queue: fewer than there are messages.
const RECEIVES: u32 = 8;
/// Room for one message.
const LENGTH: usize = 1024;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = any_device(world, &selector)?.open()?;
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(TOTAL)?;
    let shared = domain.create_shared_receive_queue(SharedReceiveQueueOptions::new(RECEIVES))?;
    // The same lane has the same number on both ranks: they are made and connected in the same order.
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        let pair = domain
            .queue_pair::<Rc>(&queue, &queue)
            .max_send_requests(MESSAGES)
            .shared_receive_queue(&shared)
            .create()?;
        lanes.push(connect(world, &port, pair, Access::empty())?);
    }

    if world.rank() == 0 {
        let mut memory = Vec::new();
        for lane in 0..LANES {
            memory.push(domain.register(pattern(lane as u64, LENGTH), Access::READ_ONLY)?);
        }
        world.barrier()?;
        for (pair, memory) in lanes.iter().zip(&memory) {
            let mut batch = Vec::new();
            for number in 0..MESSAGES {
                let message = SendWr::send_with_imm(memory.segment(..)?, number);
                batch.push(message.id(number.into()).signaled());
            }
            pair.post_send(&mut batch)?;
        }
        // Where no receive is left, rank 1's device asks this one to send again a little later.
        for _ in 0..TOTAL {
            wait(world, "the completion of a message", &queue, |_| ())?;
        }
        world.say(format!("sent {MESSAGES} messages over each of {LANES} queue pairs"));
    } else {
        let memory =
            domain.register(vec![0_u8; RECEIVES as usize * LENGTH], Access::LOCAL_WRITE)?;
        let receive = |slot: usize| -> ibverbs::Result<RecvWr<'_>> {
            let place = memory.segment(slot * LENGTH..(slot + 1) * LENGTH)?;
            Ok(RecvWr::to(slot as u64, place))
        };
        let mut receives = (0..RECEIVES as usize).map(receive).collect::<Result<Vec<_>, _>>()?;
        shared.post_receive(&mut receives)?;
        world.barrier()?;

        let mut expected = [0; LANES];
        let mut spent = Vec::new();
        let mut refills = 0;
        let mut bytes = vec![0; LENGTH];
        for _ in 0..TOTAL {
            // The request says which receive was taken, the queue pair who took it.
            let (slot, pair, number) = wait(world, "a message", &queue, |work| {
                (work.id(), work.queue_pair(), work.immediate())
            })?;
            let slot = usize::try_from(slot)?;
            let lane = lanes.iter().position(|lane| lane.number() == pair);
            let lane = lane.ok_or("a message of a queue pair that is not there")?;
            if number != Some(expected[lane]) {
                return Err(format!("lane {lane}: {number:?} came, not {}", expected[lane]).into());
            }
            expected[lane] += 1;
            memory.bytes().read(slot * LENGTH, &mut bytes)?;
            check_pattern(lane as u64, &bytes)?;
            spent.push(receive(slot)?);
            // Half a queue behind one doorbell.
            if spent.len() == RECEIVES as usize / 2 {
                shared.post_receive(&mut spent)?;
                spent.clear();
                refills += 1;
            }
        }
        world.say(format!(
            "verified {TOTAL} messages of {LANES} queue pairs in {RECEIVES} receives, \
             refilled {refills} times"
        ));
    }
    world.barrier()?;
    Ok(())
}
