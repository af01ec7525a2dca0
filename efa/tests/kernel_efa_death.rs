//! A device that falls silent; see `kernel_efa_death.efa`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[expect(dead_code, reason = "these need few of the tools")]
mod support;

use std::time::{Duration, Instant};

use efa::{
    Failure, Srd, VendorStatus,
    ibverbs::{MemoryRegion, SendWr},
};
use support::{ALL, Both, has_devices, published};

#[test]
fn a_dead_device_is_told_to_its_peers_and_its_own_programs_and_nothing_hangs() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let source = both.near.memory(vec![1; 64]);
    let target = both.far.memory(vec![0; 64]);
    let there = published(&target).at(0).unwrap();
    let mut written = 0;
    let failure = loop {
        let bytes = source.segment(..).unwrap();
        let write = SendWr::<Srd>::write_to(bytes, &there, both.to_far.destination());
        both.near_pair.post_send(&mut [write]).unwrap();
        match both.near.completion().outcome() {
            Ok(_) => written += 1,
            Err(failed) => break Failure::from(failed),
        }
        assert!(written < 100);
    };
    assert!(written > 0, "it should live at first");
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
