//! What one write costs where there are many of something: queue pairs, regions, requests behind one doorbell, or
//! polling threads, as a program to count instructions in.
//!
//! Each thread has completion queues and `--queue-pairs` reliable connections of its own. A round takes the next
//! connection, posts `--depth` signaled writes of eight bytes, each from and to the next one of `--regions` regions,
//! and polls for all of them.
//!
//! ```text
//! cargo run --release --example scaling_cost -- [--queue-pairs N] [--regions N] [--depth N] [--threads N] [--iters N]
//! ```
#![expect(clippy::print_stderr, reason = "a program that says what went wrong")]

use std::{process::ExitCode, thread};

use clap::Parser;
use example_support::{AnyError, chain};
use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, DeviceSelector, LocalPort, MemoryRegion,
    ProtectionDomain, QueuePair, Rc, SendWr,
};

/// Bytes of a write.
const SIZE: usize = 8;

/// Writes between two queue pairs of one process, many times over.
#[derive(Debug, Clone, Parser)]
struct Options {
    /// Connections of each thread
    #[arg(long, default_value_t = 1)]
    queue_pairs: usize,
    /// Regions that each thread's writes go through
    #[arg(long, default_value_t = 1)]
    regions: usize,
    /// Writes behind one doorbell
    #[arg(long, default_value_t = 1)]
    depth: u32,
    /// Threads that post and poll
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Writes of all threads together
    #[arg(long, default_value_t = 100_000)]
    iters: u32,
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scaling_cost: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = ibverbs::devices()?.select(&selector)?.open()?;
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..options.threads).map(|_| scope.spawn(|| run(options, &domain, &port))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?)
    })
}

/// One thread's work.
fn run(options: &Options, domain: &ProtectionDomain<'_>, port: &LocalPort) -> Result<(), AnyError> {
    let context = domain.context();
    let sent = context.create_completion_queue(options.depth)?;
    let unused = context.create_completion_queue(1)?;
    let connections = (0..options.queue_pairs)
        .map(|_| connect(options, domain, port, &sent, &unused))
        .collect::<ibverbs::Result<Vec<_>>>()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let regions = (0..options.regions)
        .map(|_| domain.register(vec![0xa5_u8; 2 * SIZE], access))
        .collect::<ibverbs::Result<Vec<_>>>()?;
    regions.iter().try_for_each(|region| region.bytes().write(SIZE, &[0; SIZE]))?;

    // As many requests as regions, in whole batches.
    let depth = options.depth as usize;
    let count = options.regions.next_multiple_of(depth);
    let mut requests = (0..count)
        .map(|place| request(&regions[place % options.regions]))
        .collect::<ibverbs::Result<Vec<_>>>()?;
    let mut slots = Completion::slots::<64>();
    let (mut connection, mut batch) = (0, 0);
    for _ in 0..options.iters / options.threads / options.depth {
        connections[connection].0.post_send(&mut requests[batch..batch + depth])?;
        drain(&sent, &mut slots, depth)?;
        connection = if connection + 1 == connections.len() { 0 } else { connection + 1 };
        batch = if batch + depth == count { 0 } else { batch + depth };
    }
    let mut arrived = [0; SIZE];
    regions[0].bytes().read(SIZE, &mut arrived)?;
    if arrived != [0xa5; SIZE] {
        return Err(format!("the payload did not arrive: {arrived:x?}").into());
    }
    Ok(())
}

/// From the first half of a region to its second.
fn request<'a>(region: &'a MemoryRegion<'_, Vec<u8>>) -> ibverbs::Result<SendWr<'a, Rc>> {
    let to = region.remote().part(SIZE as u64..2 * SIZE as u64)?;
    Ok(SendWr::write(region.segment(..SIZE)?, &to).signaled())
}

type Pair<'a> = QueuePair<'a, Rc>;

/// A sender, and the receiver that it is connected to.
fn connect<'a>(
    options: &Options,
    domain: &'a ProtectionDomain<'a>,
    port: &LocalPort,
    sent: &'a CompletionQueue<'a>,
    unused: &'a CompletionQueue<'a>,
) -> ibverbs::Result<(Pair<'a>, Pair<'a>)> {
    let pair =
        |sends| domain.queue_pair::<Rc>(sends, unused).max_send_requests(options.depth).create();
    let ready = ConnectOptions::new(port).access(Access::REMOTE_WRITE);
    let ready = ready.incoming_reads(1).outgoing_reads(1);
    let (sender, receiver) = (pair(sent)?, pair(unused)?);
    let (sender_info, receiver_info) = (sender.endpoint(port), receiver.endpoint(port));
    let receiver = receiver.connect(&sender_info, &ready)?;
    Ok((sender.connect(&receiver_info, &ready)?, receiver))
}

fn drain(
    queue: &CompletionQueue<'_>,
    slots: &mut [Completion],
    count: usize,
) -> Result<(), AnyError> {
    let mut left = count;
    while left > 0 {
        let found = queue.poll(slots)?;
        for completion in found {
            completion.outcome()?;
        }
        left -= found.len();
    }
    Ok(())
}
