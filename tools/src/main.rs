//! `rdma4rs`: the RDMA devices of a machine, whether the machine is fit for RDMA, and how fast it is.

mod devices;
mod doctor;
mod output;
mod perf;

use std::{error::Error, process::ExitCode};

use clap::{Parser, Subcommand};

/// RDMA from the command line.
#[derive(Debug, Parser)]
#[command(name = "rdma4rs", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show devices, ports and GIDs, as `ibv_devinfo` and `show_gids` do.
    Devices(devices::Options),
    /// Say what works on this machine and what does not, each with its remedy.
    Doctor(doctor::Options),
    /// Measure bandwidth and latency between two sides, as perftest does.
    Perf(Box<perf::Options>),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Devices(options) => devices::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Perf(options) => perf::run(&options).map_err(|error| -> Box<dyn Error> { error }),
    };
    output::conclude(result.unwrap_or_else(|error| output::failure(error.as_ref())))
}
