//! What `cargo testbed` can be told to do, one file each.

pub(crate) mod demo;
pub(crate) mod headers;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod shell;
pub(crate) mod test;

use crate::cache::Cache;
use crate::channel::Job;
use crate::efa::{self, Efa};
use crate::error::Result;
use crate::machine::Machine;
use crate::prepare::prepare;
use crate::vm::Guest;
use crate::workspace::Workspace;

/// Boots the usual guest, with the workspace in it. Builds what is missing first.
pub(crate) fn boot(cache: &Cache, workspace: &Workspace, memory: Option<u32>) -> Result<Guest> {
    boot_with_efa(cache, workspace, memory, &efa::Options::default())
}

/// Boots the usual guest, with EFA devices in it if the options say so.
pub(crate) fn boot_with_efa(
    cache: &Cache,
    workspace: &Workspace,
    memory: Option<u32>,
    options: &efa::Options,
) -> Result<Guest> {
    let prepared = prepare(cache, false)?;
    let folders: Vec<_> =
        workspace.folders().into_iter().filter(|folder| folder.exists()).collect();
    let mut machine = Machine::with_shares(&folders);
    if let Some(memory) = memory {
        machine.memory = memory;
    }
    if let Some(efa) = Efa::prepare(options, cache, workspace, &prepared)? {
        efa.equip(&mut machine)?;
    }
    Guest::boot(&machine, &prepared, cache)
}

/// A job with the environment that every program of the guest has, started in this process's folder.
pub(crate) fn job(command: Vec<String>) -> Job {
    let environment = [
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"),
        ("RDMA4RS_GUEST", "1"),
        ("RDMA_DEVICE", "rxe0"),
        ("RDMA_REQUIRE_DEVICE", "1"),
        ("RUST_BACKTRACE", "1"),
        ("TMPDIR", "/tmp"),
        ("USER", "root"),
    ];
    let directory = std::env::current_dir().map(|path| path.display().to_string());
    Job {
        command,
        environment: environment.map(|(name, value)| (name.into(), value.into())).to_vec(),
        directory: directory.unwrap_or_default(),
        terminal: None,
    }
}

/// The same job inside one of the guest's two hosts.
pub(crate) fn on_host(host: &str, mut job: Job) -> Job {
    let mut command: Vec<String> = ["ip", "netns", "exec", host].map(String::from).to_vec();
    command.append(&mut job.command);
    job.command = command;
    set(&mut job, "RDMA_DEVICE", &format!("rxe_{host}"));
    job
}

/// Sets a variable of a job's environment.
pub(crate) fn set(job: &mut Job, name: &str, value: &str) {
    job.environment.retain(|(present, _)| present != name);
    job.environment.push((name.to_owned(), value.to_owned()));
}
