//! Sleeping instead of spinning: a completion channel, messages that wake and messages that do not, and what a device
//! tells of itself.
//!
//! A thread that polls answers soonest and uses its core up. One that sleeps on a channel costs an interrupt and a
//! system call for each wake-up, so that a queue polls for a while before it sleeps.
//!
//! ```text
//! cargo run --example events
//! ```

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use example_support::{AnyError, World, any_device, connect, report, run};
use ibverbs::{
    Access, AsyncEventKind, Completion, CompletionQueue, DeviceSelector, EventSource, Notification,
    Rc, RecvWr, SendWr, SharedReceiveQueueOptions,
};

/// How many receives rank 1 posts.
const RECEIVES: u32 = 8;
/// How many messages do not wake it.
const QUIET: u32 = 3;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = any_device(world, &selector)?.open()?;
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    let channel = context.create_completion_channel()?;
    // Sleeps at once. By default it polls for a while first, since waking up takes longer than most answers.
    let queue = context.completion_queue(16).channel(&channel).spin(Duration::ZERO).create()?;
    let shared = domain.create_shared_receive_queue(SharedReceiveQueueOptions::new(RECEIVES))?;
    let pair = domain.queue_pair::<Rc>(&queue, &queue).shared_receive_queue(&shared).create()?;
    let pair = connect(world, &port, pair, Access::empty())?;

    if world.rank() == 0 {
        let send = |message: SendWr<'_, Rc>| -> Result<(), AnyError> {
            pair.post_send(&mut [message.signaled()])?;
            sleep_for_one(world, &queue)
        };
        world.barrier()?;
        thread::sleep(Duration::from_millis(200));
        send(SendWr::send(&[]))?;
        world.barrier()?;
        // Rank 1 arms its queue for solicited messages.
        world.barrier()?;
        for _ in 0..QUIET {
            send(SendWr::send(&[]))?;
        }
        world.barrier()?;
        // Rank 1 looks whether it was woken.
        world.barrier()?;
        send(SendWr::send(&[]).solicited())?;
    } else {
        let mut receives: Vec<_> = (0..u64::from(RECEIVES)).map(RecvWr::new).collect();
        shared.post_receive(&mut receives)?;

        // That the time is up is no error.
        let mut slots = Completion::slots::<8>();
        let nothing = queue.wait(&mut slots, Duration::from_millis(20))?;
        world.say(format!("{} messages came within 20 ms", nothing.len()));
        world.barrier()?;
        sleep_for_one(world, &queue)?;
        world.say("slept until the first message was there");
        world.barrier()?;

        // `wait` arms the queue for any message; for solicited ones that is done by hand, after the events of before
        // were taken out.
        channel.drain_events()?;
        queue.request_notification(Notification::Solicited)?;
        // The device tells when fewer receives than this are left.
        shared.set_limit(RECEIVES - QUIET)?;
        world.barrier()?;
        world.barrier()?;
        if channel.try_next_event()?.is_some() {
            return Err("a message that was not solicited woke its receiver".into());
        }
        world.barrier()?;
        // A program would sleep in `next_event`, or in its event loop on the channel's descriptor; this looks after
        // rank 0 as well.
        let news = || -> Result<_, AnyError> { Ok(channel.try_next_event()?) };
        if world.wait_for("the wake-up", news)? != queue.id() {
            return Err("the event is of another queue".into());
        }
        let found = queue.poll(&mut slots)?;
        for completion in found {
            completion.outcome()?;
        }
        world.say(format!("woken once for {} messages, by the solicited one", found.len()));

        // What the device tells of itself comes through the context: a port that goes down, a queue that overruns, or
        // this.
        let told = || -> Result<_, AnyError> { Ok(context.try_next_event()?) };
        loop {
            let event = world.wait_for("the device's warning", told)?;
            world.say(format!("the device tells: {event}"));
            if event.kind == AsyncEventKind::SHARED_RECEIVE_QUEUE_LIMIT
                && event.source == EventSource::SharedReceiveQueue(shared.id())
            {
                break;
            }
        }
    }
    world.barrier()?;
    Ok(())
}

/// Sleeps until a completion is there, and takes it; looks after the other rank ten times a second.
fn sleep_for_one(world: &World, queue: &CompletionQueue<'_>) -> Result<(), AnyError> {
    let begin = Instant::now();
    let mut slots = Completion::slots::<1>();
    while begin.elapsed() < world.timeout() {
        if let [completion] = queue.wait(&mut slots, Duration::from_millis(100))? {
            completion.outcome()?;
            return Ok(());
        }
        world.check_peers()?;
    }
    Err("no completion came in time".into())
}
