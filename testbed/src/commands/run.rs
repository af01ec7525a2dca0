//! `cargo testbed run -- COMMAND…`

use std::io::{IsTerminal, Read, Write, stderr, stdin, stdout};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;

use clap::Args;

use super::{boot_with_efa, job, on_host, set};
use crate::cache::Cache;
use crate::channel::{CHUNK, Exit, Message};
use crate::efa;
use crate::error::Result;
use crate::progress::note;
use crate::vm::Event;
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

    #[command(flatten)]
    efa: efa::Options,

    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("there is no `=`")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the command; its exit code is ours, 128 plus the number for a signal, 127 if not started.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cache = Cache::open()?;
    let mut guest = boot_with_efa(&cache, &Workspace::find()?, options.memory, &options.efa)?;
    let mut job = job(options.command.clone());
    if let Some(host) = &options.host {
        job = on_host(host, job);
    }
    options.efa.announce(&mut job);
    for (name, value) in &options.environment {
        set(&mut job, name, value);
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
