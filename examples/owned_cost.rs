//! What one write costs whose request owns its buffer, as a program to count instructions in.
//!
//! `--depth` buffers are written to a region of the same process, each one again when it has come back. A loop polls for
//! them, or with `--tokio` as many tasks on one thread wait for theirs.
//!
//! ```text
//! cargo run --release --example owned_cost -- [--depth N] [--tokio] [--iters N]
//! ```
#![expect(clippy::print_stderr, reason = "a program that says what went wrong")]

use std::{process::ExitCode, sync::Arc};

use clap::Parser;
use example_support::{AnyError, chain};
use ibverbs::{
    Access, AsyncQueuePair, ConnectOptions, DeviceSelector, OwnedBuffer, OwnedQueuePair,
    ProtectionDomain, Rc, RemoteSegment,
};
use tokio::{runtime::Builder, task::JoinSet};

/// Bytes of a write.
const SIZE: usize = 8;

/// Writes of buffers that move into their requests, many times over.
#[derive(Debug, Clone, Parser)]
struct Options {
    /// Buffers, each of which has one write outstanding
    #[arg(long, default_value_t = 1)]
    depth: u32,
    /// A task for each buffer
    #[arg(long)]
    tokio: bool,
    /// Writes of all buffers together
    #[arg(long, default_value_t = 100_000)]
    iters: u32,
}

type Buffer = OwnedBuffer<'static, Vec<u8>>;
type Pair = OwnedQueuePair<'static, Rc, Vec<u8>>;

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("owned_cost: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = Arc::new(ibverbs::devices()?.select(&selector)?.open()?);
    let port = context.local_port(&selector)?;
    let domain = Arc::new(ProtectionDomain::allocate(&context)?);
    let target = domain.register(vec![0_u8; SIZE], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let buffers = (0..options.depth)
        .map(|_| OwnedBuffer::register(&domain, vec![0xa5_u8; SIZE]))
        .collect::<ibverbs::Result<Vec<_>>>()?;

    let make = |sends| OwnedQueuePair::<Rc, Vec<u8>, _>::create(&domain, sends, 1);
    let (sender, receiver) = (make(options.depth)?, make(1)?);
    let connect_options = ConnectOptions::new(&port).access(Access::REMOTE_WRITE);
    let (to_sender, to_receiver) = (sender.endpoint(&port), receiver.endpoint(&port));
    let _receiver = receiver.connect(&to_sender, &connect_options)?;
    let sender = sender.connect(&to_receiver, &connect_options)?;

    let to = target.remote().at(0)?;
    let each = options.iters / options.depth;
    if options.tokio {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(wait_in_tasks(sender, buffers, to, each))?;
    } else {
        poll(sender, buffers, to, each)?;
    }
    let mut arrived = [0; SIZE];
    target.bytes().read(0, &mut arrived)?;
    if arrived != [0xa5; SIZE] {
        return Err(format!("the payload did not arrive: {arrived:x?}").into());
    }
    Ok(())
}

/// Writes each of the buffers so many times, in a loop.
fn poll(
    mut pair: Pair,
    buffers: Vec<Buffer>,
    to: RemoteSegment,
    each: u32,
) -> Result<(), AnyError> {
    let mut left = u64::from(each) * buffers.len() as u64;
    let mut to_post = left - buffers.len() as u64;
    for buffer in buffers {
        pair.post_write(buffer, &to)?;
    }
    while left > 0 {
        while let Some(work) = pair.poll()? {
            work.outcome()?;
            left -= 1;
            if to_post > 0 {
                pair.post_write(work.buffer, &to)?;
                to_post -= 1;
            }
        }
    }
    Ok(())
}

/// Writes each of the buffers so many times, in a task of its own.
async fn wait_in_tasks(
    pair: Pair,
    buffers: Vec<Buffer>,
    to: RemoteSegment,
    each: u32,
) -> Result<(), AnyError> {
    let pair = Arc::new(AsyncQueuePair::new(pair)?);
    let mut tasks = JoinSet::new();
    for mut buffer in buffers {
        let pair = Arc::clone(&pair);
        tasks.spawn(async move {
            for _ in 0..each {
                let work = pair.write(buffer, &to)?.await?;
                work.outcome()?;
                buffer = work.buffer;
            }
            Ok::<_, AnyError>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}
