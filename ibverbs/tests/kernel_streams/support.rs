//! What the streams share: two processes, numbered messages, and waiting that notices a lost wake-up.

use std::{
    env,
    process::Child,
    sync::Arc,
    time::{Duration, Instant},
};

use ibverbs::{
    Access, Completion, CompletionChannel, CompletionQueue, Context, MemoryRegion, ProtectionDomain,
};

use crate::{
    common::{Host, PATIENCE, is_quiet, link::Link, transfers::Role},
    kernel::{LOOPBACK, finish, meet, open, part, start},
};

/// Receives that are posted to a stream.
pub(crate) const WINDOW: usize = 64;
/// The length of a message.
pub(crate) const LENGTH: usize = 64;
/// Room for a message and the routing header before it.
pub(crate) const SLOT: usize = 128;

/// How many messages a stream has.
pub(crate) fn messages() -> u64 {
    env::var("RDMA4RS_STREAM_MESSAGES").map_or(5_000, |count| count.parse().unwrap())
}

/// Runs the two processes of the test of this name: `receive` on host `a`, `send` on host `b`, which are given the name of
/// their device and a way to talk beside the stream.
pub(crate) fn two_processes(
    test: &str,
    receive: impl FnOnce(&str, Link),
    send: impl FnOnce(&str, Link),
) {
    let socket = test.replace("::", "-");
    match part().as_deref() {
        Some("receiver") => receive("rxe_a", meet(&socket, Role::First)),
        Some(_) => send("rxe_b", meet(&socket, Role::Second)),
        None if open(LOOPBACK).is_none() => {}
        None => {
            let began = Instant::now();
            let receiver = start(test, "receiver", Some("a"));
            let mut sender = Companion(Some(start(test, "sender", Some("b"))));
            finish(receiver);
            finish(sender.0.take().unwrap());
            println!("{} messages in {:?}", messages(), began.elapsed());
        }
    }
}

/// A process that would wait in vain for one that failed.
struct Companion(Option<Child>);

impl Drop for Companion {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended already.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A message of a lane, which tells its number in each of its words.
pub(crate) fn message(lane: u64, number: u64) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for (word, place) in bytes.chunks_exact_mut(8).zip(0..) {
        word.copy_from_slice(&(number ^ lane << 48 ^ place << 56).to_be_bytes());
    }
    bytes
}

/// Slots for messages.
pub(crate) struct Slots(MemoryRegion<'static, Vec<u8>>);

impl Slots {
    pub(crate) fn new(domain: &Arc<ProtectionDomain<'static>>, count: usize) -> Self {
        let bytes = vec![0; count * SLOT];
        Self(MemoryRegion::register(domain, bytes, Access::LOCAL_WRITE).unwrap())
    }

    pub(crate) fn region(&self) -> &MemoryRegion<'static, Vec<u8>> {
        &self.0
    }

    /// A whole slot, to receive into.
    pub(crate) fn room(&self, slot: usize) -> ibverbs::Segment<'_> {
        self.0.segment(slot * SLOT..(slot + 1) * SLOT).unwrap()
    }

    /// Puts a message into a slot.
    pub(crate) fn fill(&self, slot: usize, message: &[u8; LENGTH]) -> ibverbs::Segment<'_> {
        let start = slot * SLOT;
        self.0.bytes().write(start, message).unwrap();
        self.0.segment(start..start + LENGTH).unwrap()
    }

    /// The message at an offset of a slot.
    pub(crate) fn read(&self, slot: usize, offset: usize) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        self.0.bytes().read(slot * SLOT + offset, &mut bytes).unwrap();
        bytes
    }
}

/// The number of a slot from the id of the request that uses it.
pub(crate) fn slot_of(id: u64) -> usize {
    usize::try_from(id).unwrap()
}

/// A queue that is waited for without polling for a while first: it sleeps as often as it can.
pub(crate) fn sleepy_queue(host: &Host) -> Arc<CompletionQueue<'static>> {
    sleepy(&host.context)
}

fn sleepy(context: &Arc<Context>) -> Arc<CompletionQueue<'static>> {
    let channel = Arc::new(CompletionChannel::create(context).unwrap());
    let builder = CompletionQueue::builder(context, 512).channel(channel);
    Arc::new(builder.spin(Duration::ZERO).create().unwrap())
}

/// Sleeps until there are completions.
///
/// A wait that finds something only when its time is up slept through its wake-up. One that finds nothing at all waits for
/// what was lost on the way: a completion, or a datagram.
pub(crate) fn awaited<'s>(
    queue: &CompletionQueue<'_>,
    slots: &'s mut [Completion],
    progress: impl FnOnce() -> String,
) -> &'s [Completion] {
    let began = Instant::now();
    let found = queue.wait(slots, PATIENCE).unwrap();
    let in_time = began.elapsed() < PATIENCE;
    if found.is_empty() || !in_time {
        panic!("asleep {}; after the wait there were {} completions", progress(), found.len());
    }
    found
}

/// Both sides are done: nothing more may have completed. The peer is waited for, since a queue pair that is gone acknowledges
/// nothing.
pub(crate) fn part_ways(link: &mut Link, queue: &CompletionQueue<'_>) {
    link.meet();
    assert!(is_quiet(queue), "there are more completions than requests");
    link.meet();
}
