//! The real launchers, where they are installed.
//!
//! A test whose launcher is missing prints `skipped: reason`, and fails if the launcher is named in
//! `RDMA_REQUIRE_LAUNCHERS=mpirun,mpiexec.hydra,torchrun,srun`.
#![expect(clippy::unwrap_used, reason = "helpers of tests stop the test")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

mod common;

use std::{
    env,
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    process::Command,
};

use common::{TRY_RANKS, command};

/// The first of these programs that is installed and whose `--version` says one of `words`.
fn installed(programs: &[&str], words: &[&str]) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = programs.iter().flat_map(|program| {
        env::split_paths(&path)
            .map(move |folder| folder.join(program))
            .filter(|file| file.is_file())
    });
    let found = found.into_iter().find(|file| {
        let Ok(output) = command(file).arg("--version").output() else { return false };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        words.is_empty() || words.iter().any(|word| text.contains(word))
    });
    if found.is_none() {
        skip(programs, "is not installed");
    }
    found
}

fn skip(programs: &[&str], reason: &str) {
    let required = env::var("RDMA_REQUIRE_LAUNCHERS").unwrap_or_default();
    let is_required = required.split(',').any(|program| programs.contains(&program));
    let names = programs.join(" or ");
    assert!(!is_required, "{names} {reason}, and RDMA_REQUIRE_LAUNCHERS names it");
    println!("skipped: {names} {reason}");
}

/// Runs a launcher and checks that each rank met all the others.
fn check(launcher: &mut Command, ranks: usize, started_as: &str) {
    let output = launcher.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{launcher:?}: {text}\n{errors}");
    for rank in 0..ranks {
        let hello = format!("[rank {rank}] rank {rank} of {ranks}, local rank ");
        assert!(text.contains(&hello), "{text}");
        for step in ["exchange", "broadcast", "barrier"] {
            assert!(text.contains(&format!("[rank {rank}] {step}: done")), "{text}");
        }
    }
    assert_eq!(text.matches(&format!("started as {started_as}")).count(), ranks, "{text}");
}

#[test]
fn mpirun_of_open_mpi_starts_three_ranks() {
    let Some(mpirun) = installed(&["mpirun.openmpi", "mpirun"], &["Open MPI", "PRRTE"]) else {
        return;
    };
    let mut launcher = command(mpirun);
    launcher.args(["--allow-run-as-root", "--oversubscribe", "-n", "3", TRY_RANKS]);
    check(&mut launcher, 3, "mpirun (Open MPI)");
}

#[test]
fn mpiexec_of_mpich_starts_three_ranks() {
    let Some(mpiexec) = installed(&["mpiexec.hydra"], &["HYDRA"]) else { return };
    check(command(mpiexec).args(["-n", "3", TRY_RANKS]), 3, "mpiexec (PMI)");
}

/// Output is passed on with a prefix; the first releases for Python 3.11 cannot do without.
fn torchrun(torchrun: &PathBuf) -> Command {
    let mut launcher = command(torchrun);
    launcher.args(["--no_python", "--redirects", "2", "--tee", "1", "--nproc_per_node", "3"]);
    launcher
}

#[test]
fn torchrun_starts_three_ranks_at_a_port_of_its_choice() {
    let Some(program) = installed(&["torchrun"], &[]) else { return };
    check(torchrun(&program).args(["--standalone", TRY_RANKS]), 3, "torchrun");
}

#[test]
fn torchrun_starts_three_ranks_while_its_agent_holds_the_port() {
    let Some(program) = installed(&["torchrun"], &[]) else { return };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let mut launcher = torchrun(&program);
    launcher.args(["--master_addr", "127.0.0.1", "--master_port", &port, TRY_RANKS]);
    check(&mut launcher, 3, "torchrun");
}

#[test]
fn srun_starts_two_ranks() {
    let Some(srun) = installed(&["srun"], &["slurm"]) else { return };
    let ping = command("scontrol").arg("ping").output().unwrap();
    if !String::from_utf8_lossy(&ping.stdout).contains(" UP") {
        skip(&["srun"], "has no controller that answers");
        return;
    }
    check(command(srun).args(["-n", "2", "--overcommit", TRY_RANKS]), 2, "srun (Slurm)");
}
