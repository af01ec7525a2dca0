//! A two-rank example and `perf`, unchanged, started by launchers between the guest's two hosts.
//!
//! `mpirun` is Open MPI's own, which reaches the other host through an agent in place of ssh. `torchrun` is the real one
//! where Python finds `torch`, here or in `target/python`; it is too large to be fetched for this alone. For Slurm there
//! is its environment: a cluster with its controller would be needed for more.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests stop the test, and a skipped test says so"
)]

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

/// Becomes a program on the host `$1`: a network namespace, with a name of its own.
const AGENT: &str = r#"#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts \
    sh -c 'echo "$1" > /proc/sys/kernel/hostname; shift; exec sh -c "$*"' sh "$host" "$@"
"#;

/// Becomes a program that is told the device of its host. Ranks on machines of their own need not be told.
const WITH_DEVICE: &str = r#"#!/bin/sh
RDMA_DEVICE="=rxe_$(uname -n)" exec "$@"
"#;

/// Where the first rank is, and both of them.
const HOSTS: [&str; 2] = ["a", "b"];

/// The programs, with words that each must print.
fn programs() -> [(Vec<String>, &'static str); 2] {
    let example = Path::new(&env::var_os("RDMA4RS_EXAMPLES").unwrap()).join("write_with_imm");
    let perf = [env!("CARGO_BIN_EXE_rdma4rs"), "perf", "write", "bw", "-n", "20", "-s", "4096"];
    [
        (vec![example.display().to_string()], "verified all 1048576 bytes"),
        (
            perf.map(str::to_owned).to_vec(),
            "write bandwidth, RC through ibv_wr, rxe_a of a to rxe_b of b",
        ),
    ]
}

/// Whether this runs where the hosts are; says so and, if devices are required, fails where they are not.
fn in_the_guest() -> bool {
    let there = env::var_os("RDMA4RS_GUEST").is_some();
    let required = env::var_os("RDMA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
    assert!(there || !required, "RDMA_REQUIRE_DEVICE=1, but this is not the guest of the testbed");
    if !there {
        println!("skipped: this needs the guest of the testbed");
    }
    there
}

fn script(name: &str, text: &str) -> PathBuf {
    let path = env::temp_dir().join(format!("{name}-{}", std::process::id()));
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A command on a host, in a shell's words.
fn on(agent: &Path, host: &str, words: &[String]) -> Command {
    let mut command = Command::new(agent);
    command.arg(host).args(words).env_remove("RDMA_DEVICE").env("RDMA4RS_TIMEOUT", "120");
    command
}

/// The output of what must succeed.
fn printed(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}: {text}\n{}", String::from_utf8_lossy(&stderr));
    text
}

/// Runs one command on each host at the same time; what both print.
fn on_both(
    agent: &Path,
    words: impl Fn(usize) -> (Vec<String>, Vec<(String, String)>) + Sync,
) -> String {
    let rank = |rank: usize| {
        let (words, variables) = words(rank);
        let mut command = on(agent, HOSTS[rank], &words);
        command.envs(variables);
        printed(command)
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| rank(0));
        let second = rank(1);
        first.join().unwrap() + &second
    })
}

#[test]
fn mpirun_starts_a_rank_on_each_of_two_hosts() {
    if !in_the_guest() {
        return;
    }
    let (agent, with_device) = (script("agent", AGENT), script("with-device", WITH_DEVICE));
    for (program, expected) in programs() {
        let mut words = ["mpirun.openmpi", "--allow-run-as-root", "--host", "a:1,b:1", "-n", "2"]
            .map(str::to_owned)
            .to_vec();
        words.extend(["--prtemca", "plm_ssh_agent"].map(str::to_owned));
        words.extend([agent.display().to_string(), with_device.display().to_string()]);
        words.extend(program);
        let text = printed(on(&agent, "a", &words));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn slurms_environment_is_enough_on_two_hosts() {
    if !in_the_guest() {
        return;
    }
    let (agent, with_device) = (script("agent", AGENT), script("with-device", WITH_DEVICE));
    for (number, (program, expected)) in programs().into_iter().enumerate() {
        let text = on_both(&agent, |rank| {
            let rank = rank.to_string();
            let job = (4711 + number).to_string();
            let variables = [
                ("SLURM_JOB_ID", job.as_str()),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_PROCID", &rank),
                ("SLURM_LOCALID", "0"),
                ("SLURM_NODEID", &rank),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_STEP_NUM_NODES", "2"),
                ("SLURM_STEP_NODELIST", "a,b"),
            ];
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let words = [vec![with_device.display().to_string()], program.clone()].concat();
            (words, variables.to_vec())
        });
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn torchrun_starts_a_rank_on_each_of_two_hosts_while_its_agent_holds_the_port() {
    if !in_the_guest() {
        return;
    }
    let packages =
        Path::new(env!("CARGO_BIN_EXE_rdma4rs")).ancestors().nth(2).unwrap().join("python");
    let mut path = vec![packages];
    path.extend(env::split_paths(&env::var_os("PYTHONPATH").unwrap_or_default()));
    let path = env::join_paths(path).unwrap().into_string().unwrap();
    let mut import = Command::new("python3");
    import.args(["-c", "import torch.distributed.run"]).env("PYTHONPATH", &path);
    if !import.output().unwrap().status.success() {
        println!("skipped: Python has no torch");
        return;
    }
    let (agent, with_device) = (script("agent", AGENT), script("with-device", WITH_DEVICE));
    for (number, (program, expected)) in programs().into_iter().enumerate() {
        let text = on_both(&agent, |rank| {
            let mut words: Vec<String> = ["python3", "-m", "torch.distributed.run", "--no-python"]
                .map(str::to_owned)
                .to_vec();
            words.extend(
                ["--nnodes=2", "--nproc-per-node=1", "--master-addr=10.99.1.1"].map(str::to_owned),
            );
            words.push(format!("--master-port={}", 29_400 + 20 * number));
            words.push(format!("--node-rank={rank}"));
            words.push(with_device.display().to_string());
            words.extend(program.clone());
            (words, vec![("PYTHONPATH".to_owned(), path.clone())])
        });
        assert!(text.contains(expected), "{text}");
    }
}
