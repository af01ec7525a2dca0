//! A device for an example: a real one, or else the one in software.

use std::sync::{Arc, OnceLock};

use cuda_engine::CudaEngine;
use ibverbs::{Device, DeviceSelector, Devices};
use soft_device::SoftDevice;

use crate::{AnyError, Launcher, World, chain};

/// The device that `selector` wants; where the machine has none, a device inside this process.
///
/// The device in software reaches queue pairs of its own process only, so that it stands in when the ranks
/// are threads, and never for a device that was asked for by name or with `RDMA_REQUIRE_DEVICE=1`. Says which
/// one it is.
///
/// # Errors
///
/// No device is there and the one in software cannot stand in.
pub fn any_device(world: &World, selector: &DeviceSelector) -> Result<Device, AnyError> {
    let error = match ibverbs::devices().and_then(|devices| devices.select(selector)) {
        Ok(device) => {
            world.say(format!("using the RDMA device {}", device.name()));
            return Ok(device);
        }
        Err(error) => error,
    };
    let required = std::env::var_os("RDMA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
    if required || *selector != DeviceSelector::default() {
        return Err(error.into());
    }
    if world.launcher() != Launcher::Threads {
        let reason =
            "a device in software serves the ranks of one process only, and these are several";
        return Err(format!("{}; {reason}", chain(&error)).into());
    }
    let software = software();
    world.say(format!("using {}, a device in software inside this process", software.name()));
    if world.rank() == 0 {
        world.say(format!("(no real device: {})", chain(&error)));
    }
    let devices = Devices::of(soft_device::library())?;
    let device = devices.by_name(software.name());
    Ok(device.ok_or("the device in software is not in its own list")?.clone())
}

/// As [`any_device`], for memory of GPUs: the device in software moves its bytes with CUDA copies.
///
/// # Errors
///
/// As for [`any_device`].
pub fn any_device_for_gpus(world: &World, selector: &DeviceSelector) -> Result<Device, AnyError> {
    static ENGINE: OnceLock<Arc<CudaEngine>> = OnceLock::new();
    let device = any_device(world, selector)?;
    if device.name() == software().name() {
        ENGINE.get_or_init(|| CudaEngine::install(software()));
    }
    Ok(device)
}

/// The device in software of this process.
fn software() -> &'static SoftDevice {
    static SOFTWARE: OnceLock<SoftDevice> = OnceLock::new();
    SOFTWARE.get_or_init(SoftDevice::new)
}
