//! Memory windows: rank 1 opens a part of its memory to rank 0, and closes it again.
//!
//! Registering memory enters the kernel; binding a window to a part of it is a work request, and makes a key for
//! that part alone. Once the window is unbound, whoever still has the key is refused. Both types of windows are
//! shown: one of type 2 belongs to the queue pair that bound it, one of type 1 to all of the domain.
//!
//! ```text
//! cargo run --example memory_windows
//! ```

use std::process::ExitCode;

use example_support::{
    AnyError, World, any_device, check_pattern, connect, pattern, report, run, wait,
};
use ibverbs::{
    Access, BindOptions, Completion, CompletionStatus, Context, DeviceSelector, LocalPort,
    MemoryWindow, Operations, ProtectionDomain, Rc, RemoteMemory, SendWr, Type1, Type2, WindowKind,
};

/// How many bytes the region has.
const LENGTH: usize = 16 << 10;
/// The part of it that the window opens.
const OPENED: std::ops::Range<usize> = 4096..8192;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = any_device(world, &selector)?.open()?;
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    open_and_close::<Type2>(world, &context, &port, &domain)?;
    world.say("the same with a window of type 1:");
    open_and_close::<Type1>(world, &context, &port, &domain)
}

fn open_and_close<K: WindowKind>(
    world: &World,
    context: &Context,
    port: &LocalPort,
    domain: &ProtectionDomain<'_>,
) -> Result<(), AnyError> {
    let queue = context.create_completion_queue(16)?;
    let pair = domain
        .queue_pair::<Rc>(&queue, &queue)
        .operations(Operations::COMMON | Operations::BIND_WINDOW | Operations::LOCAL_INVALIDATE)
        .create()?;
    let incoming = if world.rank() == 1 { Access::REMOTE_WRITE } else { Access::empty() };
    let pair = connect(world, port, pair, incoming)?;

    if world.rank() == 0 {
        let memory = domain.register(pattern(2, OPENED.len()), Access::READ_ONLY)?;
        let window = RemoteMemory::from_bytes(&world.broadcast(1, &[])?)?;
        let mut write = [SendWr::write(memory.segment(..)?, &window.at(0)?).signaled()];
        pair.post_send(&mut write)?;
        wait(world, "the completion of the write", &queue, |_| ())?;
        world.say(format!("wrote {} bytes through the window", window.len()));
        // One for "written", one for "closed".
        world.barrier()?;
        world.barrier()?;

        pair.post_send(&mut write)?;
        let mut slots = Completion::slots::<1>();
        let outcome = world.wait_for("the refusal", || -> Result<_, AnyError> {
            let done = queue.poll(&mut slots)?.first();
            Ok(done.map(|completion| completion.outcome().map(drop)))
        })?;
        match outcome {
            Err(failed) if failed.status == CompletionStatus::REMOTE_ACCESS_ERROR => {
                world.say(format!("the stale key was refused: {failed}"));
            }
            Err(failed) => return Err(failed.into()),
            Ok(()) => return Err("a key that was taken back still worked".into()),
        }
    } else {
        // The region itself is open to nobody.
        let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let region = domain.register(vec![0_u8; LENGTH], access)?;
        // Made after the region, so that it goes before it: a region with a window cannot be deregistered.
        let mut window = MemoryWindow::<K>::allocate(domain)?;
        let part = region.window(OPENED, Access::REMOTE_WRITE)?;
        let opened = pair.bind_window(&mut window, part, BindOptions::new(1))?;
        wait(world, "the completion of the bind", &queue, |_| ())?;
        world.broadcast(1, &opened.to_bytes())?;
        world.barrier()?;

        pair.unbind_window(&mut window, &region, BindOptions::new(2))?;
        wait(world, "the completion of the unbind", &queue, |_| ())?;
        world.say("took the key back");
        world.barrier()?;

        // What is refused changes nothing, so that the bytes may be looked at.
        let mut bytes = vec![0; LENGTH];
        region.bytes().read(0, &mut bytes)?;
        check_pattern(2, &bytes[OPENED])?;
        let outside = bytes[..OPENED.start].iter().chain(&bytes[OPENED.end..]);
        if outside.copied().any(|byte| byte != 0) {
            return Err("bytes outside of the window were written".into());
        }
        world.say("verified the bytes in the window, and those around it");
    }
    // A write that is refused takes the connection with it, on both sides.
    world.barrier()?;
    Ok(())
}
