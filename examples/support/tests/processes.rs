//! Ranks as processes, told who they are in each launcher's words, with good and bad neighbours.
#![expect(clippy::unwrap_used, reason = "helpers of tests stop the test")]

mod common;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Output, Stdio},
    thread,
    time::Duration,
};

use common::{PATIENT, TRY_RANKS, command};

type Variables = Vec<(&'static str, String)>;

/// A `try-ranks` process with these variables and no others that mean something to it.
fn start(variables: &Variables, steps: &[&str]) -> Child {
    let mut command = command(TRY_RANKS);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.args(steps).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

struct Ended {
    success: bool,
    stdout: String,
    stderr: String,
}

fn end(child: Child) -> Ended {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { success: status.success(), stdout: text(stdout), stderr: text(stderr) }
}

/// Starts a world of processes, the last rank first, and waits for all.
fn world(size: usize, variables: impl Fn(usize) -> Variables, steps: &[&str]) -> Vec<Ended> {
    let mut children: Vec<Child> =
        (0..size).rev().map(|rank| start(&variables(rank), steps)).collect();
    children.reverse();
    children.into_iter().map(end).collect()
}

fn assert_all_well(ranks: &[Ended], started_as: &str) {
    for (rank, ended) in ranks.iter().enumerate() {
        assert!(ended.success, "rank {rank}: {}", ended.stderr);
        let first = format!("[rank {rank}] rank {rank} of {}, ", ranks.len());
        assert!(ended.stdout.starts_with(&first), "{}", ended.stdout);
        assert!(ended.stdout.contains(started_as), "{}", ended.stdout);
        assert!(ended.stdout.ends_with(&format!("[rank {rank}] barrier: done\n")));
    }
}

fn assert_fails(ended: &Ended, words: &[&str]) {
    assert!(!ended.success, "{}", ended.stdout);
    for word in words {
        assert!(ended.stderr.contains(word), "no {word:?} in: {}", ended.stderr);
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn by_hand(rank: usize, size: usize, host: &str, port: u16) -> Variables {
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("MASTER_ADDR", host.to_owned()),
        ("MASTER_PORT", port.to_string()),
    ]
}

fn with(mut variables: Variables, name: &'static str, value: &str) -> Variables {
    variables.retain(|(other, _)| *other != name);
    variables.push((name, value.to_owned()));
    variables
}

/// A server that is not ours: takes every caller and tells it `words`, or nothing.
fn stranger(listener: TcpListener, words: &'static [u8]) {
    thread::spawn(move || {
        let mut callers = Vec::new();
        for mut caller in listener.incoming().flatten() {
            drop(caller.write_all(words));
            callers.push(caller);
        }
    });
}

#[test]
fn without_a_launcher_both_ranks_run_in_one_process_and_lines_stay_whole() {
    let ended = end(start(&Vec::new(), &[]));
    assert!(ended.success, "{}", ended.stderr);
    for rank in 0..2 {
        let prefix = format!("[rank {rank}] ");
        let lines = ended.stdout.lines().filter_map(|line| line.strip_prefix(&prefix));
        let hello =
            format!("rank {rank} of 2, local rank {rank}, started as threads of one process");
        let expected = [&hello, "exchange: done", "broadcast: done", "barrier: done"];
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }
    assert_eq!(ended.stdout.lines().count(), 8);
}

#[test]
fn variables_by_hand_work_over_both_families_and_by_name() {
    for host in ["127.0.0.1", "::1", "[::1]", "localhost"] {
        if host.contains(':') && TcpListener::bind("[::1]:0").is_err() {
            println!("skipped: this host has no IPv6, so no rank can meet at {host}");
            continue;
        }
        let port = free_port();
        let ranks = world(3, |rank| by_hand(rank, 3, host, port), &[]);
        assert_all_well(&ranks, "environment variables");
    }
}

#[test]
fn a_host_that_is_not_loopback_is_served_on_all_its_addresses() {
    // The whole network 127.0.0.0/8 is this host; this name does not say so.
    let port = free_port();
    let host = |rank: usize| if rank == 0 { "0.0.0.0" } else { "127.0.0.1" };
    let ranks = world(2, |rank| by_hand(rank, 2, host(rank), port), &[]);
    assert_all_well(&ranks, "environment variables");
}

#[test]
fn torchrun_keeps_its_port_and_strangers_on_the_next_ones_do_not_matter() {
    // The agent and two strangers hold three ports in a row.
    let (port, agent, silent, rude) = loop {
        let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
        let agent = listen(0).unwrap();
        let port = agent.local_addr().unwrap().port().min(u16::MAX - 2);
        if let (Some(silent), Some(rude)) = (listen(port + 1), listen(port + 2)) {
            break (port, agent, silent, rude);
        }
    };
    stranger(silent, b"");
    stranger(rude, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    agent.set_nonblocking(true).unwrap();
    let variables = |rank| {
        let mut variables = by_hand(rank, 2, "localhost", port);
        variables.push(("LOCAL_RANK", rank.to_string()));
        variables.push(("TORCHELASTIC_RUN_ID", "none".to_owned()));
        variables
    };
    assert_all_well(&world(2, variables, &[]), "torchrun");
    assert!(agent.accept().is_err(), "somebody called the agent");
}

#[test]
fn two_torchrun_jobs_with_neighbouring_ports_do_not_mix() {
    let port = free_port().min(65_000);
    let jobs: Vec<_> = (0..2_u16)
        .map(|job| {
            thread::spawn(move || {
                let variables = |rank| {
                    let mut variables = by_hand(rank, 2, "127.0.0.1", port + job);
                    variables.push(("TORCHELASTIC_RUN_ID", format!("job {job}")));
                    variables
                };
                assert_all_well(&world(2, variables, &[]), "torchrun");
            })
        })
        .collect();
    for job in jobs {
        job.join().unwrap();
    }
}

#[test]
fn mpirun_of_open_mpi_is_understood() {
    let one_host = |rank: usize| {
        vec![
            ("OMPI_COMM_WORLD_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_SIZE", "2".to_owned()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2".to_owned()),
            ("PMIX_NAMESPACE", format!("prterun-host-{}@1", std::process::id())),
        ]
    };
    assert_all_well(&world(2, one_host, &[]), "mpirun (Open MPI)");

    // Ranks that count as being on two hosts meet where mpirun runs, if rank 0 is there.
    let two_hosts = |rank: usize| {
        let uri = format!("{}.0;tcp://127.0.0.1:4711;tcp6://[::1]:4712", std::process::id());
        let variables = with(one_host(rank), "OMPI_COMM_WORLD_LOCAL_SIZE", "1");
        let variables = with(variables, "OMPI_MCA_orte_hnp_uri", &uri);
        with(variables, "PMIX_NAMESPACE", &format!("{}", std::process::id()))
    };
    assert_all_well(&world(2, two_hosts, &[]), "mpirun (Open MPI)");

    // 192.0.2.0/24 is for documentation: no host has such an address.
    let elsewhere = with(two_hosts(0), "OMPI_MCA_orte_hnp_uri", "1.0;tcp://192.0.2.7:4711");
    let ended = end(start(&elsewhere, &[]));
    assert_fails(&ended, &["MASTER_ADDR is not set", "does not run on the host of mpirun", "-x"]);
}

#[test]
fn mpiexec_with_pmi_is_understood() {
    let variables = |rank: usize| {
        vec![
            ("PMI_RANK", rank.to_string()),
            ("PMI_SIZE", "2".to_owned()),
            ("MPI_LOCALRANKID", rank.to_string()),
            ("MPI_LOCALNRANKS", "2".to_owned()),
        ]
    };
    assert_all_well(&world(2, variables, &[]), "mpiexec (PMI)");

    let several_hosts = with(variables(0), "MPI_LOCALNRANKS", "1");
    assert_fails(&end(start(&several_hosts, &[])), &["MASTER_ADDR is not set", "-genv"]);

    let port = free_port().to_string();
    let told = |rank| {
        let variables = with(variables(rank), "MPI_LOCALNRANKS", "1");
        with(with(variables, "MASTER_ADDR", "127.0.0.1"), "MASTER_PORT", &port)
    };
    assert_all_well(&world(2, told, &[]), "mpiexec (PMI)");
}

#[test]
fn srun_is_understood() {
    let variables = |rank: usize| {
        vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", "2".to_owned()),
            ("SLURM_STEP_NUM_TASKS", "2".to_owned()),
            ("SLURM_LOCALID", "0".to_owned()),
            ("SLURM_JOB_ID", std::process::id().to_string()),
            ("SLURM_STEP_ID", "0".to_owned()),
            ("SLURM_STEP_NUM_NODES", "2".to_owned()),
            ("SLURM_STEP_NODELIST", "127.0.0.[1-2]".to_owned()),
        ]
    };
    assert_all_well(&world(2, variables, &[]), "srun (Slurm)");
}

#[test]
fn a_batch_script_outside_of_srun_starts_its_own_ranks() {
    let batch = vec![("SLURM_PROCID", "0".to_owned()), ("SLURM_NTASKS", "2".to_owned())];
    let ended = end(start(&batch, &[]));
    assert!(ended.success && ended.stdout.contains("threads of one process"), "{}", ended.stderr);
}

#[test]
fn a_variable_that_does_not_fit_is_named() {
    let good = by_hand(1, 2, "127.0.0.1", 4711);
    for (name, value) in
        [("RANK", "2"), ("WORLD_SIZE", "many"), ("MASTER_PORT", "70000"), ("RDMA4RS_TIMEOUT", "0")]
    {
        let ended = end(start(&with(good.clone(), name, value), &[]));
        assert_fails(&ended, &[&format!("error: {name} is {value:?}: ")]);
    }
}

#[test]
fn rank_0_names_the_ranks_that_do_not_come_and_tells_the_others() {
    let port = free_port();
    let present = start(&by_hand(1, 3, "127.0.0.1", port), &[]);
    let impatient = with(by_hand(0, 3, "127.0.0.1", port), "RDMA4RS_TIMEOUT", "5");
    let rank_0 = end(start(&impatient, &[]));
    assert_fails(&rank_0, &["2 of 3 did not arrive within 5 s"]);
    assert_fails(&end(present), &["rank 0 gave up: ", "2 of 3 did not arrive"]);
}

#[test]
fn a_rank_that_does_not_find_rank_0_says_where_it_looked_and_what_was_there() {
    let impatient = |port| with(by_hand(1, 2, "127.0.0.1", port), "RDMA4RS_TIMEOUT", "1");
    let port = free_port();
    let words = format!("rank 0 was not found at 127.0.0.1 port {port} within 1 s");
    assert_fails(&end(start(&impatient(port), &[])), &[&words, "refused"]);

    let rude = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = rude.local_addr().unwrap().port();
    stranger(rude, b"SSH-2.0-server\r\n");
    assert_fails(&end(start(&impatient(port), &[])), &["SSH-2.0-server", "another protocol"]);

    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    stranger(silent, b"");
    assert_fails(
        &end(start(&impatient(port), &[])),
        &["somebody listens there and does not answer"],
    );
}

#[test]
fn a_host_that_nobody_knows_is_an_error_at_once_on_every_rank() {
    for rank in 0..2 {
        // With this much patience only an error that does not wait for its end is one of the resolver.
        let variables = by_hand(rank, 2, "no-such-host.invalid", free_port());
        let words = ["the host no-such-host.invalid of rank 0 is not known here", "getent hosts"];
        assert_fails(&end(start(&variables, &[])), &words);
    }
}

/// The next line that a process says on standard error; what it says later is read on the way.
fn next_line(child: &mut Child) -> (String, thread::JoinHandle<String>) {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let rest = thread::spawn(move || {
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        rest
    });
    (line, rest)
}

#[test]
fn a_rank_that_waits_for_rank_0_says_where_and_what_is_there_once() {
    let port = free_port();
    let mut early = start(&by_hand(1, 2, "127.0.0.1", port), &[]);
    let (line, rest) = next_line(&mut early);
    let words = format!("[rank 1] waiting for rank 0 at 127.0.0.1 port {port}, for up to 120 s (");
    assert!(line.starts_with(&words) && line.contains("refused"), "{line}");
    let rank_0 = start(&by_hand(0, 2, "127.0.0.1", port), &[]);
    assert_all_well(&[end(rank_0), end(early)], "environment variables");
    assert_eq!(rest.join().unwrap(), "");
}

#[test]
fn ranks_that_wait_for_others_to_arrive_say_for_which() {
    let port = free_port();
    let variables = |rank| by_hand(rank, 3, "127.0.0.1", port);
    let (mut rank_0, mut rank_1) = (start(&variables(0), &[]), start(&variables(1), &[]));
    let (line, _rest) = next_line(&mut rank_1);
    assert!(
        line.starts_with("[rank 1] waiting for the other ranks, which rank 0 at 127."),
        "{line}"
    );
    let (line, _rest) = next_line(&mut rank_0);
    assert!(line.starts_with("[rank 0] waiting for rank"), "{line}");
    assert!(line.contains(&format!(" of 3 at 127.0.0.1 port {port}, for up to 120 s")), "{line}");
    let rank_2 = start(&variables(2), &[]);
    assert_all_well(&[end(rank_0), end(rank_1), end(rank_2)], "environment variables");
}

#[test]
fn ranks_that_wait_within_the_work_say_for_what() {
    let port = free_port();
    let variables = |rank| by_hand(rank, 2, "127.0.0.1", port);
    let mut ranks = [0, 1].map(|rank| start(&variables(rank), &["1:wait", "barrier"]));
    for (rank, what) in ["rank 1 in barrier", "thing that never comes"].iter().enumerate() {
        let (line, _rest) = next_line(&mut ranks[rank]);
        assert_eq!(line, format!("[rank {rank}] waiting for {what}\n"));
    }
    ranks[1].kill().unwrap();
    for ended in ranks.map(end) {
        assert!(!ended.success);
    }
}

#[test]
fn rank_0_says_that_it_waits_for_a_port_that_somebody_else_has() {
    let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = holder.local_addr().unwrap().port();
    let mut rank_0 = start(&by_hand(0, 2, "127.0.0.1", port), &[]);
    let (line, _rest) = next_line(&mut rank_0);
    assert!(line.contains(&format!("waiting for 127.0.0.1 port {port} to become free")), "{line}");
    drop(holder);
    let rank_1 = start(&by_hand(1, 2, "127.0.0.1", port), &[]);
    assert_all_well(&[end(rank_0), end(rank_1)], "environment variables");
}

#[test]
fn rank_0_tells_when_it_can_let_nobody_in() {
    let port = free_port();
    let mut shell = command("sh");
    // Standard streams and the listener: nothing is left for a caller.
    shell.args(["-c", "ulimit -n 4 && exec \"$0\"", TRY_RANKS]);
    let impatient = with(by_hand(0, 2, "127.0.0.1", port), "RDMA4RS_TIMEOUT", "5");
    shell.envs(impatient.iter().map(|(name, value)| (name, value)));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let rank_0 = shell.spawn().unwrap();
    let short = with(by_hand(1, 2, "127.0.0.1", port), "RDMA4RS_TIMEOUT", "8");
    let rank_1 = start(&short, &[]);
    assert_fails(&end(rank_0), &["callers cannot be let in: Too many open files"]);
    assert_fails(&end(rank_1), &["rank 0 was not found"]);
}

#[test]
fn callers_that_speak_garbage_or_nothing_do_not_disturb_the_ranks() {
    let port = free_port();
    let rank_0 = start(&by_hand(0, 2, "127.0.0.1", port), &[]);
    let call = || loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => break stream,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    let silent = call();
    let mut half = call();
    half.write_all(b"R4RS\x00\x01\x00\x01").unwrap();
    let mut rude = call();
    rude.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // It is shown the door, without a word.
    let mut answer = Vec::new();
    let closed = rude.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{closed:?}: {answer:?}");

    let rank_1 = start(&by_hand(1, 2, "127.0.0.1", port), &[]);
    assert_all_well(&[end(rank_0), end(rank_1)], "environment variables");
    drop((silent, half));
}

#[test]
fn garbage_callers_are_mentioned_when_a_rank_is_missing() {
    let port = free_port();
    let impatient = with(by_hand(0, 2, "127.0.0.1", port), "RDMA4RS_TIMEOUT", "5");
    let rank_0 = start(&impatient, &[]);
    let mut rude = loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => break stream,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    rude.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_fails(&end(rank_0), &["rank 1 of 2 did not arrive", "others called: ", "GET / HTTP"]);
}

#[test]
fn a_master_address_of_another_host_is_mentioned_when_nobody_comes() {
    // 192.0.2.0/24 is for documentation: no host has such an address.
    let variables = with(by_hand(0, 2, "192.0.2.7", free_port()), "RDMA4RS_TIMEOUT", "1");
    let words =
        ["rank 1 of 2 did not arrive within 1 s at 192.0.2.7 port", "no address of this host"];
    assert_fails(&end(start(&variables, &[])), &words);
}

#[test]
fn ranks_of_worlds_of_different_size_tell_both_sizes() {
    let port = free_port();
    let ranks = world(2, |rank| by_hand(rank, rank + 2, "127.0.0.1", port), &[]);
    for ended in &ranks {
        assert_fails(ended, &["of 3", "of 2", "check that all ranks are started"]);
    }
}

#[test]
fn two_processes_with_one_rank_are_refused() {
    let port = free_port();
    let first = start(&by_hand(1, 3, "127.0.0.1", port), &[]);
    let second = start(&by_hand(1, 3, "127.0.0.1", port), &[]);
    let rank_0 = end(start(&by_hand(0, 3, "127.0.0.1", port), &[]));
    assert_fails(&rank_0, &["there are two of rank 1"]);
    for ended in [end(first), end(second)] {
        assert_fails(&ended, &["rank 0 gave up: ", "two of rank 1"]);
    }
}

#[test]
fn a_port_that_somebody_else_holds_is_named() {
    let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = holder.local_addr().unwrap().port();
    let variables = with(by_hand(0, 2, "127.0.0.1", port), "RDMA4RS_TIMEOUT", "1");
    let words = format!("cannot listen at 127.0.0.1 port {port}: set MASTER_PORT");
    assert_fails(&end(start(&variables, &[])), &[&words, "in use"]);
}

#[test]
fn a_rank_that_dies_in_the_middle_is_named_to_all() {
    let port = free_port();
    let steps = ["barrier", "1:die", "barrier"];
    let ranks = world(3, |rank| by_hand(rank, 3, "127.0.0.1", port), &steps);
    assert_fails(&ranks[0], &["rank 1 disconnected during barrier: it died or was killed"]);
    assert_fails(&ranks[2], &["rank 0 gave up: rank 1 disconnected during barrier"]);
}

#[test]
fn the_death_of_rank_0_is_noticed() {
    let port = free_port();
    let ranks =
        world(2, |rank| by_hand(rank, 2, "127.0.0.1", port), &["barrier", "0:die", "barrier"]);
    assert_fails(&ranks[1], &["rank 0 disconnected during barrier"]);
}

#[test]
fn a_killed_rank_ends_the_others_that_wait_for_something_else() {
    let port = free_port();
    let rank_0 = start(&by_hand(0, 2, "127.0.0.1", port), &["barrier", "wait"]);
    let mut rank_1 = start(&by_hand(1, 2, "127.0.0.1", port), &["barrier", "wait"]);
    // It is in the world once it has passed the barrier.
    let mut output = Vec::new();
    let mut stdout = rank_1.stdout.take().unwrap();
    while !output.ends_with(b"barrier: done\n") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        output.extend(byte);
    }
    rank_1.kill().unwrap();
    assert!(!end(rank_1).success);
    assert_fails(&end(rank_0), &["rank 1 disconnected during the work"]);
}

#[test]
fn waiting_has_a_limit() {
    let alone = vec![("RDMA4RS_TIMEOUT", "1".to_owned())];
    let ended = end(start(&alone, &["wait"]));
    assert_fails(&ended, &["no thing that never comes within 1 s"]);
}

#[test]
fn a_silent_rank_is_named_when_time_is_up() {
    let port = free_port();
    let limit = |rank| {
        let seconds = if rank == 0 { "5" } else { PATIENT };
        with(by_hand(rank, 2, "127.0.0.1", port), "RDMA4RS_TIMEOUT", seconds)
    };
    let ranks = world(2, limit, &["1:wait", "barrier"]);
    assert_fails(&ranks[0], &["rank 1 sent nothing for 5 s during barrier"]);
    assert_fails(&ranks[1], &["rank 0 gave up: rank 1 sent nothing"]);
}

#[test]
fn errors_and_panics_of_a_rank_reach_the_exit_code_and_the_peer() {
    for (step, words) in
        [("1:fail", "rank 1 failed: told to fail"), ("1:steps", "there is no step \"steps\"")]
    {
        let port = free_port();
        let ranks = world(2, |rank| by_hand(rank, 2, "127.0.0.1", port), &[step, "barrier"]);
        assert_fails(&ranks[1], &[words]);
        assert_fails(&ranks[0], &["rank 1 gave up: "]);
    }
    let ended = end(start(&Vec::new(), &["1:panic", "barrier"]));
    assert_fails(&ended, &["error: rank 1 panicked: told to panic"]);
}
