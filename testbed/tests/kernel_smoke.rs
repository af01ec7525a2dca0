//! The guest is what README.md says it is. Runs in the guest only: `cargo testbed test testbed`.
#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says what it skips"
)]

use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Far more than anything here takes, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

/// Says so where this is not the guest, which is a failure if a device is required.
fn in_the_guest() -> bool {
    let there = std::env::var_os("RDMA4RS_GUEST").is_some();
    let required = std::env::var_os("RDMA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
    assert!(there || !required, "RDMA_REQUIRE_DEVICE=1, but this is not the guest of the testbed");
    if !there {
        println!("skipped: this needs the guest of the testbed");
    }
    there
}

fn run(words: &[&str]) -> Output {
    Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|e| panic!("{words:?}: {e}"))
}

fn text(words: &[&str]) -> String {
    let output = run(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn on_host<'word>(host: &'word str, words: &[&'word str]) -> Vec<&'word str> {
    [&["ip", "netns", "exec", host], words].concat()
}

fn wait(mut child: Child, name: &str) -> Output {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{name} did not end");
        }
        sleep(Duration::from_millis(50));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn three_software_devices_have_active_ports() {
    if !in_the_guest() {
        return;
    }
    let links = text(&["rdma", "link", "show"]);
    for device in ["rxe0/1", "rxe_a/1", "rxe_b/1"] {
        let line = links.lines().find(|line| line.contains(device));
        assert!(line.is_some_and(|line| line.contains("state ACTIVE")), "{device} in {links}");
    }
}

#[test]
fn the_environment_names_a_device_and_demands_it() {
    if !in_the_guest() {
        return;
    }
    assert_eq!(std::env::var("RDMA_DEVICE").unwrap(), "rxe0");
    assert_eq!(std::env::var("RDMA_REQUIRE_DEVICE").unwrap(), "1");
    assert_eq!(std::env::var("RDMA4RS_GUEST").unwrap(), "1");
    assert_eq!(std::env::temp_dir(), std::path::Path::new("/tmp"));
    assert_eq!(text(&["sh", "-c", "ulimit -l"]).trim(), "unlimited");
}

#[test]
fn the_two_hosts_have_addresses_of_both_families() {
    if !in_the_guest() {
        return;
    }
    for (host, four, six) in
        [("a", "10.99.1.1/24", "fd00:99:1::1/64"), ("b", "10.99.1.2/24", "fd00:99:1::2/64")]
    {
        let device = format!("veth_{host}");
        let addresses = text(&on_host(host, &["ip", "-brief", "address", "show", "dev", &device]));
        assert!(addresses.contains(four) && addresses.contains(six), "{addresses}");
    }
}

#[test]
fn messages_go_between_the_hosts_as_packets() {
    if !in_the_guest() {
        return;
    }
    let sent = || -> u64 {
        let path = "/sys/class/infiniband/rxe_b/ports/1/hw_counters/sent_pkts";
        std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
    };
    let before = sent();
    let ping = ["ibv_rc_pingpong", "--gid-idx=1", "--iters=50", "--chk"];
    let start = |host: &str, more: &[&str]| {
        let words = on_host(host, &[&ping, more].concat()).join(" ");
        Command::new("sh")
            .args(["-c", &format!("exec {words}")])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let server = start("a", &["--ib-dev=rxe_a"]);
    let deadline = Instant::now() + PATIENCE;
    while !text(&on_host("a", &["ss", "--listening", "--tcp", "--numeric"])).contains(":18515") {
        assert!(Instant::now() < deadline, "the server does not listen");
        sleep(Duration::from_millis(50));
    }
    let client = start("b", &["--ib-dev=rxe_b", "10.99.1.1"]);
    for (child, name) in [(client, "the client"), (server, "the server")] {
        let output = wait(child, name);
        let shown = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && shown.contains("50 iters"), "{name}: {shown}");
    }
    assert!(sent() >= before + 50, "{} packets after {before}", sent());
}
