//! Measures a namespace over RDMA, somewhat like fio does: operations a second, throughput, and the
//! latencies that were seen.
//!
//! Each queue has a thread of its own, which keeps `--iodepth` requests in flight and polls; with
//! `--interrupts` it sleeps once it has polled for a while.
//! Writing destroys what the namespace holds.
//!
//! ```text
//! cargo run --release --example nvmeof_bench -- 10.99.0.1 nqn.2024-01.org.example:disk --rw randread --bs 4k --iodepth 32
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks to its user")]

use std::{
    error::Error,
    fmt,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use example_support::chain;
use nvmeof::{Buffer, Controller, IoQueue, Namespace, Request};

#[path = "nvmeof_common/mod.rs"]
#[expect(dead_code, reason = "shared with examples that discover")]
mod common;

/// Measures a namespace over RDMA.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    #[command(flatten)]
    target: common::TargetArguments,
    /// The namespace
    #[arg(long, default_value_t = 1)]
    namespace: u32,
    /// What to do
    #[arg(long, value_enum, default_value_t = Pattern::Randread)]
    rw: Pattern,
    /// How many of a hundred requests of a mix read
    #[arg(long, default_value_t = 70)]
    rwmixread: u64,
    /// Bytes of a request; k and m may follow
    #[arg(long, default_value = "4k", value_parser = size)]
    bs: usize,
    /// Requests in flight on each queue
    #[arg(long, default_value_t = 1)]
    iodepth: u16,
    /// Queues, each with a thread of its own
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// Seconds to measure
    #[arg(long, default_value_t = 10)]
    runtime: u64,
    /// Seconds before that are not counted
    #[arg(long, default_value_t = 1)]
    ramp_time: u64,
    /// Wait for interrupts instead of polling
    #[arg(long)]
    interrupts: bool,
    /// Microseconds to poll before waiting for an interrupt
    #[arg(long)]
    spin: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pattern {
    Read,
    Write,
    Randread,
    Randwrite,
    Randrw,
}

fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.to_ascii_lowercase().strip_suffix(['k', 'm']) {
        Some(digits) if text.to_ascii_lowercase().ends_with('k') => (digits.to_owned(), 1 << 10),
        Some(digits) => (digits.to_owned(), 1 << 20),
        None => (text.to_owned(), 1),
    };
    let number: usize = digits.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

fn main() -> ExitCode {
    match bench(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvmeof_bench: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    // One entry of a queue stays free.
    let mut target = arguments.target.target(arguments.queues, arguments.iodepth + 1)?;
    if let Some(spin) = arguments.spin {
        target.options = target.options.spin(Duration::from_micros(spin));
    }
    let controller = target.connect()?;
    let namespace = controller.namespace(arguments.namespace)?;
    let granted = controller.queues();
    println!(
        "{:?} of {} bytes, depth {}, {granted} queues, {} s",
        arguments.rw, arguments.bs, arguments.iodepth, arguments.runtime
    );
    let results: Vec<Result<Measured, nvmeof::Error>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..granted)
            .map(|number| {
                let (controller, namespace) = (&controller, &namespace);
                scope.spawn(move || Worker::new(arguments, controller, namespace, number)?.run())
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(nvmeof::Error::Closed)))
            .collect()
    });
    let mut all = Measured::default();
    for result in results {
        all.add(&result?);
    }
    let seconds = all.elapsed.as_secs_f64();
    for (name, latencies) in [("read", &all.reads), ("write", &all.writes)] {
        if latencies.count > 0 {
            let operations = to_float(latencies.count) / seconds;
            let throughput = operations * to_float(arguments.bs as u64) / f64::from(1 << 20);
            println!("{name:>5}: {operations:.0} IOPS, {throughput:.1} MiB/s, {latencies}");
        }
    }
    controller.close();
    Ok(())
}

/// One queue's work.
struct Worker<'b> {
    arguments: &'b Arguments,
    namespace: &'b Namespace,
    queue: IoQueue<Timed>,
    buffers: Vec<Buffer>,
    random: u64,
    next_block: u64,
    /// Whether polling would keep the only processor from what it waits for.
    yields: bool,
}

/// A buffer, and when its request was submitted.
struct Timed {
    buffer: Buffer,
    submitted: Instant,
    is_read: bool,
}

impl nvmeof::Memory for Timed {
    fn address(&self) -> u64 {
        self.buffer.address()
    }

    fn remote_key(&self) -> u32 {
        self.buffer.remote_key()
    }

    fn length(&self) -> usize {
        self.buffer.length()
    }

    fn copy_to(&self, offset: usize, into: &mut [u8]) -> bool {
        self.buffer.copy_to(offset, into)
    }
}

