//! A device for an example: a real one, or else the one in software.

use std::sync::OnceLock;

#[cfg(feature = "gpu")]
use cuda_engine::CudaEngine;
use ibverbs::{Device, DeviceSelector, Devices};
use soft_device::SoftDevice;

use crate::{AnyError, Launcher, World, chain};

/// What [`find_device`] found.
#[derive(Debug, Clone)]
pub struct Found<D> {
    /// The device, or the devices.
    pub devices: D,
    /// Why a device in software stands in; `None` for a real one.
    pub stands_in: Option<String>,
}

/// The device that `selector` wants; where the machine has none, a device inside this process.
///
/// The device in software reaches queue pairs of its own process only, so that it stands in when the ranks
/// are threads, and never for a device that was asked for by name or with `RDMA_REQUIRE_DEVICE=1`. Its own name,
/// [`SOFTWARE`], asks for it.
///
/// # Errors
///
/// No device is there and the one in software cannot stand in.
pub fn find_device(world: &World, selector: &DeviceSelector) -> Result<Found<Device>, AnyError> {
    if wants_software(selector) {
        return device_in_software(world, "it was asked for");
    }
    let error = match ibverbs::devices().and_then(|devices| devices.select(selector)) {
        Ok(devices) => return Ok(Found { devices, stands_in: None }),
        Err(error) => error,
    };
    let required = std::env::var_os("RDMA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
    if required || *selector != DeviceSelector::default() {
        return Err(error.into());
    }
    device_in_software(world, &format!("no real device: {}", chain(&error)))
}

/// As [`find_device`], and says which one it is.
///
/// # Errors
///
/// As for [`find_device`].
pub fn any_device(world: &World, selector: &DeviceSelector) -> Result<Device, AnyError> {
    let Found { devices: device, stands_in } = find_device(world, selector)?;
    let name = device.name();
    match stands_in {
        None => world.say(format!("using the RDMA device {name}")),
        Some(reason) => {
            world.say(format!("using {name}, a device in software inside this process"));
            if world.rank() == 0 {
                world.say(format!("({reason})"));
            }
        }
    }
    Ok(device)
}

/// The name by which the device in software is asked for, as all of a [`DeviceSelector`].
pub const SOFTWARE: &str = "software";

/// Whether the device in software is asked for.
pub(crate) fn wants_software(selector: &DeviceSelector) -> bool {
    *selector == DeviceSelector::named(SOFTWARE)
}

/// That a device in software cannot serve ranks in several processes.
pub(crate) fn one_process(world: &World, reason: &str) -> Result<(), AnyError> {
    if world.launcher() == Launcher::Threads {
        return Ok(());
    }
    let only = "a device in software serves the ranks of one process only, and these are several: start it without a \
                launcher or another host, or see what `rdma4rs doctor` says of this one";
    Err(format!("{reason}; {only}").into())
}

fn device_in_software(world: &World, reason: &str) -> Result<Found<Device>, AnyError> {
    one_process(world, reason)?;
    // Made before the list is.
    let software = software();
    let devices = Devices::of(soft_device::library())?;
    let device = devices.by_name(software.name());
    let device = device.ok_or("the device in software is not in its own list")?.clone();
    Ok(Found { devices: device, stands_in: Some(reason.to_owned()) })
}

/// As [`any_device`], for memory of GPUs: the device in software moves its bytes with CUDA copies.
///
/// # Errors
///
/// As for [`any_device`].
#[cfg(feature = "gpu")]
pub fn any_device_for_gpus(world: &World, selector: &DeviceSelector) -> Result<Device, AnyError> {
    let device = any_device(world, selector)?;
    if device.name() == software().name() {
        copy_with_cuda();
    }
    Ok(device)
}

/// As [`find_device`], for memory of GPUs.
///
/// # Errors
///
/// As for [`find_device`].
#[cfg(feature = "gpu")]
pub fn find_device_for_gpus(
    world: &World,
    selector: &DeviceSelector,
) -> Result<Found<Device>, AnyError> {
    let found = find_device(world, selector)?;
    if found.stands_in.is_some() {
        copy_with_cuda();
    }
    Ok(found)
}

/// Lets the device in software move its bytes with CUDA copies.
#[cfg(feature = "gpu")]
fn copy_with_cuda() {
    static ENGINE: OnceLock<std::sync::Arc<CudaEngine>> = OnceLock::new();
    ENGINE.get_or_init(|| CudaEngine::install(software()));
}

/// The device in software of this process.
fn software() -> &'static SoftDevice {
    static SOFTWARE: OnceLock<SoftDevice> = OnceLock::new();
    SOFTWARE.get_or_init(SoftDevice::new)
}
