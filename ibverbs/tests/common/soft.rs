//! The software device as this crate sees it, and what tests on it need besides.

#[path = "log.rs"]
pub(crate) mod log_lines;

use std::{
    env, fs,
    os::fd::AsFd,
    process::{Command, Output},
};

use ibverbs::{Device, DeviceSelector, Devices, DmaBufPart, Posting};
use soft_device::SoftDevice;

use crate::common::Host;
pub(crate) use crate::udmabuf::memory_file;

/// Both ways in which requests reach a device.
pub(crate) const POSTINGS: [Posting; 2] = [Posting::Extended, Posting::Classic];

/// The entry of a soft device in the list of devices.
pub(crate) fn listed(device: &SoftDevice) -> Device {
    let devices = Devices::of(soft_device::library()).unwrap();
    devices.by_name(device.name()).unwrap().clone()
}

pub(crate) fn open(device: &SoftDevice) -> Host {
    Host::open(&listed(device), &DeviceSelector::default())
}

/// Nothing was left on the device, and nothing was done to it that a real one punishes.
pub(crate) fn assert_clean(device: &SoftDevice) {
    assert_eq!(device.leaks(), [""; 0]);
    assert_eq!(device.violations(), [""; 0]);
}

/// Says that a program runs as the child of a test.
const CHILD: &str = "RDMA4RS_TEST_CHILD";

/// Runs the test of this name in a process of its own; `None` in that process.
pub(crate) fn in_child(name: &str, variables: &[(&str, &str)]) -> Option<Output> {
    if env::var_os(CHILD).is_some() {
        return None;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    for variable in ["RDMA_DEVICE", "RDMA_PORT", "RDMA_GID_INDEX"] {
        command.env_remove(variable);
    }
    command.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
    Some(command.envs(variables.iter().copied()).output().unwrap())
}

pub(crate) fn part_of(file: &fs::File, offset: u64, length: usize, address: u64) -> DmaBufPart<'_> {
    DmaBufPart { fd: file.as_fd(), offset, length, address }
}
