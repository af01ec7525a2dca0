//! `cargo testbed shell`

use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;

use clap::Args;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::run::code_of;
use super::{boot_with_efa, job, on_host, set};
use crate::cache::Cache;
use crate::channel::Message;
use crate::efa;
use crate::error::{During, Error, Result};
use crate::progress::note;
use crate::rdma_core::use_libraries;
use crate::vm::Event;
use crate::workspace::Workspace;

/// Options of `shell`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Open it in the network namespace `a` or `b` instead of the initial one.
    #[arg(long, value_parser = ["a", "b"])]
    host: Option<String>,

    /// Memory of the guest in MiB.
    #[arg(long)]
    memory: Option<u32>,

    #[command(flatten)]
    efa: efa::Options,
}

/// Runs a login shell in the guest, on this terminal.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if !stdin().is_terminal() {
        return Err(Error::Host(
            "`shell` needs a terminal; for a script there is `run -- bash -c '…'`".into(),
        ));
    }
    let cache = Cache::open()?;
    let mut guest = boot_with_efa(&cache, &Workspace::find()?, options.memory, &options.efa)?;
    note("a shell in the guest; leave it with `exit`");
    let mut shell = job(vec!["bash".into(), "--login".into()]);
    if let Some(host) = &options.host {
        shell = on_host(host, shell);
    }
    set(&mut shell, "TERM", &std::env::var("TERM").unwrap_or_else(|_| "linux".into()));
    options.efa.announce(&mut shell);
    for (_, folder) in options.efa.libraries(&cache)? {
        use_libraries(&folder, &mut shell);
    }
    let size = window_size();
    shell.terminal = Some(size);
    let number = guest.start(shell)?;

    let _raw = RawTerminal::enter()?;
    let sender = guest.sender()?;
    thread::spawn(move || pass_keys(number, size, sender));
    loop {
        match guest.next_event()? {
            Event::Output { bytes, .. } => {
                stdout()
                    .write_all(&bytes)
                    .and_then(|()| stdout().flush())
                    .during(|| "write to the terminal".into())?;
            }
            Event::Exit { job, exit } if job == number => return Ok(code_of(&exit)),
            Event::Exit { .. } | Event::Idle => {}
        }
    }
}

fn window_size() -> (u16, u16) {
    tcgetwinsize(stdin()).map_or((24, 80), |size| (size.ws_row, size.ws_col))
}

/// Passes keys on, and the terminal's new size with the first key after it changed.
fn pass_keys(number: u32, mut size: (u16, u16), mut sender: UnixStream) {
    let mut buffer = [0; 4096];
    loop {
        let count = stdin().read(&mut buffer).unwrap_or(0);
        let now = window_size();
        if now != size {
            size = now;
            if Message::Resize(number, size.0, size.1).write_to(&mut sender).is_err() {
                return;
            }
        }
        let bytes = buffer.get(..count).unwrap_or_default().to_vec();
        if Message::Input(number, bytes).write_to(&mut sender).is_err() || count == 0 {
            return;
        }
    }
}

/// The terminal without its own editing and signals, until dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Result<Self> {
        let before = tcgetattr(stdin()).during(|| "read the terminal's settings".into())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Flush, &raw)
            .during(|| "change the terminal's settings".into())?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Err(error) = tcsetattr(stdin(), OptionalActions::Flush, &self.0) {
            note(&format!("cannot restore the terminal's settings: {error}; try `reset`"));
        }
    }
}
