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
fn ud_answers_by_the_header_of_the_question() {
    let text = alone("ud");
    assert!(text.contains("0xA5C came from "), "{text}");
    assert!(text.contains("verified the answer of 1024 bytes"), "{text}");
}

#[test]
fn srq_refills_what_three_queue_pairs_share() {
    let text = alone("srq");
    assert!(text.contains("verified 60 messages of 3 queue pairs in 8 receives"), "{text}");
}

#[test]
fn events_wakes_for_solicited_messages_and_tells_what_the_device_says() {
    let text = alone("events");
    assert!(text.contains("0 messages came within 20 ms"), "{text}");
    assert!(text.contains("woken once for 4 messages"), "{text}");
    assert!(text.contains("few receives are left"), "{text}");
}

#[test]
fn raw_packet_counts_what_flows_take_and_throw_away() {
    let text = alone("raw_packet");
    assert!(text.contains("3 frames of 1542 bytes in all came by a flow"), "{text}");
    assert!(text.contains("3 frames of 1542 bytes in all were thrown away"), "{text}");
    assert!(text.contains("verified 3 frames"), "{text}");
}

#[test]
fn memory_windows_of_both_types_are_closed_again() {
    let text = alone("memory_windows");
    assert_eq!(text.matches("verified the bytes in the window").count(), 2, "{text}");
    assert_eq!(text.matches("the stale key was refused").count(), 2, "{text}");
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
        assert!(text.contains("(no EFA device: "), "{name}: {text}");
        assert!(text.contains(expected), "{name}: {text}");
    }
}
