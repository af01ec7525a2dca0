//! `rdma4rs perf -c SRD` over the unmodified driver, on the models of EFA devices.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

#[expect(dead_code, reason = "each program uses a part of it")]
mod common;

use std::process::Command;

use common::{PROGRAM, pair, parsed, success, without_launcher, words};
use serde_json::Value;

/// Both sides, each with a device of its own; the client's JSON.
fn measured(line: &str, port: u16, sizes: &[u64]) -> Option<Value> {
    if std::env::var_os("RDMA4RS_EFA_DEVICES").is_none() {
        println!("skipped: EFA devices are in the virtual machine of `cargo testbed test`");
        return None;
    }
    let line = format!("{line} --verify --json -p {port}");
    let start = |device: &str| {
        let mut command = without_launcher(Command::new(PROGRAM));
        command.env("RDMA4RS_TIMEOUT", "120").arg("perf").args(words(&line)).args(["-d", device]);
        command
    };
    let (server, mut client) = (start("efa_0"), start("efa_1"));
    client.arg("127.0.0.1");
    let [server, client] = pair(server, client);
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
