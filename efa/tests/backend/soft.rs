//! EFA devices inside the process: four for each test, which is a thread.

use cuda_engine::CudaEngine;
use efa::ibverbs::{Device, Devices};
use soft_device::SoftDevice;

thread_local! {
    static DEVICES: [SoftDevice; 4] = std::array::from_fn(|number| {
        let device = SoftDevice::builder().efa(|_| ()).build();
        device.set_disorder(Some(number as u64 + 1));
        device
    });
}

/// There are always enough.
pub(crate) const fn has_devices(_: usize) -> bool {
    true
}

/// The device with this number.
pub(crate) fn device(number: usize) -> Device {
    DEVICES.with(|devices| {
        let list = Devices::of(soft_device::library()).unwrap();
        list.by_name(devices[number].name()).unwrap().clone()
    })
}

/// Lets this test's devices reach memory of GPUs.
pub(crate) fn reach_gpus() {
    DEVICES.with(|devices| devices.iter().for_each(|device| drop(CudaEngine::install(device))));
}

/// What this test's devices still have, or have complained about.
pub(crate) fn leftovers() -> Vec<String> {
    DEVICES.with(|devices| {
        let each = |device: &SoftDevice| [device.leaks(), device.violations()].concat();
        devices.iter().flat_map(each).collect()
    })
}
