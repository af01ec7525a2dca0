//! `cargo testbed run -- COMMAND…`

use std::io::{IsTerminal, Read, Write, stderr, stdin, stdout};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;

use clap::Args;

use super::{as_rank, boot_counting, boot_pair, boot_with_efa, job, on_host, set};
use crate::cache::Cache;
use crate::channel::{CHUNK, Exit, Job, Message};
use crate::efa;
use crate::error::Result;
use crate::libtest::Lines;
use crate::machine::Place;
use crate::progress::note;
use crate::rdma_core::use_libraries;
use crate::vm::{Event, Guest};
use crate::workspace::Workspace;

/// Options of `run`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Run in the network namespace `a` or `b` instead of the initial one.
    #[arg(long, value_parser = ["a", "b"])]
    host: Option<String>,

    /// Set a variable of the command's environment.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    environment: Vec<(String, String)>,

    /// Memory of the guest in MiB.
    #[arg(long)]
    memory: Option<u32>,

    /// Emulate one processor whose clock counts instructions: what is measured then does not depend on
    /// how busy this machine is.
    #[arg(long, conflicts_with_all = ["memory", "machines"])]
    virtual_clock: bool,

    #[command(flatten)]
    efa: efa::Options,

    /// Boot N guests, 1 or 2, and run the command in each. Two are joined by a cable, and their EFA devices are on one
    /// network; the command finds its rank and where the first one listens in `RANK`, `WORLD_SIZE`,
    /// `MASTER_ADDR` and `MASTER_PORT`, and its lines are marked with the rank.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "host",
          value_parser = clap::value_parser!(u8).range(1..=2))]
    machines: u8,

    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl Options {
    /// The command with its environment.
    fn job(&self, cache: &Cache) -> Result<Job> {
        let mut job = job(self.command.clone());
        self.efa.announce(&mut job);
        for (_, folder) in self.efa.libraries(cache)? {
            use_libraries(&folder, &mut job);
        }
        for (name, value) in &self.environment {
            set(&mut job, name, value);
        }
        Ok(job)
    }
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("there is no `=`")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the command; its exit code is ours, 128 plus the number for a signal, 127 if not started.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cache = Cache::open()?;
    let workspace = Workspace::find()?;
    if options.machines == 2 {
        let guests = boot_pair(&cache, &workspace, options.memory, &options.efa)?;
        return run_ranks(options, guests, &cache);
    }
    let mut guest = if options.virtual_clock {
        boot_counting(&cache, &workspace, &options.efa)?
    } else {
        boot_with_efa(&cache, &workspace, options.memory, &options.efa)?
    };
    let mut job = options.job(&cache)?;
    if let Some(host) = &options.host {
        job = on_host(host, job);
    }
    let number = guest.start(job)?;
    if stdin().is_terminal() {
        guest.send(&Message::Input(number, Vec::new()))?;
    } else {
        let sender = guest.sender()?;
        thread::spawn(move || pass_input(number, sender));
    }
    loop {
        match guest.next_event()? {
            Event::Output { is_error, bytes, .. } => show(is_error, &bytes),
            Event::Exit { job, exit } if job == number => return Ok(code_of(&exit)),
            Event::Exit { .. } | Event::Idle => {}
        }
    }
}

/// Runs the command in every guest. The exit code is that of the first one that failed.
fn run_ranks(options: &Options, mut guests: Vec<Guest>, cache: &Cache) -> Result<ExitCode> {
    let mut ranks = Vec::new();
    for (rank, guest) in guests.iter_mut().enumerate() {
        let mut job = options.job(cache)?;
        as_rank(rank, Place::First.address(), &mut job);
        let number = guest.start(job)?;
        guest.send(&Message::Input(number, Vec::new()))?;
        ranks.push((number, Lines::default(), None));
    }
    while ranks.iter().any(|(_, _, exit)| exit.is_none()) {
        for (rank, (guest, (number, lines, exit))) in guests.iter_mut().zip(&mut ranks).enumerate()
        {
            match guest.next_event()? {
                Event::Output { is_error, bytes, .. } => lines.push(&bytes, |line| {
                    show(is_error, format!("[rank {rank}] {line}\n").as_bytes());
                }),
                Event::Exit { job, exit: ended } if job == *number => *exit = Some(ended),
                Event::Exit { .. } | Event::Idle => {}
            }
        }
    }
    let exits: Vec<_> = ranks.into_iter().filter_map(|(_, _, exit)| exit).collect();
    let failed = exits.iter().find(|exit| **exit != Exit::Code(0));
    Ok(failed.map_or(ExitCode::SUCCESS, code_of))
}

/// Passes output through. A reader that is gone does not matter: the exit code still does.
fn show(is_error: bool, bytes: &[u8]) {
    let written = if is_error {
        stderr().write_all(bytes)
    } else {
        stdout().write_all(bytes).and_then(|()| stdout().flush())
    };
    drop(written);
}

fn pass_input(number: u32, mut sender: UnixStream) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = stdin().read(&mut buffer).unwrap_or(0);
        let bytes = buffer.get(..count).unwrap_or_default().to_vec();
        if Message::Input(number, bytes).write_to(&mut sender).is_err() || count == 0 {
            return;
        }
    }
}

/// An exit as a shell would report it: the code, or 128 and the signal's number, or 127.
pub(crate) fn code_of(exit: &Exit) -> ExitCode {
    if !matches!(exit, Exit::Code(_)) {
        note(&format!("the command {}", describe(exit)));
    }
    ExitCode::from(match exit {
        Exit::Code(code) => u8::try_from(*code).unwrap_or(255),
        Exit::Signal(signal) => u8::try_from(128 + signal).unwrap_or(255),
        Exit::NotStarted(_) => 127,
    })
}

/// An exit in words, as the end of a sentence about a program.
pub(crate) fn describe(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("ended with exit code {code}"),
        Exit::Signal(signal) => format!("was ended by signal {signal}"),
        Exit::NotStarted(why) => format!("could not be run: {why}"),
    }
}
