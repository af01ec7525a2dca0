//! The same programs while the network delays, reorders and refuses; see `kernel_efa_adverse.efa`.
#![cfg(test)]

mod programs;

use programs::{expect_success, fi_pingpong, perftest, two_devices};

#[test]
fn perftest_sends_and_writes_in_spite_of_it() {
    if two_devices() {
        expect_success("ib_send_bw", &perftest(&["ib_send_bw", "-s", "4096", "-n", "100"]));
        expect_success("ib_write_bw", &perftest(&["ib_write_bw", "-s", "65536", "-n", "100"]));
        expect_success("ib_read_bw", &perftest(&["ib_read_bw", "-s", "65536", "-n", "100"]));
    }
}

#[test]
fn libfabric_runs_in_spite_of_it() {
    if two_devices() {
        expect_success("rdm", &fi_pingpong("rdm"));
    }
}
