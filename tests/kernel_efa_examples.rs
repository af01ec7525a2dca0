//! The EFA examples under the kernel's own driver: both ranks in one process, and in two.
#![expect(clippy::print_stdout, reason = "a test says what it skipped")]

mod common;

use std::{env, process::Command};

use common::{example, printed};

/// What each example must print, between two ranks that have two devices each.
const EXAMPLES: [(&str, &str); 5] = [
    ("efa_write_with_imm", "verified all 1048576 bytes"),
    ("efa_read", "and verified them"),
    ("efa_multi_qp", "verified all 1048576 bytes"),
    ("efa_multi_lane", "verified all 1048576 bytes of 2 lanes"),
    ("efa_pingpong", "there and back"),
];

/// Whether this runs where there are EFA devices; says so and, if they are required, fails where there are none.
fn has_devices() -> bool {
    let count: u32 = env::var("RDMA4RS_EFA_DEVICES").unwrap_or_default().parse().unwrap_or(0);
    let demanded = env::var("RDMA_REQUIRE_DEVICE").is_ok_and(|value| value == "1");
    assert!(count >= 4 || !demanded, "four EFA devices are demanded, there are {count}");
    if count < 4 {
        println!("skipped: no EFA devices; `cargo testbed test examples` has them");
    }
    count >= 4
}

/// An example that looks for EFA devices alone; the guest's environment asks for another kind.
fn efa_example(name: &str) -> Command {
    let mut command = Command::new(example(name));
    command.env_remove("RDMA_DEVICE").env_remove("RDMA_GID_INDEX");
    command
}

#[test]
fn efa_examples_run_with_both_ranks_in_one_process() {
    if !has_devices() {
        return;
    }
    for (name, expected) in EXAMPLES {
        let text = printed(efa_example(name));
        assert!(text.contains("using the EFA device efa_"), "{name}: {text}");
        assert!(text.contains(expected), "{name}: {text}");
    }
}

#[test]
fn efa_examples_run_between_two_processes() {
    if !has_devices() {
        return;
    }
    for (index, (name, expected)) in EXAMPLES.into_iter().enumerate() {
        let port = (47_110 + index).to_string();
        let rank = |number: &'static str| {
            let mut command = efa_example(name);
            command.env("RANK", number).env("WORLD_SIZE", "2");
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            command
        };
        let zero = rank("0");
        let zero = std::thread::spawn(move || printed(zero));
        let one = printed(rank("1"));
        let text = zero.join().unwrap_or_default() + &one;
        assert!(text.contains(expected), "{name}: {text}");
    }
}
