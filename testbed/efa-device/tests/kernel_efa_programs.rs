//! The model under the unmodified driver: `cargo testbed test efa-device`.
#![cfg(test)]

mod programs;

use programs::{expect_success, fi_pingpong, perftest, two_devices};

#[test]
fn every_device_has_an_active_port_and_its_own_address() {
    if !two_devices() {
        return;
    }
    let count: usize = std::env::var("RDMA4RS_EFA_DEVICES").unwrap().parse().unwrap();
    let mut gids = std::collections::HashSet::new();
    for number in 0..count {
        let port = format!("/sys/class/infiniband/efa_{number}/ports/1");
        let read = |name: &str| std::fs::read_to_string(format!("{port}/{name}")).unwrap();
        assert_eq!(read("state").trim(), "4: ACTIVE");
        assert!(gids.insert(read("gids/0")));
    }
}

#[test]
fn perftest_sends() {
    if two_devices() {
        expect_success("ib_send_lat", &perftest(&["ib_send_lat", "-s", "64", "-n", "50"]));
        expect_success("ib_send_bw", &perftest(&["ib_send_bw", "-s", "4096", "-n", "100"]));
    }
}

#[test]
fn perftest_writes() {
    if two_devices() {
        expect_success("ib_write_bw", &perftest(&["ib_write_bw", "-s", "1048576", "-n", "20"]));
    }
}

#[test]
fn perftest_reads() {
    if two_devices() {
        expect_success("ib_read_bw", &perftest(&["ib_read_bw", "-s", "1048576", "-n", "20"]));
    }
}

#[test]
fn libfabric_runs_on_srd_and_on_ud_with_its_data_checked() {
    if two_devices() {
        for kind in ["rdm", "dgram"] {
            expect_success(kind, &fi_pingpong(kind));
        }
    }
}
