//! `rdma4rs doctor` and `rdma4rs devices` against a real kernel, with what can be wrong with its devices.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests stop the test, and a skipped test says so"
)]

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_rdma4rs");

/// Tests change the one machine that there is, so they take turns; `None` where it is not the testbed's guest.
fn guest() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let there = env::var_os("RDMA4RS_GUEST").is_some();
    let required = env::var_os("RDMA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
    assert!(there || !required, "RDMA_REQUIRE_DEVICE=1, but this is not the guest of the testbed");
    if !there {
        println!("skipped: this needs the guest of the testbed");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a command that must succeed.
fn must(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

struct Report {
    json: Value,
    success: bool,
}

impl Report {
    /// What the doctor says, started by these words.
    fn of(prefix: &[&str], words: &[&str]) -> Self {
        let line = [prefix, &[PROGRAM, "doctor", "--json"], words].concat();
        let mut command = Command::new(line[0]);
        let output = command.args(&line[1..]).env_remove("RDMA_DEVICE").output().unwrap();
        let Output { status, stdout, stderr } = output;
        let json = serde_json::from_slice(&stdout);
        let json = json.unwrap_or_else(|error| {
            let (stdout, stderr) =
                (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
            unreachable!("{line:?}: {error}: {stdout}{stderr}")
        });
        Self { json, success: status.success() }
    }

    /// Verdict, detail and remedy of the one check of this name.
    fn check(&self, what: &str) -> [&str; 3] {
        let checks = self.json["checks"].as_array().unwrap();
        let of_name: Vec<_> = checks.iter().filter(|check| check["what"] == what).collect();
        assert_eq!(of_name.len(), 1, "{what}: {:#}", self.json);
        ["verdict", "detail", "remedy"].map(|field| of_name[0][field].as_str().unwrap())
    }
}

#[test]
fn a_device_in_software_is_well_in_its_own_namespace_and_noted_outside_of_it() {
    let Some(_turn) = guest() else { return };
    let report = Report::of(&[], &["-d", "=rxe0"]);
    assert!(report.success, "{:#}", report.json);
    assert_eq!(report.json["broken"], 0);
    assert!(report.check("libibverbs")[1].starts_with("rdma-core "), "{:#}", report.json);
    assert_eq!(report.check("rxe0 port 1: interface dum0"), ["yes", "up, MTU 1500", ""]);
    assert_eq!(report.check("rxe0 port 1: MTU")[..2], ["note", "1024 of 4096"]);
    assert_eq!(report.check("rxe_a, rxe_b")[0], "skip");

    let outside = Report::of(&[], &["-d", "=rxe_a"]);
    let words = ["note", "in another network namespace"];
    assert_eq!(outside.check("rxe_a port 1: interface veth_a")[..2], words);
    let inside = Report::of(&["ip", "netns", "exec", "a"], &["-d", "=rxe_a"]);
    assert_eq!(inside.check("rxe_a port 1: interface veth_a"), ["yes", "up, MTU 4200", ""]);
}

#[test]
fn the_guide_shows_what_is_printed() {
    let Some(_turn) = guest() else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/tools.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("$ rdma4rs doctor -d =rxe0\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    // Where this library and this kernel come from may change.
    let lasting = |text: &str| -> Vec<String> {
        let lines =
            text.lines().filter(|line| !line.contains("rdma-core") && !line.contains("Linux"));
        lines.map(str::to_owned).collect()
    };
    let mut command = Command::new(PROGRAM);
    let output = command.args(["doctor", "-d", "=rxe0"]).output().unwrap();
    assert_eq!(lasting(&String::from_utf8_lossy(&output.stdout)), lasting(block));
}

#[test]
fn a_port_whose_interface_is_down_is_told_how_to_bring_it_up() {
    let Some(_turn) = guest() else { return };
    must("ip netns exec a ip link set veth_a down");
    let report = Report::of(&["ip", "netns", "exec", "a"], &["-d", "=rxe_a"]);
    must("ip netns exec a ip link set veth_a up");
    assert!(!report.success);
    let [verdict, _, remedy] = report.check("rxe_a port 1");
    assert_eq!(verdict, "NO");
    assert!(remedy.starts_with("`ip link set veth_a up`"), "{remedy}");
    assert_eq!(report.check("device in software")[0], "yes");
}

#[test]
fn a_node_that_may_not_be_opened_or_is_not_there_is_one_thing() {
    let Some(_turn) = guest() else { return };
    // A group that is none of the user's.
    must("chmod 660 /dev/infiniband/uverbs* && chgrp 117 /dev/infiniband/uverbs*");
    let user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"];
    let refused = Report::of(&user, &["-d", "=rxe0"]);
    let words = [&user[1..], &[PROGRAM, "devices"]].concat();
    let listed = Command::new(user[0]).args(words).output().unwrap();
    must("chmod 666 /dev/infiniband/uverbs*");
    assert_eq!(refused.json["broken"], 1, "{:#}", refused.json);
    assert_eq!(refused.check("rxe0")[0], "skip");
    let errors = String::from_utf8_lossy(&listed.stderr);
    assert!(errors.contains("is missing or may not be opened"), "{errors}");

    must("mv /dev/infiniband /dev/away");
    let missing = Report::of(&[], &[]);
    must("mv /dev/away /dev/infiniband");
    assert_eq!(missing.json["broken"], 1, "{:#}", missing.json);
    let [verdict, detail, remedy] = missing.check("device nodes");
    assert_eq!((verdict, remedy.contains("--device /dev/infiniband")), ("NO", true));
    assert!(detail.contains("rxe0, rxe_a, rxe_b"), "{detail}");
}

#[test]
fn devices_without_a_provider_are_told_what_to_install() {
    let Some(_turn) = guest() else { return };
    must("mv /etc/libibverbs.d /etc/away");
    let report = Report::of(&[], &[]);
    must("mv /etc/away /etc/libibverbs.d");
    let [verdict, detail, remedy] = report.check("rxe0, rxe_a, rxe_b");
    assert_eq!((verdict, report.json["broken"].as_u64()), ("NO", Some(1)), "{detail}");
    assert!(remedy.contains("ibverbs-providers"), "{remedy}");
}

/// The kernel's target with one subsystem, until it is dropped.
struct Target;

const NVMET: &str = "/sys/kernel/config/nvmet";
const SUBSYSTEM: &str = "nqn.2024-01.org.example:doctor";

impl Target {
    fn new() -> Self {
        must("modprobe nvmet && modprobe nvmet-rdma");
        let (subsystem, port) = Self::folders();
        fs::create_dir_all(&subsystem).unwrap();
        fs::write(subsystem.join("attr_allow_any_host"), "1").unwrap();
        fs::create_dir_all(&port).unwrap();
        for (attribute, value) in [
            ("addr_trtype", "rdma"),
            ("addr_adrfam", "ipv4"),
            ("addr_traddr", "10.99.0.1"),
            ("addr_trsvcid", "4420"),
        ] {
            fs::write(port.join(attribute), value).unwrap();
        }
        symlink(&subsystem, port.join("subsystems").join(SUBSYSTEM)).unwrap();
        Self
    }

    fn folders() -> (PathBuf, PathBuf) {
        let root = Path::new(NVMET);
        (root.join("subsystems").join(SUBSYSTEM), root.join("ports").join("77"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let (subsystem, port) = Self::folders();
        fs::remove_file(port.join("subsystems").join(SUBSYSTEM)).unwrap();
        fs::remove_dir(port).unwrap();
        fs::remove_dir(subsystem).unwrap();
    }
}

#[test]
fn a_target_for_nvme_is_asked_and_one_that_is_not_there_is_told() {
    let Some(_turn) = guest() else { return };
    let _target = Target::new();
    let report =
        Report::of(&[], &["-d", "=rxe0", "--nvmeof", "10.99.0.1", "--nvmeof", "10.99.0.1:4499"]);
    let [verdict, detail, _] = report.check("NVMe over RDMA at 10.99.0.1");
    assert_eq!(verdict, "yes", "{detail}");
    assert!(detail.contains(&format!("{SUBSYSTEM} (10.99.0.1:4420)")), "{detail}");
    let [verdict, detail, remedy] = report.check("NVMe over RDMA at 10.99.0.1:4499");
    assert_eq!(verdict, "NO", "{detail}");
    assert!(remedy.contains("nvme discover -t rdma -a 10.99.0.1`"), "{remedy}");
    assert!(!report.success);
}

#[test]
fn devices_in_other_namespaces_are_listed_as_such_and_one_that_fails_hides_no_other() {
    let Some(_turn) = guest() else { return };
    let run = |words: &[&str]| {
        let line = [&[PROGRAM, "devices"], words].concat();
        Command::new(line[0]).args(&line[1..]).env_remove("RDMA_DEVICE").output().unwrap()
    };
    let output = run(&[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let of =
        |device: &str| text.lines().filter(|line| line.starts_with(device)).collect::<Vec<_>>();
    assert!(of("rxe0 ").iter().all(|line| line.ends_with("dum0")), "{text}");
    assert!(of("rxe_a ").iter().all(|line| line.ends_with("veth_a (another namespace)")), "{text}");

    // Found by its node's place, and not to be opened.
    must("mv /dev/infiniband/uverbs0 /dev/infiniband/away && mkdir /dev/infiniband/uverbs0");
    let output = run(&["--json"]);
    must("rmdir /dev/infiniband/uverbs0 && mv /dev/infiniband/away /dev/infiniband/uverbs0");
    assert!(!output.status.success());
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 3, "{list:?}");
    assert!(list[0]["error"].as_str().unwrap().contains("ibv_open_device"), "{list:?}");
    assert!(list[1]["ports"].is_array(), "{list:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("`rdma4rs doctor` says"));
}
