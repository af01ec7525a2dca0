//! The EFA examples between two machines: this program runs in both, one rank in each.

mod common;

use std::{env, process::Command};

use common::{example, printed};

/// Each example with its port, the rank that says how it went, and what that one must print.
const EXAMPLES: [(&str, u16, &str, &str); 5] = [
    ("efa_write_with_imm", 47_120, "1", "verified all 1048576 bytes"),
    ("efa_read", 47_121, "0", "and verified them"),
    ("efa_multi_qp", 47_122, "1", "verified all 1048576 bytes"),
    ("efa_multi_lane", 47_123, "1", "verified all 2097152 bytes of 4 lanes"),
    ("efa_pingpong", 47_124, "0", "there and back"),
];

#[test]
fn efa_examples_run_between_two_machines() {
    // The launcher's variables reach the examples too.
    let Ok(rank) = env::var("RANK") else {
        assert!(env::var("RDMA_REQUIRE_DEVICE").is_err(), "two machines are demanded");
        println!("skipped: no second machine; `cargo testbed test examples` has one");
        return;
    };
    for (name, port, speaker, expected) in EXAMPLES {
        let mut command = Command::new(example(name));
        // They look for EFA devices alone; the guest's environment asks for another kind.
        command.env_remove("RDMA_DEVICE").env_remove("RDMA_GID_INDEX");
        command.env("MASTER_PORT", port.to_string());
        let text = printed(command);
        assert!(rank != speaker || text.contains(expected), "{name}: {text}");
    }
}
