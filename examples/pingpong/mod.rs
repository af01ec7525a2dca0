//! What the pingpong programs have in common: the options, the exchange and the report of those of rdma-core, so
//! that each end can be theirs or ours.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "programs that report to people")]

mod exchange;

use std::{
    error::Error,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use ibverbs::{
    Completion, CompletionChannel, CompletionQueue, Context, DeviceSelector, LocalPort, PortNumber,
};

pub(crate) use exchange::{Endpoint, Peer};

pub(crate) type AnyError = Box<dyn Error>;

/// Request numbers, as bits of what a queue pair still waits for.
pub(crate) const RECEIVE: u64 = 1;
/// See [`RECEIVE`].
pub(crate) const SEND: u64 = 2;

/// How long one end waits for the other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends messages back and forth, and tells how long one takes. Without a host it waits for a client.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Options {
    /// The server; none to be it
    pub(crate) host: Option<String>,
    /// The TCP port on which both meet
    #[arg(short, long, default_value_t = 18515)]
    pub(crate) port: u16,
    /// The device; the first one with an active port if not given
    #[arg(short = 'd', long)]
    ib_dev: Option<String>,
    /// The port of the device
    #[arg(short, long, default_value_t = 1)]
    ib_port: u8,
    /// How many bytes a message has; as many as the program of rdma-core sends if not given
    #[arg(short, long)]
    size: Option<u32>,
    /// The MTU of the path in bytes
    #[arg(short, long, default_value_t = 1024)]
    pub(crate) mtu: usize,
    /// How many receives are posted at a time
    #[arg(short, long, default_value_t = 500)]
    pub(crate) rx_depth: u32,
    /// How many messages go each way
    #[arg(short = 'n', long, default_value_t = 1000)]
    pub(crate) iters: u64,
    /// The service level
    #[arg(short = 'l', long, default_value_t = 0)]
    pub(crate) sl: u8,
    /// Sleep until something completes, instead of polling
    #[arg(short, long)]
    events: bool,
    /// The entry of the port's GID table; one that others can reach if not given
    #[arg(short, long)]
    gid_idx: Option<u8>,
    /// Look at what arrived
    #[arg(short, long)]
    pub(crate) chk: bool,
    /// How many queue pairs share the receives (`srq_pingpong`)
    #[arg(short = 'q', long, default_value_t = 16)]
    pub(crate) num_qp: usize,
}

impl Options {
    /// Opens the device that is asked for.
    pub(crate) fn open(&self) -> Result<(Context, LocalPort), AnyError> {
        let mut selector = match &self.ib_dev {
            Some(name) => DeviceSelector::named(name),
            None => DeviceSelector::from_env()?,
        };
        selector = selector.port(PortNumber::new(self.ib_port)?);
        if let Some(index) = self.gid_idx {
            selector = selector.gid_index(index);
        }
        let context = ibverbs::devices()?.select(&selector)?.open()?;
        let port = context.local_port(&selector)?;
        Ok((context, port))
    }

    /// A completion queue, on a channel if it is to be slept on.
    pub(crate) fn queue<'a>(
        &self,
        context: &'a Context,
        channel: &'a CompletionChannel<'a>,
        capacity: u32,
    ) -> ibverbs::Result<CompletionQueue<'a>> {
        let builder = context.completion_queue(capacity);
        if self.events { builder.channel(channel).spin(Duration::ZERO) } else { builder }.create()
    }

    /// Waits for completions.
    pub(crate) fn wait<'s>(
        &self,
        queue: &CompletionQueue<'_>,
        slots: &'s mut [Completion],
    ) -> Result<&'s [Completion], AnyError> {
        let count = if self.events {
            queue.wait(slots, PATIENCE)?.len()
        } else {
            let start = Instant::now();
            loop {
                let count = queue.poll(slots)?.len();
                if count > 0 || start.elapsed() > PATIENCE {
                    break count;
                }
                // The other end may need this processor.
                std::thread::yield_now();
            }
        };
        if count == 0 {
            return Err("the other end has fallen silent".into());
        }
        Ok(&slots[..count])
    }

    pub(crate) fn size(&self, usual: u32) -> u32 {
        self.size.unwrap_or(usual)
    }

    pub(crate) fn is_client(&self) -> bool {
        self.host.is_some()
    }
}

/// Reads the options, runs the program, and says what went wrong.
pub(crate) fn run(program: fn(&Options) -> Result<(), AnyError>) -> ExitCode {
    match program(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", example_support::chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Prints what was measured, in the words of rdma-core's programs.
#[expect(clippy::cast_precision_loss, reason = "numbers to be read by people")]
pub(crate) fn print_report(options: &Options, length: u32, elapsed: Duration) {
    let (messages, seconds) = (options.iters, elapsed.as_secs_f64());
    let bytes = u64::from(length) * messages * 2;
    let megabits = bytes as f64 * 8.0 / seconds / 1e6;
    println!("{bytes} bytes in {seconds:.2} seconds = {megabits:.2} Mbit/sec");
    let each = seconds * 1e6 / messages as f64;
    println!("{messages} iters in {seconds:.2} seconds = {each:.2} usec/iter");
}
