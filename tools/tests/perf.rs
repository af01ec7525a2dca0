//! `rdma4rs perf` on the device in software: both sides are threads of one process.
#![expect(clippy::unwrap_used, reason = "helpers of tests stop the test")]

#[expect(dead_code, reason = "each program uses a part of it")]
mod common;

use std::process::Command;

use common::{PROGRAM, failure, file, parsed, success, without_launcher, words};

/// Runs it with these words on the device in software.
fn run(line: &str) -> std::process::Output {
    let mut command = without_launcher(Command::new(PROGRAM));
    command.args(["perf"]).args(words(line)).args(["-d", "software"]);
    command.output().unwrap()
}

/// Runs it with verification; gives its JSON.
fn measured(line: &str, sizes: &[u64]) -> serde_json::Value {
    let line = format!("{line} --verify --json");
    parsed(&line, &success(&line, &run(&line)), sizes)
}

#[test]
fn every_verb_of_every_transport_moves_the_right_bytes() {
    for (transport, verbs) in [
        ("RC", &["write", "read", "send", "atomic"][..]),
        ("UC", &["write", "send"]),
        ("UD", &["send"]),
        ("SRD", &["write", "read", "send"]),
    ] {
        for verb in verbs {
            let size = if *verb == "atomic" { "" } else { "-s 1000" };
            let sizes = if *verb == "atomic" { 8 } else { 1000 };
            for waiting in ["", "-e"] {
                let line = format!("{verb} both -c {transport} -n 60 {size} {waiting}");
                let report = measured(&line, &[sizes, sizes]);
                assert_eq!(report["transport"], transport, "{line}");
                assert_eq!(report["device"]["kind"], "software in this process");
                let rows = report["rows"].as_array().unwrap();
                assert!(rows.iter().all(|row| row["verified"] == true), "{line}");
            }
        }
    }
}

#[test]
fn both_directions_many_queue_pairs_lists_and_short_queues_move_every_message() {
    for line in [
        "write bw -b -q 3 -l 8 -t 32",
        "read bw -b -q 2 -t 4 -o 2",
        "send bw -b -q 3 -t 16 -r 8 -l 5",
        "send bw -r 2 -t 1",
        "send bw -r 8 -l 7 -t 16",
        "send bw -r 3 -l 3 -t 4",
        "send bw -b -r 40 -l 33 -t 64",
        "send bw -r 66 --warm-up 33",
        "send bw -c UC -b -q 2",
        "send bw -c SRD -b -q 2 -l 3",
        "write bw -c SRD -q 2 -l 7 -t 20",
        "atomic bw -b -q 2 -A CMP_AND_SWAP",
        "atomic bw -q 2 -t 3 -Q 2",
        "write bw -e -b -q 3 -l 8 -t 32",
        "read bw -e -b -q 2 -t 4 -o 2",
        "send bw -e -b -q 3 -t 16 -r 8 -l 5",
        "send bw -e -b -r 2 -t 1",
        "send bw -e -r 8 -l 7 -t 16",
        "send bw -e -c UC -q 2",
        "send bw -e -c SRD -b -q 2 -l 3",
        "atomic bw -e -q 2 -t 3 -Q 2",
    ] {
        let atomic = line.starts_with("atomic");
        let sizes: &[u64] = if atomic { &[8] } else { &[1, 333] };
        let size = if atomic { "" } else { "-s 1,333" };
        let report = measured(&format!("{line} -n 203 {size}"), sizes);
        let options = &report["options"];
        let directions = if options["bidirectional"] == true { 2 } else { 1 };
        let messages = 203 * options["queue_pairs"].as_u64().unwrap() * directions;
        for row in report["rows"].as_array().unwrap() {
            assert_eq!(row["messages"], messages, "{line}: {row}");
            assert!(row["lost"].is_null() || row["lost"] == 0, "{line}: {row}");
        }
    }
}

/// Room raises no event, and none of so few messages reports.
#[test]
fn a_sender_that_waits_for_room_alone_does_not_sleep() {
    let report = measured("send bw -e -r 2 -s 4 -n 203", &[4]);
    let seconds = report["rows"][0]["seconds"].as_f64().unwrap();
    assert!(seconds < 2.0, "{seconds}");
}

#[test]
fn both_back_ends_and_inline_requests_are_used_as_asked() {
    for (flag, back_end) in [("--use_old_post_send", "ibv_post_send"), ("--back-end wr", "ibv_wr")]
    {
        for verb in ["write", "send"] {
            let report =
                measured(&format!("{verb} both -n 40 -s 8,64 -I 64 {flag}"), &[8, 64, 8, 64]);
            assert_eq!(report["back_end"], back_end);
            assert_eq!(report["options"]["inline"], 64);
        }
    }
}

#[test]
fn a_sweep_stops_at_what_the_transport_can_and_is_drawn() {
    let chart = file("sweep.svg");
    let line = format!("send both -a -c UD -n 20 --plot {}", chart.display());
    let powers: Vec<u64> = (1..=12).map(|power| 1 << power).collect();
    measured(&line, &[powers.as_slice(), &powers].concat());
    let svg = std::fs::read_to_string(&chart).unwrap();
    for text in ["<svg", "Bandwidth", "Latency", "message size", "send", "median"] {
        assert!(svg.contains(text), "{text}");
    }
    std::fs::remove_file(chart).unwrap();
}

#[test]
fn a_duration_decides_how_many_messages_there_are() {
    let report = measured("read both -D 0.2 -s 64", &[64, 64]);
    assert_eq!(report["options"]["duration_seconds"], 0.2);
    assert!(report["rows"][0]["iterations"].as_u64().unwrap() > 0);
}

#[test]
fn people_get_a_table_a_warning_and_a_histogram() {
    let line = "write lat -n 50 -H";
    let text = success(line, &run(line));
    for part in ["write latency, RC through ibv_wr", "mean nothing for hardware", "99.9 %", "#####"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_side_runs_on_the_processor_it_is_pinned_to() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let last = allowed.trim().rsplit([',', '-']).next().unwrap();
    measured(&format!("write both -n 40 -s 8 --pin {last}"), &[8, 8]);
}

#[test]
fn mistakes_are_told_with_a_remedy() {
    for (line, words) in [
        ("send bw -c UD -s 8192", "which has to fit the MTU: lower -s"),
        ("send bw -c SRD -s 1M", "lower -s"),
        ("write bw -I 100000", "less than -I 100000"),
        ("read bw -c UD", "use -c RC"),
        ("write bw --use_cuda 0", "--features cuda"),
        ("write bw --pin 1000000", "no such processor"),
        ("write bw -n 5 --plot /no/such/folder/x.svg", "/no/such/folder/x.svg"),
    ] {
        let text = failure(line, &run(line));
        assert!(text.contains(words), "{line}: {text}");
    }
}

#[test]
fn a_device_that_is_not_there_is_told_before_anybody_waits() {
    for host in [&[][..], &["127.0.0.1"]] {
        let mut command = without_launcher(Command::new(PROGRAM));
        command.args(["perf", "write", "bw", "-p", "28371", "-d", "none_such"]).args(host);
        let text = failure("a side without device", &command.output().unwrap());
        assert!(!text.contains("waiting for"), "{text}");
        assert!(text.contains("`rdma4rs doctor`"), "{text}");
    }
    let text = failure("software for one side", &run("write bw 127.0.0.1"));
    assert!(text.contains("leave HOST out"), "{text}");
}
