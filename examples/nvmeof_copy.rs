//! Copies a file to a namespace over RDMA, or a namespace to a file, and verifies the copy.
//!
//! A few requests of a megabyte are in flight at once, each with a buffer of its own; the target
//! moves the bytes straight from and to these buffers.
//!
//! ```text
//! cargo run --release --example nvmeof_copy -- to-namespace image.raw 10.99.0.1 nqn.2024-01.org.example:disk
//! cargo run --release --example nvmeof_copy -- to-file image.raw 10.99.0.1 nqn.2024-01.org.example:disk --bytes 1048576
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks to its user")]

use std::{
    collections::HashMap,
    error::Error,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand};
use example_support::chain;
use indicatif::{ProgressBar, ProgressStyle};
use nvmeof::{Buffer, Controller, IoQueue, Namespace, Part, Request, Ticket};

#[path = "nvmeof_common/mod.rs"]
#[expect(dead_code, reason = "shared with examples that discover")]
mod common;

/// Bytes of one request.
const CHUNK: usize = 1 << 20;

/// Copies between a file and a namespace.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    direction: Direction,
}

#[derive(Debug, Subcommand)]
enum Direction {
    /// Writes a file to a namespace; the last block is filled up with zeros
    ToNamespace(Copy),
    /// Writes a namespace, or the beginning of it, to a file
    ToFile(Copy),
}

#[derive(Debug, clap::Args)]
struct Copy {
    /// The file
    file: PathBuf,
    #[command(flatten)]
    target: common::TargetArguments,
    /// The namespace
    #[arg(long, default_value_t = 1)]
    namespace: u32,
    /// The first block in the namespace
    #[arg(long, default_value_t = 0)]
    block: u64,
    /// How many bytes; all that there are otherwise
    #[arg(long)]
    bytes: Option<u64>,
    /// Requests of a megabyte in flight at once
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// Do not read everything again and compare
    #[arg(long)]
    no_verify: bool,
}

fn main() -> ExitCode {
    match copy(&Arguments::parse().direction) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvmeof_copy: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// What happens to each chunk once it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Write,
    Read,
    Compare,
}

fn copy(direction: &Direction) -> Result<(), Box<dyn Error>> {
    let (copy, step) = match direction {
        Direction::ToNamespace(copy) => (copy, Step::Write),
        Direction::ToFile(copy) => (copy, Step::Read),
    };
    let controller = copy.target.connect(1, 128)?;
    let namespace = controller.namespace(copy.namespace)?;
    let start = copy.block.checked_mul(u64::from(namespace.block_size()));
    let room = start.and_then(|start| namespace.bytes().checked_sub(start));
    let room = room.ok_or("the first block is outside the namespace")?;
    let (file, bytes) = match step {
        Step::Write => {
            let file = File::open(&copy.file)?;
            let length = file.metadata()?.len();
            (file, copy.bytes.unwrap_or(length).min(length))
        }
        Step::Read | Step::Compare => (create(&copy.file)?, copy.bytes.unwrap_or(room).min(room)),
    };
    if bytes > room {
        return Err(format!("{bytes} bytes do not fit into the {room} that are left").into());
    }

    let mut transfer = Transfer {
        queue: controller.take_queue()?,
        namespace: &namespace,
        file: &file,
        first_block: copy.block,
        bytes,
        free: buffers(&controller, copy.depth)?,
    };
    transfer.run(step, if step == Step::Write { "writing" } else { "reading" })?;
    if step == Step::Write {
        transfer.flush()?;
    } else {
        file.sync_all()?;
    }
    if !copy.no_verify {
        transfer.run(Step::Compare, "verifying")?;
    }
    println!("{bytes} bytes copied{}", if copy.no_verify { "" } else { " and verified" });
    Ok(())
}

fn create(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(true).open(path)
}

fn buffers(controller: &Controller, count: usize) -> Result<Vec<Buffer>, nvmeof::Error> {
    (0..count.max(1)).map(|_| controller.allocate(CHUNK)).collect()
}

/// A copy in one direction.
struct Transfer<'c> {
    queue: IoQueue<Part<Buffer>>,
    namespace: &'c Namespace,
    file: &'c File,
    first_block: u64,
    bytes: u64,
    free: Vec<Buffer>,
}

impl Transfer<'_> {
    /// Takes every chunk through one step.
    fn run(&mut self, step: Step, what: &'static str) -> Result<(), Box<dyn Error>> {
        let style = ProgressStyle::with_template(
            "{msg:>9} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        )?;
        let progress = ProgressBar::new(self.bytes).with_style(style).with_message(what);
        let mut in_flight: HashMap<Ticket, (u64, usize)> = HashMap::new();
        let mut next = 0;
        while next < self.bytes || !in_flight.is_empty() {
            while next < self.bytes
                && let Some(buffer) = self.free.pop()
            {
                let length = usize::try_from((self.bytes - next).min(CHUNK as u64))?;
                let ticket = self.submit(step, buffer, next, length)?;
                in_flight.insert(ticket, (next, length));
                next += length as u64;
            }
            let Some(finished) = self.queue.wait(Duration::from_secs(1)) else { continue };
            finished.result?;
            let (offset, length) =
                in_flight.remove(&finished.ticket).ok_or("a request that nobody made ended")?;
            let buffer = finished.buffer.ok_or("a buffer did not come back")?.into_inner();
            self.finish(step, &buffer, offset, length)?;
            self.free.push(buffer);
            progress.inc(length as u64);
        }
        progress.finish();
        Ok(())
    }

    fn submit(
        &mut self,
        step: Step,
        buffer: Buffer,
        offset: u64,
        length: usize,
    ) -> Result<Ticket, Box<dyn Error>> {
        let block_size = self.namespace.block_size();
        let whole = length.next_multiple_of(usize::try_from(block_size)?);
        let block = self.first_block + offset / u64::from(block_size);
        if step == Step::Write {
            let mut bytes = vec![0; whole];
            self.file.read_exact_at(&mut bytes[..length], offset)?;
            buffer.write_at(0, &bytes)?;
        }
        let part = Part::new(buffer, 0..whole)?;
        let request = match step {
            Step::Write => Request::write(self.namespace, block, part),
            Step::Read | Step::Compare => Request::read(self.namespace, block, part),
        };
        Ok(self.queue.submit(request).map_err(nvmeof::Error::from)?)
    }

    fn finish(
        &self,
        step: Step,
        buffer: &Buffer,
        offset: u64,
        length: usize,
    ) -> Result<(), Box<dyn Error>> {
        if step == Step::Write {
            return Ok(());
        }
        let mut bytes = vec![0; length];
        buffer.read_at(0, &mut bytes)?;
        if step == Step::Read {
            return Ok(self.file.write_all_at(&bytes, offset)?);
        }
        let mut expected = vec![0; length];
        self.file.read_exact_at(&mut expected, offset)?;
        match bytes.iter().zip(&expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => Err(format!("byte {} differs", offset + at as u64).into()),
        }
    }

    fn flush(&mut self) -> Result<(), Box<dyn Error>> {
        self.queue.submit(Request::flush(self.namespace)).map_err(nvmeof::Error::from)?;
        loop {
            if let Some(finished) = self.queue.wait(Duration::from_secs(1)) {
                return Ok(finished.result?);
            }
        }
    }
}
