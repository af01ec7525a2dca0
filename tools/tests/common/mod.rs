//! Running `rdma4rs perf` and reading what it prints.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests stop the test")]

use std::{
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

/// The program that is tested.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_rdma4rs");

/// Words of a command line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A command that no launcher's variables reach.
pub(crate) fn without_launcher(mut command: Command) -> Command {
    for name in ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// What came out of a program that must succeed.
pub(crate) fn success(what: &str, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{what}: {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// What a program says that must fail.
pub(crate) fn failure(what: &str, output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{what} succeeded: {text}");
    text
}

/// A run's JSON, after a look at all that every run has.
pub(crate) fn parsed(what: &str, text: &str, sizes: &[u64]) -> Value {
    let report: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{what}: {error}: {text}"));
    for name in ["version", "test", "metric", "transport", "back_end"] {
        assert!(report[name].is_string(), "{what}: {name}: {text}");
    }
    for side in ["device", "peer"] {
        for name in ["name", "kind", "host", "gid", "link_layer"] {
            assert!(report[side][name].is_string(), "{what}: {side} {name}: {text}");
        }
    }
    let rows = report["rows"].as_array().unwrap();
    let found: Vec<u64> = rows.iter().map(|row| row["size"].as_u64().unwrap()).collect();
    assert_eq!(found, sizes, "{what}");
    for row in rows {
        check_row(what, row);
    }
    report
}

fn check_row(what: &str, row: &Value) {
    for name in ["iterations", "messages", "seconds", "cpu_seconds"] {
        assert!(row[name].is_number(), "{what}: {name}: {row}");
    }
    if row["metric"] == "bandwidth" {
        let number = |name: &str| row[name].as_f64().unwrap();
        let rate = number("messages_per_second");
        assert!(rate > 0.0 && number("seconds") > 0.0, "{what}: {row}");
        let bytes = rate * number("size");
        assert!((number("bytes_per_second") / bytes - 1.0).abs() < 1e-6, "{what}: {row}");
        return;
    }
    assert_eq!(row["metric"], "latency", "{what}: {row}");
    let order = ["min", "p50", "p90", "p99", "p99_9", "max"];
    let times = order.map(|name| row["latency_ns"][name].as_u64().unwrap());
    assert!(times[0] > 0 && times.is_sorted(), "{what}: {row}");
    let mean = row["latency_ns"]["mean"].as_u64().unwrap();
    assert!((times[0]..=times[5]).contains(&mean), "{what}: {row}");
    let buckets = row["histogram_ns"].as_array().unwrap();
    let counted: u64 = buckets.iter().map(|bucket| bucket[2].as_u64().unwrap()).sum();
    assert_eq!(Some(counted), row["iterations"].as_u64(), "{what}: {row}");
}

/// A file in the folder for temporary ones, which does not exist yet.
pub(crate) fn file(name: &str) -> PathBuf {
    let file = std::env::temp_dir().join(format!("rdma4rs-perf-{}-{name}", std::process::id()));
    drop(std::fs::remove_file(&file));
    file
}

/// What two sides printed that were started together.
pub(crate) fn pair(first: Command, second: Command) -> [Output; 2] {
    let sides = [first, second].map(|command| -> Child {
        let mut command = command;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    sides.map(|side| side.wait_with_output().unwrap())
}
