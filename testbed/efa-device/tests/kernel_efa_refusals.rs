//! A device that refuses to register memory; see `kernel_efa_refusals.efa`.
#![cfg(test)]

#[expect(dead_code, reason = "this needs perftest alone")]
mod programs;

use programs::{perftest, two_devices};

#[test]
fn a_refused_command_is_an_error_of_the_verb_and_nothing_hangs() {
    if two_devices() {
        let output = perftest(&["ib_write_bw", "-s", "4096", "-n", "5"]);
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("MR"), "{text}");
    }
}
