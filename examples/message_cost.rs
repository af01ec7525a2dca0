//! What one message costs: sends and receives of eight bytes in one process, as a program to count instructions in.
//!
//! Each round posts `--depth` receives (to the queue pair, or with `--srq` to a shared receive queue) and as many
//! signaled sends (reliable, or with `--ud` as datagrams), then polls for all of them. `benches/c/message_cost.c` is the
//! same program in C.
//!
//! ```text
//! cargo run --release --example message_cost -- [--dev NAME] [--gid N] [--iters N] [--warmup N]
//!     [--mode single|batch] [--depth N] [--ud] [--srq] [--basic]
//! ```
#![expect(clippy::print_stderr, reason = "a program that says what went wrong")]

use std::{env, error::Error, process::ExitCode};

use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, DatagramOptions, DeviceSelector,
    LocalPort, Operations, Posting, ProtectionDomain, QueueKey, QueuePair, QueuePairBuilder, Rc,
    Receiving, RecvWr, SendWr, SharedReceiveQueue, SharedReceiveQueueOptions, Transport, Ud,
};

/// Bytes of a message.
const SIZE: usize = 8;
/// Bytes that a datagram has before them.
const HEADER: usize = 40;
/// The key of the datagrams.
const KEY: QueueKey = QueueKey(0x1234);

#[derive(Debug, Clone)]
struct Options {
    device: DeviceSelector,
    iterations: u64,
    warmup: u64,
    depth: u32,
    batch: bool,
    datagrams: bool,
    shared: bool,
    basic: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            device: DeviceSelector::from_env()?,
            iterations: 100_000,
            warmup: 64,
            depth: 64,
            batch: false,
            datagrams: false,
            shared: false,
            basic: false,
        };
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--dev" => options.device = DeviceSelector::named(value()?),
                "--gid" => options.device = options.device.gid_index(value()?.parse()?),
                "--iters" => options.iterations = value()?.parse()?,
                "--warmup" => options.warmup = value()?.parse()?,
                "--depth" => options.depth = value()?.parse()?,
                "--mode" => options.batch = value()? == "batch",
                "--ud" => options.datagrams = true,
                "--srq" => options.shared = true,
                "--basic" => options.basic = true,
                _ => return Err(format!("unknown argument {flag}").into()),
            }
        }
        if !options.batch {
            options.depth = 1;
        }
        Ok(options)
    }

    fn room(&self) -> u32 {
        self.depth.max(16)
    }
}

