//! A device that falls silent; see `kernel_efa_death.efa`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
mod silent_peer;
#[expect(dead_code, reason = "these need few of the tools")]
mod support;

use std::time::{Duration, Instant};

use efa::{VendorStatus, ibverbs::MemoryRegion};
use silent_peer::writes_until_one_fails;
use support::{ALL, Both, has_devices};

#[test]
fn a_dead_device_is_told_to_its_peers_and_its_own_programs_and_nothing_hangs() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let source = both.near.memory(vec![1; 64]);
    let target = both.far.memory(vec![0; 64]);
    let failure = writes_until_one_fails(&both, &source, &target);
    assert_eq!(failure.vendor_status(), VendorStatus::UNRESPONSIVE, "{failure}");

    let begin = Instant::now();
    let error = MemoryRegion::register(&both.far.domain, vec![0_u8; 64], ALL).unwrap_err();
    assert!(error.to_string().starts_with("ibv_reg_mr failed"), "{error}");
    assert!(error.errno().is_some());
    // Every command to it fails now, those that give things back too.
    drop(target);
    drop(both);
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}
