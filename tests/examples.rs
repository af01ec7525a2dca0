//! The two-rank examples, both ranks in one process, where there may be no RDMA device.

mod common;

use std::process::Command;

use common::{example, printed};

/// Runs an example on the device in software and returns what it printed.
fn alone(name: &str) -> String {
    let mut command = Command::new(example(name));
    for variable in ["RANK", "WORLD_SIZE", "RDMA_DEVICE", "RDMA_PORT", "RDMA_GID_INDEX"] {
        command.env_remove(variable);
    }
    printed(command)
}

#[test]
fn write_with_imm_says_which_device_it_used_and_verifies_every_byte() {
    let text = alone("write_with_imm");
    assert!(text.contains("using "), "{text}");
    assert!(text.contains("was notified with 0xC0DE"), "{text}");
    assert!(text.contains("verified all 1048576 bytes"), "{text}");
}

#[test]
fn send_receive_delivers_every_message() {
    let text = alone("send_receive");
    assert_eq!(text.matches("bytes came").count(), 4, "{text}");
    assert!(text.contains("with 0xBEEF"), "{text}");
}

#[test]
fn read_pulls_the_other_ranks_memory() {
    assert!(alone("read").contains("verified them"));
}

#[test]
fn atomics_count_and_lock() {
    assert_eq!(alone("atomics").matches("counted to 300").count(), 2);
}

#[test]
fn multi_qp_completes_every_lane() {
    assert!(alone("multi_qp").contains("verified all 1048576 bytes"));
}

#[test]
fn efa_examples_verify_every_byte_on_devices_in_software() {
    for (name, expected) in [
        ("efa_write_with_imm", "verified all 1048576 bytes"),
        ("efa_read", "in 11 pieces and verified them"),
        ("efa_multi_qp", "verified all 1048576 bytes"),
        ("efa_multi_lane", "verified all 1048576 bytes of 2 lanes"),
        ("efa_pingpong", "there and back"),
    ] {
        let text = alone(name);
        assert!(
            text.contains("no EFA device is here") || text.contains("cannot be opened"),
            "{text}"
        );
        assert!(text.contains(expected), "{name}: {text}");
    }
}
