//! A device that no longer answers commands; see `kernel_efa_silence.efa`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[expect(dead_code, reason = "these need few of the tools")]
mod support;

use std::time::{Duration, Instant};

use efa::ibverbs::MemoryRegion;
use support::{ALL, Lane, has_devices};

#[test]
fn a_command_without_answer_is_an_error_in_time() {
    if !has_devices(4) {
        return;
    }
    let lane = Lane::open(3);
    let begin = Instant::now();
    let error = MemoryRegion::register(&lane.domain, vec![0_u8; 64], ALL).unwrap_err();
    assert!(error.to_string().starts_with("ibv_reg_mr failed"), "{error}");
    assert!(error.errno().is_some());
    // The device's own time-out is half a second.
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}
