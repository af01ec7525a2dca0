//! What one operation costs: two reliable connections in one process, as a program to count instructions in.
//!
//! `single` posts one signaled request and polls for it, again and again; `batch` posts `--depth` signaled
//! requests behind one doorbell, then polls for all. `write-imm` keeps the receiver's queue filled and
//! drains it. The payload is checked at the end.
//!
//! ```text
//! cargo run --release --example data_path_cost -- [--dev NAME] [--gid N] [--iters N] [--warmup N]
//!     [--mode single|batch] [--depth N] [--size N] [--op write|write-imm] [--inline] [--basic] [--poller]
//! ```
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a program that prints what it measured"
)]

use std::{env, error::Error, process::ExitCode, time::Instant};

use ibverbs::{
    Access, Completion, CompletionFields, CompletionQueue, ConnectOptions, DeviceSelector, Inline,
    LocalPort, MemoryRegion, Operations, Poller, Posting, ProtectionDomain, QueuePair, Rc, RecvWr,
    RemoteSegment, SendWr,
};

#[derive(Debug, Clone)]
struct Options {
    device: DeviceSelector,
    iterations: u64,
    warmup: u64,
    depth: u32,
    size: usize,
    immediate: bool,
    inline: bool,
    basic: bool,
    /// Takes completions from extended queues.
    poller: bool,
    batch: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            device: DeviceSelector::from_env()?,
            iterations: 1_000_000,
            warmup: 10_000,
            depth: 64,
            size: 8,
            immediate: false,
            inline: false,
            basic: false,
            poller: false,
            batch: false,
        };
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--dev" => options.device = DeviceSelector::named(value()?),
                "--gid" => options.device = options.device.gid_index(value()?.parse()?),
                "--iters" => options.iterations = value()?.parse()?,
                "--warmup" => options.warmup = value()?.parse()?,
                "--depth" => options.depth = value()?.parse()?,
                "--size" => options.size = value()?.parse()?,
                "--mode" => options.batch = value()? == "batch",
                "--op" => options.immediate = value()? == "write-imm",
                "--inline" => options.inline = true,
                "--basic" => options.basic = true,
                "--poller" => options.poller = true,
                _ => return Err(format!("unknown argument {flag}").into()),
            }
        }
        if !options.batch {
            options.depth = 1;
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    match Options::parse(env::args().skip(1)).and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("data_path_cost: {}", example_support::chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), Box<dyn Error>> {
    let context = ibverbs::devices()?.select(&options.device)?.open()?;
    let port = context.local_port(&options.device)?;
    let domain = context.allocate_protection_domain()?;
    let capacity = (options.depth * 2).max(16);
    let queues = [(); 4].map(|()| {
        let builder = context.completion_queue(capacity);
        let fields = CompletionFields::empty();
        if options.poller { builder.fields(fields).create() } else { builder.create() }
    });
    let [sent, unused_a, unused_b, received] = queues;
    let (sent, unused_a, unused_b, received) = (sent?, unused_a?, unused_b?, received?);
    let sender = pair(options, &domain, &sent, &unused_a)?;
    let receiver = pair(options, &domain, &unused_b, &received)?;
    let (sender_info, receiver_info) = (sender.endpoint(&port), receiver.endpoint(&port));
    let receiver = receiver.connect(&sender_info, &connect_options(&port))?;
    let sender = sender.connect(&receiver_info, &connect_options(&port))?;

    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let source = domain.register(vec![0xa5_u8; options.size], access)?;
    let target = domain.register(vec![0_u8; options.size.max(8)], access)?;
    let transfer = Transfer {
        options,
        sender: &sender,
        receiver: &receiver,
        sent: &sent,
        received: &received,
        source: &source,
        target: &target,
        to: target.remote().part(0..options.size as u64)?,
        bytes: vec![0xa5; options.size],
    };
    let rounds = |count: u64| count.div_ceil(options.depth.into());
    // Known to the compiler, so that the loop holds just the work.
    let run = match (options.immediate, options.poller) {
        (false, false) => Transfer::run::<false, false>,
        (true, false) => Transfer::run::<true, false>,
        (false, true) => Transfer::run::<false, true>,
        (true, true) => Transfer::run::<true, true>,
    };
    run(&transfer, rounds(options.warmup))?;
    let start = Instant::now();
    run(&transfer, rounds(options.iterations))?;
    let elapsed = start.elapsed();

    let operations = rounds(options.iterations) * u64::from(options.depth);
    println!(
        "rdma4rs dev={} api={:?} mode={} op={} size={} depth={} inline={} ns_per_op={:.1}",
        context.device().name(),
        sender.posting(),
        if options.batch { "batch" } else { "single" },
        if options.immediate { "write-imm" } else { "write" },
        options.size,
        options.depth,
        options.inline,
        elapsed.as_secs_f64() * 1e9 / operations as f64
    );
    let mut arrived = vec![0; options.size];
    target.bytes().read(0, &mut arrived)?;
    if arrived.iter().any(|byte| *byte != 0xa5) {
        return Err("the payload did not arrive".into());
    }
    Ok(())
}

fn pair<'a>(
    options: &Options,
    domain: &'a ProtectionDomain<'a>,
    send_queue: &'a CompletionQueue<'a>,
    receive_queue: &'a CompletionQueue<'a>,
) -> ibverbs::Result<QueuePair<'a, Rc, ibverbs::Reset>> {
    let inline = if options.inline { u32::try_from(options.size).unwrap_or(u32::MAX) } else { 0 };
    domain
        .queue_pair(send_queue, receive_queue)
        .max_send_requests(options.depth.max(16))
        .max_receive_requests(options.depth.max(16))
        .max_inline(inline)
        .operations(Operations::WRITE | Operations::WRITE_WITH_IMMEDIATE)
        .posting(if options.basic { Posting::Classic } else { Posting::Extended })
        .create()
}

