//! Asks an NVMe discovery service over RDMA which subsystems there are, follows its referrals, and
//! prints a table.
//!
//! ```text
//! cargo run --example nvmeof_discover -- 10.99.0.1
//! cargo run --example nvmeof_discover -- nvme+rdma://storage:8009
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks to its user")]

use std::{error::Error, process::ExitCode};

use clap::Parser;
use example_support::chain;

#[path = "nvmeof_common/mod.rs"]
#[expect(dead_code, reason = "shared with examples that connect")]
mod common;

/// Asks an NVMe discovery service which subsystems there are.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    target: common::TargetArguments,
    /// Ask the services of /etc/nvme/config.json too
    #[arg(long)]
    configured: bool,
}

fn main() -> ExitCode {
    match discover(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvmeof_discover: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn discover(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let mut services = vec![arguments.target.target(0, 32)?];
    if arguments.configured {
        let configured = common::configured()?;
        services.extend(configured.into_iter().filter(|target| target.subsystem.is_discovery()));
    }
    println!(
        "{:<6} {:<6} {:<28} {:<6} {:<18} SUBSYSTEM",
        "TYPE", "FAMILY", "ADDRESS", "PORT", "LEADS TO"
    );
    for service in services {
        let found = nvmeof::discover(&service.address, &service.options)?;
        for entry in &found.entries {
            println!(
                "{:<6} {:<6} {:<28} {:<6} {:<18} {}",
                entry.transport,
                entry.family,
                entry.address,
                entry.service,
                entry.subsystem_type,
                entry.subsystem
            );
        }
        for (address, port, error) in &found.failures {
            eprintln!("referral to {address} port {port}: {}", chain(error));
        }
    }
    Ok(())
}