fn main() -> ExitCode {
    match Options::parse(env::args().skip(1)).and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("message_cost: {}", example_support::chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), Box<dyn Error>> {
    let context = ibverbs::devices()?.select(&options.device)?.open()?;
    let port = context.local_port(&options.device)?;
    let domain = context.allocate_protection_domain()?;
    let queue = || context.create_completion_queue(2 * options.room());
    let queues = [queue()?, queue()?, queue()?, queue()?];
    let source = domain.register(vec![0xa5_u8; SIZE], Access::LOCAL_WRITE)?;
    let target = domain.register(vec![0_u8; HEADER + SIZE], Access::LOCAL_WRITE)?;
    let shared = SharedReceiveQueueOptions::new(options.room());
    let shared = options.shared.then(|| domain.create_shared_receive_queue(shared)).transpose()?;
    let (segment, place) = (source.segment(..)?, target.segment(..)?);
    let receives = (0..options.depth).map(|id| RecvWr::to(id.into(), place)).collect();
    let ends =
        Ends { options, domain: &domain, queues: &queues, shared: shared.as_ref(), receives };
    if options.datagrams {
        let (sender, receiver) = ends.pairs::<Ud>()?;
        let ready = DatagramOptions::new(&port, KEY);
        let (sender, receiver) = (sender.create()?, receiver.create()?);
        let (sender, receiver) = (sender.activate(&ready)?, receiver.activate(&ready)?);
        let there = receiver.datagram_endpoint(&ready);
        let handle = domain.create_address_handle(&there.address(&port))?;
        let to = there.destination(&handle);
        let send = |id: u32| SendWr::send_to(segment, to).id(id.into()).signaled();
        ends.run(&sender, &receiver, (0..options.depth).map(send).collect())?;
    } else {
        let (sender, receiver) = ends.pairs::<Rc>()?;
        let (sender, receiver) = (sender.create()?, receiver.create()?);
        let (sender_info, receiver_info) = (sender.endpoint(&port), receiver.endpoint(&port));
        let receiver = receiver.connect(&sender_info, &connect_options(&port))?;
        let sender = sender.connect(&receiver_info, &connect_options(&port))?;
        let send = |id: u32| SendWr::<Rc>::send(segment).id(id.into()).signaled();
        ends.run(&sender, &receiver, (0..options.depth).map(send).collect())?;
    }
    let payload = if options.datagrams { HEADER } else { 0 };
    match target.bytes().get::<u8>(payload)? {
        0xa5 => Ok(()),
        other => Err(format!("the payload did not arrive: {other:#x}").into()),
    }
}

fn connect_options(port: &LocalPort) -> ConnectOptions {
    ConnectOptions::new(port).incoming_reads(1).outgoing_reads(1)
}

/// What both ends of either transport are made of.
struct Ends<'a> {
    options: &'a Options,
    domain: &'a ProtectionDomain<'a>,
    /// Of the sender's sends, the receiver's receives, and two that stay empty.
    queues: &'a [CompletionQueue<'a>; 4],
    shared: Option<&'a SharedReceiveQueue<'a>>,
    receives: Vec<RecvWr<'a>>,
}

type Builders<'a, T> = (QueuePairBuilder<'a, T>, QueuePairBuilder<'a, T>);

impl<'a> Ends<'a> {
    fn pairs<T: Transport + Receiving>(&self) -> ibverbs::Result<Builders<'a, T>> {
        let [sent, received, unused_a, unused_b] = self.queues;
        let builder = |sends, receives| {
            self.domain
                .queue_pair::<T>(sends, receives)
                .max_send_requests(self.options.room())
                .max_receive_requests(self.options.room())
                .operations(Operations::SEND | Operations::SEND_WITH_IMMEDIATE)
                .posting(if self.options.basic { Posting::Classic } else { Posting::Extended })
        };
        let receiver = builder(unused_b, received);
        let receiver = match self.shared {
            Some(shared) => receiver.shared_receive_queue(shared),
            None => receiver,
        };
        Ok((builder(sent, unused_a), receiver))
    }

    fn run<T: Transport + Receiving>(
        mut self,
        sender: &QueuePair<'_, T>,
        receiver: &QueuePair<'_, T>,
        mut sends: Vec<SendWr<'_, T>>,
    ) -> Result<(), Box<dyn Error>> {
        let depth = self.options.depth;
        let rounds = |count: u64| count.div_ceil(depth.into());
        let mut slots = Completion::slots();
        for _ in 0..rounds(self.options.warmup) + rounds(self.options.iterations) {
            match self.shared {
                Some(shared) => shared.post_receive(&mut self.receives)?,
                None => receiver.post_receive(&mut self.receives)?,
            }
            sender.post_send(&mut sends)?;
            drain(&self.queues[0], &mut slots, depth)?;
            drain(&self.queues[1], &mut slots, depth)?;
        }
        Ok(())
    }
}

#[inline(always)]
fn drain(
    queue: &CompletionQueue<'_>,
    slots: &mut [Completion; 64],
    count: u32,
) -> Result<(), Box<dyn Error>> {
    let mut left = count as usize;
    loop {
        let found = queue.poll(slots)?;
        for completion in found {
            completion.outcome()?;
        }
        left -= found.len();
        if left == 0 {
            return Ok(());
        }
    }
}
