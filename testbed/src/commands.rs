//! What `cargo testbed` can be told to do, one file each.

pub(crate) mod bench;
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
use crate::machine::{Machine, Place};
use crate::prepare::{Prepared, prepare};
use crate::vm::Guest;
use crate::workspace::Workspace;

/// Memory in MiB of each of two machines, unless it is given.
const MEMORY_OF_A_PAIR: u32 = 1024;

/// The port at which the first rank listens for the others.
const RANKS_PORT: &str = "29500";

/// Boots the usual guest, with the workspace in it. Builds what is missing first.
pub(crate) fn boot(cache: &Cache, workspace: &Workspace, memory: Option<u32>) -> Result<Guest> {
    boot_with_efa(cache, workspace, memory, &efa::Options::default())
}

/// Boots the usual guest with a clock that counts instructions, and with EFA devices if the options say so.
pub(crate) fn boot_counting(
    cache: &Cache,
    workspace: &Workspace,
    options: &efa::Options,
) -> Result<Guest> {
    let prepared = prepare(cache, false)?;
    let mut machine = usual_machine(cache, workspace, None, options, &prepared)?;
    machine.counts_instructions = true;
    Guest::boot(&machine, &prepared, cache)
}

/// Boots the usual guest, with EFA devices in it if the options say so.
pub(crate) fn boot_with_efa(
    cache: &Cache,
    workspace: &Workspace,
    memory: Option<u32>,
    options: &efa::Options,
) -> Result<Guest> {
    let prepared = prepare(cache, false)?;
    let machine = usual_machine(cache, workspace, memory, options, &prepared)?;
    Guest::boot(&machine, &prepared, cache)
}

/// Boots two such guests with a cable between them. The EFA devices of both are on one network.
pub(crate) fn boot_pair(
    cache: &Cache,
    workspace: &Workspace,
    memory: Option<u32>,
    options: &efa::Options,
) -> Result<Vec<Guest>> {
    let prepared = prepare(cache, false)?;
    let memory = memory.or(Some(MEMORY_OF_A_PAIR));
    let mut first = usual_machine(cache, workspace, memory, options, &prepared)?;
    // They run side by side.
    first.processors = (first.processors / 2).max(1);
    let mut second = first.clone();
    (first.place, second.place) = (Some(Place::First), Some(Place::Second));
    Guest::boot_all(&[first, second], &prepared, cache)
}

/// The machine that the usual guest runs on. Builds what is missing for it.
fn usual_machine(
    cache: &Cache,
    workspace: &Workspace,
    memory: Option<u32>,
    options: &efa::Options,
    prepared: &Prepared,
) -> Result<Machine> {
    let folders: Vec<_> =
        workspace.folders().into_iter().filter(|folder| folder.exists()).collect();
    let mut machine = Machine::with_shares(&folders);
    if let Some(memory) = memory {
        machine.memory = memory;
    }
    machine.shares.extend(options.libraries(cache)?.into_iter().map(|(_, folder)| folder));
    if let Some(efa) = Efa::prepare(options, cache, workspace, prepared)? {
        efa.equip(&mut machine)?;
    }
    Ok(machine)
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

/// Tells a job which one of two ranks it is, and where the first of them listens, as launchers do.
pub(crate) fn as_rank(rank: usize, first: &str, job: &mut Job) {
    for (name, value) in [
        ("RANK", rank.to_string().as_str()),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", first),
        ("MASTER_PORT", RANKS_PORT),
    ] {
        set(job, name, value);
    }
}

/// Sets a variable of a job's environment.
pub(crate) fn set(job: &mut Job, name: &str, value: &str) {
    job.environment.retain(|(present, _)| present != name);
    job.environment.push((name.to_owned(), value.to_owned()));
}
