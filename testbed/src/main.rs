//! A real Linux kernel with software RDMA in a virtual machine, to run tests and examples in.
//!
//! See README.md beside this folder for what it does and what a guest looks like.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

mod apt;
mod boot_files;
mod cache;
mod channel;
mod commands;
mod cpio;
mod efa;
mod error;
mod guest;
mod headers;
mod kernel_image;
mod libtest;
mod machine;
mod modules;
mod prepare;
mod process;
mod progress;
mod rdma_core;
mod root;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::chain;
use crate::progress::note;

/// A real Linux kernel with software RDMA in a virtual machine.
///
/// The guest has the device `rxe0` in its initial namespace, and two hosts: the network namespaces `a`
/// (10.99.1.1, device `rxe_a`) and `b` (10.99.1.2, device `rxe_b`), joined by a cable.
#[derive(Debug, Parser)]
#[command(name = "cargo testbed", bin_name = "cargo testbed", version)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Fetch and build all that the virtual machine needs; other commands do it when they must.
    Setup(commands::setup::Options),
    /// Run the example `write_with_imm` between two hosts and show the packets that crossed.
    Demo,
    /// Run a command in the guest and end with its exit code.
    Run(commands::run::Options),
    /// Run tests, natively and in the guest, and end with one line that counts them.
    Test(commands::test::Options),
    /// Measure our programs beside those of others, and renew the tables of the documents.
    Bench(commands::bench::Options),
    /// Open a shell in the guest.
    Shell(commands::shell::Options),
    /// Fetch the headers of several rdma-core releases and print their include folders.
    Headers,
    /// The agent inside the guest.
    #[command(hide = true)]
    Guest,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Task::Setup(options) => commands::setup::run(&options),
        Task::Demo => commands::demo::run(),
        Task::Headers => commands::headers::run(),
        Task::Test(options) => Ok(commands::test::run(&options)),
        Task::Run(options) => commands::run::run(&options),
        Task::Bench(options) => commands::bench::run(&options),
        Task::Shell(options) => commands::shell::run(&options),
        Task::Guest => return guest::main(),
    };
    result.unwrap_or_else(|error| {
        note(&format!("error: {}", chain(&error)));
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