impl<'b> Worker<'b> {
    fn new(
        arguments: &'b Arguments,
        controller: &Controller,
        namespace: &'b Namespace,
        number: usize,
    ) -> Result<Self, nvmeof::Error> {
        let mut buffers = Vec::new();
        for _ in 0..arguments.iodepth.max(1) {
            buffers.push(controller.allocate(arguments.bs)?);
        }
        Ok(Self {
            arguments,
            namespace,
            queue: controller.take_queue()?,
            buffers,
            random: 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1),
            next_block: 0,
            yields: thread::available_parallelism().is_ok_and(|processors| processors.get() == 1),
        })
    }

    fn run(mut self) -> Result<Measured, nvmeof::Error> {
        let started = Instant::now();
        let counting = started + Duration::from_secs(self.arguments.ramp_time);
        let end = counting + Duration::from_secs(self.arguments.runtime);
        let mut measured = Measured::default();
        let mut now = started;
        while now < end || self.queue.pending() > 0 {
            while now < end
                && let Some(buffer) = self.buffers.pop()
            {
                self.submit(buffer, now)?;
            }
            let finished = if self.arguments.interrupts {
                self.queue.wait(Duration::from_secs(1))
            } else {
                self.queue.poll()
            };
            now = Instant::now();
            let Some(finished) = finished else {
                if self.yields {
                    thread::yield_now();
                }
                continue;
            };
            finished.result?;
            let Some(Timed { buffer, submitted, is_read }) = finished.buffer else { continue };
            if submitted >= counting && now < end {
                let latencies = if is_read { &mut measured.reads } else { &mut measured.writes };
                latencies.record(now - submitted);
            }
            self.buffers.push(buffer);
        }
        measured.elapsed = end - counting;
        Ok(measured)
    }

    fn submit(&mut self, buffer: Buffer, now: Instant) -> Result<(), nvmeof::Error> {
        let blocks = self.arguments.bs as u64 / u64::from(self.namespace.block_size());
        let places = (self.namespace.blocks() / blocks.max(1)).max(1);
        let (is_read, is_random) = match self.arguments.rw {
            Pattern::Read => (true, false),
            Pattern::Write => (false, false),
            Pattern::Randread => (true, true),
            Pattern::Randwrite => (false, true),
            Pattern::Randrw => (self.random() % 100 < self.arguments.rwmixread, true),
        };
        let place = if is_random {
            self.random() % places
        } else {
            self.next_block = (self.next_block + 1) % places;
            self.next_block
        };
        let timed = Timed { buffer, submitted: now, is_read };
        let request = if is_read {
            Request::read(self.namespace, place * blocks, timed)
        } else {
            Request::write(self.namespace, place * blocks, timed)
        };
        self.queue.submit(request)?;
        Ok(())
    }

    /// A small generator (xorshift); what it gives need not be secret.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// What was measured.
#[derive(Debug, Default)]
struct Measured {
    reads: Latencies,
    writes: Latencies,
    elapsed: Duration,
}

impl Measured {
    fn add(&mut self, other: &Self) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.elapsed = self.elapsed.max(other.elapsed);
    }
}

/// Latencies in buckets, sixteen for each power of two: within seven percent of the truth.
#[derive(Debug)]
struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    sum: Duration,
    max: Duration,
}

const STEPS: u32 = 16;

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: vec![0; 64 * 16], count: 0, sum: Duration::ZERO, max: Duration::ZERO }
    }
}

impl Latencies {
    fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(16);
        let power = nanoseconds.ilog2();
        let step = nanoseconds >> (power - 4) & 15;
        let index = usize::try_from(u64::from(power * STEPS) + step).unwrap_or(0);
        if let Some(bucket) = self.buckets.get_mut(index) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum += latency;
        self.max = self.max.max(latency);
    }

    fn add(&mut self, other: &Self) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += bucket;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// The latency that so many of a thousand requests did not exceed.
    fn percentile(&self, per_mille: u64) -> Duration {
        let wanted = (self.count * per_mille).div_ceil(1000);
        let mut seen = 0;
        for (index, bucket) in (0_u64..).zip(&self.buckets) {
            seen += bucket;
            if seen >= wanted {
                let (power, step) = (index / u64::from(STEPS), index % u64::from(STEPS));
                return Duration::from_nanos(((16 + step + 1) << power) / 16).min(self.max);
            }
        }
        self.max
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let average = micros(self.sum) / to_float(self.count.max(1));
        write!(
            f,
            "latency in us: average {average:.1}, 50% {:.1}, 99% {:.1}, 99.9% {:.1}, max {:.1}",
            micros(self.percentile(500)),
            micros(self.percentile(990)),
            micros(self.percentile(999)),
            micros(self.max)
        )
    }
}

fn to_float(number: u64) -> f64 {
    // Exact for every count that a run can reach.
    f64::from(u32::try_from(number >> 32).unwrap_or(0)) * 4_294_967_296.0
        + f64::from(u32::try_from(number & 0xffff_ffff).unwrap_or(0))
}
