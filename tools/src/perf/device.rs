//! The device of one side: which it is, and what kind.

use std::path::Path;

use example_support::{AnyError, Found, SOFTWARE, World, find_device, find_efa_devices};
use ibverbs::{Device, DeviceSelector, PortNumber};

use super::{
    options::{Options, Transport},
    plan::Plan,
};

/// What runs the device's side of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    Hardware,
    /// Software RoCE or iWARP.
    Kernel,
    /// A thread of this process.
    Process,
}

impl DeviceKind {
    /// `stands_in` says that it is the one inside this process.
    pub(crate) fn of(device: &Device, stands_in: bool) -> Self {
        let sysfs = Path::new("/sys/class/infiniband").join(device.name());
        match stands_in {
            true => Self::Process,
            // What no device is behind is made by the kernel alone.
            false if sysfs.join("device").exists() => Self::Hardware,
            false => Self::Kernel,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Kernel => "software in the kernel",
            Self::Process => "software in this process",
        }
    }
}

/// The device of this rank, and why it is one in software if it is.
pub(crate) fn find(
    world: &World,
    options: &Options,
    plan: &Plan,
) -> Result<(Device, Option<String>), AnyError> {
    let selector = selector(options)?;
    if plan.transport != Transport::Srd {
        #[cfg(feature = "cuda")]
        if plan.gpu.is_some() {
            let Found { devices, stands_in } =
                example_support::find_device_for_gpus(world, &selector)?;
            return Ok((devices, stands_in));
        }
        let Found { devices, stands_in } = find_device(world, &selector)?;
        return Ok((devices, stands_in));
    }
    if let Some(name) = options.device.as_deref().filter(|name| *name != SOFTWARE) {
        // Each side says which one is its own; nothing is dealt out.
        let mut found = efa::devices()?.into_iter();
        let device = found.find(|device| selector.wants(device.name()));
        let remedy = "`rdma4rs devices` lists what there is";
        return Ok((device.ok_or_else(|| format!("{name} is no EFA device: {remedy}"))?, None));
    }
    let Found { devices, stands_in } = find_efa_devices(world, &selector)?;
    let first = devices.into_iter().next().ok_or("there is no EFA device")?;
    Ok((first, stands_in))
}

/// Looks whether there is a device for a rank that was started by hand, so that nobody waits for the other one in vain.
pub(crate) fn look_for(options: &Options) -> Result<(), AnyError> {
    let selector = selector(options)?;
    if selector == DeviceSelector::named(SOFTWARE) {
        return Err("a device in software serves both sides in one process: leave HOST out".into());
    }
    match ibverbs::devices().and_then(|devices| devices.select(&selector)) {
        Ok(_) => Ok(()),
        Err(error) => {
            let chain = example_support::chain(&error);
            Err(format!("{chain}; `rdma4rs doctor` says what is missing").into())
        }
    }
}

/// What `-d`, `-i` and `-x` say, or else the environment.
pub(crate) fn selector(options: &Options) -> Result<DeviceSelector, AnyError> {
    let mut selector = match &options.device {
        Some(name) => DeviceSelector::named(name),
        None => DeviceSelector::from_env()?,
    };
    if let Some(port) = options.ib_port {
        selector = selector.port(PortNumber::new(port)?);
    }
    if let Some(index) = options.gid_index {
        selector = selector.gid_index(index);
    }
    Ok(selector)
}
