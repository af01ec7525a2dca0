//! `rdma4rs perf` between two hosts of the virtual machine, over the kernel's software RoCE.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

mod common;

use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use common::{PROGRAM, failure, file, pair, parsed, success, without_launcher, words};
use serde_json::Value;

/// Each run has a port of its own.
static PORT: AtomicU16 = AtomicU16::new(28_600);

/// One side, on a host that has this device.
fn side(host: &str, device: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host, PROGRAM]).env("RDMA_DEVICE", format!("={device}"));
    command
}

fn is_here() -> bool {
    let here = std::env::var_os("RDMA4RS_GUEST").is_some();
    if !here {
        println!("skipped: these hosts are in the virtual machine of `cargo testbed test`");
    }
    here
}

/// Both sides' JSON of a run with verification; the client's comes back.
fn measured(line: &str, sizes: &[u64]) -> Value {
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let line = format!("{line} --verify --json -p {port}");
    let [server, client] = pair_of_hosts(&line);
    let server = parsed(&line, &success(&line, &server), sizes);
    let client = parsed(&line, &success(&line, &client), sizes);
    assert_eq!(server["rows"], client["rows"], "both sides tell the same");
    assert_eq!(
        (&client["device"]["name"], &client["peer"]["name"]),
        (&"rxe_b".into(), &"rxe_a".into())
    );
    assert_eq!(client["device"]["kind"], "software in the kernel");
    client
}

/// Server on host a, client on host b.
fn pair_of_hosts(line: &str) -> [std::process::Output; 2] {
    let start = |host: &str, device: &str| {
        let mut command = without_launcher(side(host, device));
        command.env("RDMA4RS_TIMEOUT", "120").arg("perf").args(words(line));
        command
    };
    let (server, mut client) = (start("a", "rxe_a"), start("b", "rxe_b"));
    client.arg("10.99.1.1");
    pair(server, client)
}

#[test]
fn every_verb_is_measured_between_two_hosts() {
    if !is_here() {
        return;
    }
    for verb in ["write", "read", "send"] {
        let report = measured(
            &format!("{verb} both -n 60 -s 8,4096,65536"),
            &[8, 4096, 65_536, 8, 4096, 65_536],
        );
        assert_eq!((&report["metric"], &report["test"]), (&"both".into(), &verb.into()));
    }
    for atomic in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        measured(&format!("atomic both -n 60 -A {atomic}"), &[8, 8]);
    }
}

#[test]
fn unreliable_transports_are_measured_between_two_hosts() {
    if !is_here() {
        return;
    }
    measured("send both -c UD -n 60 -s 64,2048", &[64, 2048, 64, 2048]);
    measured("send both -c UC -n 60 -s 64,8192", &[64, 8192, 64, 8192]);
    measured("write both -c UC -n 60 -s 64,8192", &[64, 8192, 64, 8192]);
}

#[test]
fn both_back_ends_lists_lanes_and_directions_work_between_two_hosts() {
    if !is_here() {
        return;
    }
    for (flag, back_end) in [("--use_old_post_send", "ibv_post_send"), ("--back-end wr", "ibv_wr")]
    {
        for verb in ["write", "read", "send"] {
            let report = measured(&format!("{verb} bw {flag} -b -q 2 -l 4 -n 150 -s 256"), &[256]);
            assert_eq!(report["back_end"], back_end);
            assert_eq!(report["rows"][0]["messages"], 600);
        }
    }
    measured("send bw -n 500 -s 64 -t 32 -r 8", &[64]);
}

#[test]
fn a_sweep_for_some_time_is_drawn() {
    if !is_here() {
        return;
    }
    let chart = file("kernel.svg");
    let powers: Vec<u64> = (1..=12).map(|power| 1 << power).collect();
    measured(
        &format!("send both -c UD -a -D 0.05 --plot {}", chart.display()),
        &[powers.as_slice(), &powers].concat(),
    );
    let svg = std::fs::read_to_string(&chart).unwrap();
    assert!(svg.contains("Bandwidth") && svg.contains("Latency"), "{svg}");
    std::fs::remove_file(chart).unwrap();
}