fn connect_options(port: &LocalPort) -> ConnectOptions {
    ConnectOptions::new(port).access(Access::REMOTE_WRITE).incoming_reads(1).outgoing_reads(1)
}

struct Transfer<'a> {
    options: &'a Options,
    sender: &'a QueuePair<'a, Rc>,
    receiver: &'a QueuePair<'a, Rc>,
    sent: &'a CompletionQueue<'a>,
    received: &'a CompletionQueue<'a>,
    source: &'a MemoryRegion<'a, Vec<u8>>,
    target: &'a MemoryRegion<'a, Vec<u8>>,
    to: RemoteSegment,
    bytes: Vec<u8>,
}

impl Transfer<'_> {
    fn run<const IMMEDIATE: bool, const POLLER: bool>(
        &self,
        rounds: u64,
    ) -> Result<(), Box<dyn Error>> {
        let depth = self.options.depth;
        let mut sends: Vec<_> =
            (0..depth).map(|id| self.request(id)).collect::<ibverbs::Result<_>>()?;
        let credit = self.target.segment(..8)?;
        let mut receives: Vec<_> = (0..depth).map(|id| RecvWr::to(id.into(), credit)).collect();
        let mut slots = Completion::slots();
        let queues = if POLLER { vec![self.sent, self.received] } else { Vec::new() };
        let mut pollers: Vec<_> =
            queues.into_iter().map(CompletionQueue::poller).collect::<ibverbs::Result<_>>()?;
        for _ in 0..rounds {
            if IMMEDIATE {
                self.receiver.post_receive(&mut receives)?;
            }
            self.sender.post_send(&mut sends)?;
            if POLLER {
                drain_poller(&mut pollers[0], depth)?;
            } else {
                drain(self.sent, &mut slots, depth)?;
            }
            if IMMEDIATE && POLLER {
                drain_poller(&mut pollers[1], depth)?;
            } else if IMMEDIATE {
                drain(self.received, &mut slots, depth)?;
            }
        }
        Ok(())
    }

    fn request(&self, id: u32) -> ibverbs::Result<SendWr<'_, Rc>> {
        let segment = self.source.segment(..)?;
        let wr = match (self.options.immediate, self.options.inline) {
            (false, false) => SendWr::write(segment, &self.to),
            (false, true) => SendWr::write(Inline(&self.bytes), &self.to),
            (true, false) => SendWr::write_with_imm(segment, &self.to, id),
            (true, true) => SendWr::write_with_imm(Inline(&self.bytes), &self.to, id),
        };
        Ok(wr.id(id.into()).signaled())
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

#[inline(always)]
fn drain_poller(poller: &mut Poller<'_>, count: u32) -> Result<(), Box<dyn Error>> {
    let mut left = count as usize;
    loop {
        let found = poller.poll()?;
        for completion in found {
            completion.outcome()?;
        }
        left -= found.len();
        if left == 0 {
            return Ok(());
        }
    }
}
