//! Reads blocks of a namespace over RDMA and prints them.
//!
//! ```text
//! cargo run --example nvmeof_read -- 10.99.0.1 nqn.2024-01.org.example:disk --block 8 --count 1
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks to its user")]

use std::{error::Error, process::ExitCode};

use clap::Parser;
use example_support::chain;

#[path = "nvmeof_common/mod.rs"]
#[expect(dead_code, reason = "shared with examples that discover")]
mod common;

/// Reads blocks of a namespace over RDMA and prints them.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    target: common::TargetArguments,
    /// The namespace
    #[arg(long, default_value_t = 1)]
    namespace: u32,
    /// The first block
    #[arg(long, default_value_t = 0)]
    block: u64,
    /// How many blocks
    #[arg(long, default_value_t = 1)]
    count: u32,
}

fn main() -> ExitCode {
    match read(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvmeof_read: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn read(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let controller = arguments.target.connect(1, 32)?;
    let identify = controller.identify();
    let namespace = controller.namespace(arguments.namespace)?;
    println!(
        "{} {}, version {}, namespace {}: {} blocks of {} bytes",
        identify.model_number,
        identify.firmware_revision,
        controller.version(),
        namespace.id(),
        namespace.blocks(),
        namespace.block_size()
    );
    let length = usize::try_from(u64::from(arguments.count) * u64::from(namespace.block_size()))?;
    let buffer = controller.allocate(length)?;
    namespace.read(arguments.block, &buffer)?;
    print_bytes(&buffer.to_vec());
    controller.close();
    Ok(())
}

/// Sixteen bytes a line; lines that repeat the one before are left out, as hexdump does.
fn print_bytes(bytes: &[u8]) {
    let mut before: Option<&[u8]> = None;
    let mut is_skipping = false;
    for (number, line) in bytes.chunks(16).enumerate() {
        if before == Some(line) {
            if !is_skipping {
                println!("*");
            }
            is_skipping = true;
            continue;
        }
        is_skipping = false;
        before = Some(line);
        let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String = line
            .iter()
            .map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' })
            .collect();
        println!("{:08x}  {:<47}  |{text}|", number * 16, digits.join(" "));
    }
    println!("{:08x}", bytes.len());
}
