//! Atomic operations on another rank's memory: a shared counter, and a lock taken by compare-and-swap.
//!
//! ```text
//! cargo run --example atomics
//! ```

use std::process::ExitCode;

use example_support::{AnyError, World, any_device, connect, report, run, wait};
use ibverbs::{Access, AtomicSupport, DeviceSelector, Rc, RemoteMemory, SendWr};

/// How often each rank counts.
const ROUNDS: u64 = 100;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = any_device(world, &selector)?.open()?;
    if context.query_device()?.atomics() == AtomicSupport::NONE {
        return Err("this device has no atomic operations".into());
    }
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(16)?;
    let pair = domain.queue_pair::<Rc>(&queue, &queue).create()?;
    let pair = connect(world, &port, pair, Access::REMOTE_ATOMIC)?;

    // Each rank has a counter and a lock, and works on the other's.
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let shared = domain.register(vec![0_u64; 2], access)?;
    let before = domain.register(vec![0_u64; 1], Access::LOCAL_WRITE)?;
    let theirs = world.exchange_with_peer(&shared.remote().to_bytes())?;
    let theirs = RemoteMemory::from_bytes(&theirs)?;
    let (counter, lock) = (theirs.part(0..8)?, theirs.part(8..16)?);
    let old_value = before.segment(..)?;

    for round in 0..ROUNDS {
        pair.post_send(&mut [SendWr::fetch_and_add(old_value, &counter, 3).id(round).signaled()])?;
        wait(world, "a fetch-and-add", &queue, |_| ())?;
        let old: u64 = before.bytes().get(0)?;
        if old != round * 3 {
            return Err(format!("the counter was {old} in round {round}").into());
        }
    }
    for (expected, found) in [(0, 0), (0, 1), (1, 1)] {
        let swap = SendWr::compare_and_swap(old_value, &lock, expected, 1);
        pair.post_send(&mut [swap.signaled()])?;
        wait(world, "a compare-and-swap", &queue, |_| ())?;
        let old: u64 = before.bytes().get(0)?;
        if old != found {
            return Err(format!("the lock was {old}, expected {found}").into());
        }
    }
    world.barrier()?;
    let (counted, locked): (u64, u64) = (shared.bytes().get(0)?, shared.bytes().get(8)?);
    world.say(format!(
        "the other rank counted to {counted} in my memory and set my lock to {locked}"
    ));
    if (counted, locked) != (ROUNDS * 3, 1) {
        return Err("that is not what it should be".into());
    }
    Ok(())
}
