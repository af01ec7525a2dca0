//! The examples on a real kernel: both ranks in one process, and one rank on each of two hosts.
#![expect(clippy::expect_used, clippy::print_stdout, reason = "a test says what it skipped")]

mod common;

use std::{
    env,
    process::Command,
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{example, printed};

/// What each two-rank example must print.
const EXAMPLES: [(&str, &str); 9] = [
    ("write_with_imm", "verified all 1048576 bytes"),
    ("send_receive", "bytes came, with 0xBEEF"),
    ("read", "verified them"),
    ("atomics", "counted to 300"),
    ("multi_qp", "verified all 1048576 bytes"),
    ("ud", "verified the answer of 1024 bytes"),
    ("srq", "verified 60 messages of 3 queue pairs"),
    ("events", "few receives are left"),
    ("memory_windows", "the stale key was refused"),
];

/// Whether this runs where there are devices; says so and, if they are required, fails where there are none.
fn in_the_guest() -> bool {
    let there = env::var_os("RDMA4RS_GUEST").is_some();
    assert!(
        there || env::var_os("RDMA_REQUIRE_DEVICE").is_none_or(|value| value != "1"),
        "RDMA_REQUIRE_DEVICE=1, but this is not the guest of the testbed"
    );
    if !there {
        println!("skipped: this needs the guest of the testbed");
    }
    there
}

#[test]
fn examples_run_on_one_device() {
    if !in_the_guest() {
        return;
    }
    for (name, expected) in EXAMPLES {
        let text = printed(Command::new(example(name)));
        assert!(text.contains("using the RDMA device rxe0"), "{name}: {text}");
        assert!(text.contains(expected), "{name}: {text}");
    }
}

#[test]
fn examples_run_between_two_hosts() {
    if !in_the_guest() {
        return;
    }
    for (name, expected) in EXAMPLES {
        let text = between_hosts(name);
        assert!(text.contains("using the RDMA device rxe_a"), "{name}: {text}");
        assert!(text.contains("using the RDMA device rxe_b"), "{name}: {text}");
        assert!(text.contains(expected), "{name}: {text}");
    }
}

#[test]
fn devices_lists_every_device_of_the_machine() {
    if !in_the_guest() {
        return;
    }
    let text = printed(Command::new(example("devices")));
    for device in ["rxe0", "rxe_a", "rxe_b"] {
        assert!(text.contains(device), "{text}");
    }
    assert!(text.contains("::ffff:10.99.0.1 (RoCE v2)"), "{text}");
}

#[test]
fn cm_echo_finds_the_other_host_by_its_address() {
    if !in_the_guest() {
        return;
    }
    let on = |host: &str, words: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host]).arg(example("cm_echo")).args(words);
        command
    };
    thread::scope(|scope| {
        let server = scope.spawn(|| printed(on("a", &["listen", "10.99.1.1:7471", "1"])));
        // The server may not listen yet.
        let ask = || on("b", &["10.99.1.1:7471", "hello", "world"]).output().expect("it runs");
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut client = ask();
        while !client.status.success() && Instant::now() < deadline {
            client = ask();
        }
        let text = String::from_utf8_lossy(&client.stdout);
        assert_eq!(text, "the way there is rxe_b\nhello\nworld\n");
        assert!(server.join().expect("it serves").contains("gone after 2 messages"));
    });
}

/// Runs one rank on each host and returns what both printed.
fn between_hosts(name: &str) -> String {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(29_600);
    let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed).to_string();
    let rank = |rank: &str, host: &str, device: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host]).arg(example(name)).envs([
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.99.1.1"),
            ("MASTER_PORT", &port),
            ("RDMA_DEVICE", device),
        ]);
        printed(command)
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| rank("0", "a", "=rxe_a"));
        let second = rank("1", "b", "=rxe_b");
        first.join().expect("rank 0 runs") + &second
    })
}
