//! The EFA devices of the guest.

use efa::ibverbs::Device;

/// Whether there are as many EFA devices as a test needs; says so where there are not.
///
/// # Panics
///
/// If there are not, and the environment demands them.
pub(crate) fn has_devices(needed: usize) -> bool {
    let count = std::env::var("RDMA4RS_EFA_DEVICES").unwrap_or_default().parse().unwrap_or(0);
    let demanded = std::env::var("RDMA_REQUIRE_DEVICE").is_ok_and(|value| value == "1");
    assert!(count >= needed || !demanded, "{needed} EFA devices are demanded, there are {count}");
    if count < needed {
        println!("skipped: no EFA devices; `cargo testbed test efa` has them");
    }
    count >= needed
}

/// The device with this number.
pub(crate) fn device(number: usize) -> Device {
    efa::devices().unwrap().swap_remove(number)
}
