//! The software device, opened.

use ibverbs::{Context, Devices};
use soft_device::SoftDevice;

pub(crate) fn open(device: &SoftDevice) -> Context {
    let devices = Devices::of(soft_device::library()).unwrap();
    devices.by_name(device.name()).unwrap().open().unwrap()
}
