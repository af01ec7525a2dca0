//! `rdma4rs doctor` and `rdma4rs devices` on whatever machine this is, and on one without rdma-core.
#![expect(clippy::unwrap_used, reason = "helpers of tests stop the test")]

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

fn run(words: &[&str], library_path: Option<&PathBuf>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma4rs"));
    command.args(words).env_remove("RDMA_DEVICE").stdin(Stdio::null());
    if let Some(path) = library_path {
        command.env("LD_LIBRARY_PATH", path);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A folder that makes every search for rdma-core end with a file that is no library.
fn without_libraries(test: &str) -> PathBuf {
    let name = format!("rdma4rs-no-libraries-{}-{test}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1", "libefa.so.1"] {
        fs::write(folder.join(library), "").unwrap();
    }
    folder
}

/// The checks of this verdict, by what they are about.
fn verdicts<'r>(report: &'r Value, verdict: &str) -> Vec<&'r str> {
    let checks = report["checks"].as_array().unwrap().iter();
    let of_verdict = checks.filter(|check| check["verdict"] == verdict);
    of_verdict.map(|check| check["what"].as_str().unwrap()).collect()
}

#[test]
fn json_and_exit_code_agree_and_each_no_and_note_has_a_remedy() {
    let output = run(&["doctor", "--json"], None);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let broken = verdicts(&report, "NO");
    assert_eq!(report["broken"], broken.len(), "{report:#}");
    assert_eq!(report["skipped"], verdicts(&report, "skip").len(), "{report:#}");
    assert_eq!(output.status.code(), Some(i32::from(!broken.is_empty())), "{report:#}");
    for check in report["checks"].as_array().unwrap() {
        assert!(!check["detail"].as_str().unwrap().is_empty(), "{check}");
        let needs = ["NO", "note"].contains(&check["verdict"].as_str().unwrap());
        assert_eq!(!check["remedy"].as_str().unwrap().is_empty(), needs, "{check}");
    }
}

#[test]
fn a_missing_library_is_one_thing_and_what_works_anyway_is_told() {
    let folder = without_libraries("doctor");
    let output = run(&["doctor", "--json"], Some(&folder));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let about_it = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["remedy"].as_str().unwrap().contains("install rdma-core"));
    assert_eq!(about_it.count(), 1, "{report:#}");
    assert!(verdicts(&report, "NO").contains(&"libibverbs"), "{report:#}");
    for what in ["librdmacm and libefa", "RDMA devices", "NVMe over RDMA"] {
        assert!(verdicts(&report, "skip").contains(&what), "{what}: {report:#}");
    }
    assert!(verdicts(&report, "yes").contains(&"device in software"), "{report:#}");

    let lines = text(&run(&["doctor"], Some(&folder)).stdout).to_owned();
    assert!(lines.contains("`cargo run --example write_with_imm`"), "{lines}");
    assert!(lines.lines().last().unwrap().contains("not looked at"), "{lines}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn devices_that_cannot_be_listed_lead_to_the_doctor() {
    let folder = without_libraries("devices");
    for words in [&["devices"][..], &["devices", "--json"]] {
        let output = run(words, Some(&folder));
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains("`rdma4rs doctor` says"), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_output_that_is_closed_early_is_no_mistake_and_a_full_one_is() {
    for (command, words) in [
        ("\"$0\" doctor --json | true", None),
        ("\"$0\" doctor --json > /dev/full", Some("standard output")),
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", command, env!("CARGO_BIN_EXE_rdma4rs")]);
        let output = shell.output().unwrap();
        let errors = text(&output.stderr);
        match words {
            None => assert_eq!(errors, ""),
            Some(words) => {
                assert!(errors.contains(words), "{errors}");
                assert!(!output.status.success());
            }
        }
    }
}
