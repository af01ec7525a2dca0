//! `rdma4rs perf -c SRD` over the unmodified driver, on the models of EFA devices.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

#[expect(dead_code, reason = "each program uses a part of it")]
mod common;

use std::process::{Command, Output};

use common::{PROGRAM, failure, pair, parsed, success, without_launcher, words};
use serde_json::Value;

fn is_here() -> bool {
    let here = std::env::var_os("RDMA4RS_EFA_DEVICES").is_some();
    if !here {
        println!("skipped: EFA devices are in the virtual machine of `cargo testbed test`");
    }
    here
}

/// What both sides print, each with a device of its own.
fn both(line: &str) -> [Output; 2] {
    let start = |device: &str| {
        let mut command = without_launcher(Command::new(PROGRAM));
        command.env("RDMA4RS_TIMEOUT", "120").arg("perf").args(words(line)).args(["-d", device]);
        command
    };
    let (server, mut client) = (start("efa_0"), start("efa_1"));
    client.arg("127.0.0.1");
    pair(server, client)
}

/// The client's JSON.
fn measured(line: &str, port: u16, sizes: &[u64]) -> Option<Value> {
    if !is_here() {
        return None;
    }
    let line = format!("{line} --verify --json -p {port}");
    let [server, client] = both(&line);
    success(&line, &server);
    Some(parsed(&line, &success(&line, &client), sizes))
}

#[test]
fn every_verb_that_srd_has_is_measured() {
    for (verb, port) in [("write", 28_801), ("read", 28_802), ("send", 28_803)] {
        let line = format!("{verb} both -c SRD -n 60 -s 8,1024");
        if measured(&format!("{line} -e"), port + 20, &[8, 1024, 8, 1024]).is_none() {
            return;
        }
        let Some(report) = measured(&line, port, &[8, 1024, 8, 1024]) else { return };
        assert_eq!((&report["transport"], &report["back_end"]), (&"SRD".into(), &"ibv_wr".into()));
    }
}

#[test]
fn both_directions_and_several_queue_pairs_work_out_of_order() {
    for (verb, port) in [("write", 28_804), ("send", 28_805)] {
        let line = format!("{verb} bw -c SRD -b -q 2 -l 4 -t 32 -r 64 -n 150 -s 512");
        let Some(report) = measured(&line, port, &[512]) else { return };
        assert_eq!(report["rows"][0]["messages"], 600, "{report}");
    }
}

#[test]
fn short_queues_and_sleep_lose_nothing() {
    for (line, port, messages) in [
        ("send bw -e -c SRD -r 2 -t 1 -n 203 -s 64", 28_806, 203),
        ("send bw -e -c SRD -b -q 3 -r 64 -l 7 -t 16 -n 203 -s 64", 28_807, 1218),
    ] {
        let Some(report) = measured(line, port, &[64]) else { return };
        assert_eq!(report["rows"][0]["messages"], messages, "{report}");
    }
}

#[test]
fn other_transports_are_refused_with_a_remedy() {
    if !is_here() {
        return;
    }
    for (transport, port) in [("RC", 28_808), ("UD", 28_809)] {
        let line = format!("send bw -c {transport} -n 60 -s 64 -p {port}");
        for side in both(&line) {
            let text = failure(&line, &side);
            assert!(text.contains("use -c SRD"), "{line}: {text}");
        }
    }
}