#[test]
fn ranks_of_a_launcher_print_once() {
    if !is_here() {
        return;
    }
    let rank = |number: &str, host: &str, device: &str| {
        let mut command = without_launcher(side(host, device));
        command.args(["perf", "read", "lat", "-n", "50", "--json"]);
        command.env("RANK", number).env("WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "10.99.1.1").env("MASTER_PORT", "28599");
        command
    };
    let [first, second] = pair(rank("0", "a", "rxe_a"), rank("1", "b", "rxe_b"));
    let report = parsed("rank 0", &success("rank 0", &first), &[2]);
    assert_eq!(report["options"]["launcher"], "environment variables");
    assert_eq!(success("rank 1", &second), "");
}

#[test]
fn a_side_whose_peer_dies_ends_in_time_and_says_so() {
    if !is_here() {
        return;
    }
    for line in ["write bw -s 1M -D 600", "send lat -D 600", "send lat -e -D 600"] {
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let line = format!("{line} -p {port}");
        let mut server = without_launcher(side("a", "rxe_a"));
        server.arg("perf").args(words(&line)).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut client = without_launcher(side("b", "rxe_b"));
        client.arg("perf").args(words(&line)).arg("10.99.1.1");
        client.stdout(Stdio::null()).stderr(Stdio::piped());
        let server = server.spawn().unwrap();
        let mut client = client.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(4));
        client.kill().unwrap();
        client.wait().unwrap();
        let killed = Instant::now();
        let text = failure(&line, &server.wait_with_output().unwrap());
        assert!(killed.elapsed() < Duration::from_secs(90), "{text}");
        assert!(text.contains("rank 1"), "{text}");
    }
}

#[test]
fn a_side_that_is_alone_gives_up_in_time() {
    if !is_here() {
        return;
    }
    let mut client = without_launcher(side("b", "rxe_b"));
    client.args(["perf", "write", "bw", "-p", "1", "10.99.1.1"]).env("RDMA4RS_TIMEOUT", "1");
    let text = failure("a lone client", &client.output().unwrap());
    assert!(text.contains("10.99.1.1"), "{text}");

    let mut server = without_launcher(side("a", "rxe_a"));
    server.args(["perf", "write", "bw", "-p", "28371", "--wait", "1"]);
    let text = failure("a lone server", &server.output().unwrap());
    assert!(text.contains("waiting for the client at TCP port 28371"), "{text}");
}

#[test]
fn two_sides_with_different_options_say_which() {
    if !is_here() {
        return;
    }
    let start = |host: &str, device: &str, size: &str| {
        let mut command = without_launcher(side(host, device));
        command
            .env("RDMA4RS_TIMEOUT", "20")
            .args(["perf", "write", "bw", "-p", "28372", "-s", size]);
        command
    };
    let (server, mut client) = (start("a", "rxe_a", "8"), start("b", "rxe_b", "16"));
    client.arg("10.99.1.1");
    let [server, client] = pair(server, client);
    failure("the server", &server);
    let text = failure("the client", &client);
    assert!(text.contains("-s or -a ([16] here, [8] there)"), "{text}");
}

#[test]
fn sides_that_sleep_between_completions_move_every_message() {
    if !is_here() {
        return;
    }
    for line in ["write both", "read both", "send both", "send both -c UD", "send bw -b -q 2 -r 8"]
    {
        let both = line.contains("both");
        let sizes: &[u64] = if both { &[8, 1024, 8, 1024] } else { &[8, 1024] };
        let report = measured(&format!("{line} -e -n 200 -s 8,1024"), sizes);
        assert_eq!(report["options"]["events"], true, "{line}");
    }
    measured("atomic both -e -n 60", &[8, 8]);
}
