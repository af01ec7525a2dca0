//! EFA devices for an example: real ones, or else some in software.

use std::{fs, sync::OnceLock};

use efa::{EndpointInfo, Peer, Srd};
use ibverbs::{
    Device, DeviceSelector, Devices, LocalPort, Parent, ProtectionDomain, QueueKey, QueuePair,
};
use soft_device::SoftDevice;

use crate::{
    AnyError, Found, Launcher, World, chain,
    device::{one_process, wants_software},
};

/// How many devices stand in where there is none.
const IN_SOFTWARE: usize = 4;

/// The EFA devices of this rank, at least one: those of the machine, dealt out among the ranks on it. Many fleets drop
/// what a device sends to itself, so that two ranks never share one.
///
/// `RDMA_DEVICE` narrows the choice. Where the machine has no EFA device, devices inside this process stand in
/// if the ranks are threads. Says which it is.
///
/// # Errors
///
/// There is no EFA device, or there are fewer than ranks on this machine.
pub fn efa_devices(world: &World) -> Result<Vec<Device>, AnyError> {
    let Found { devices, stands_in } = find_efa_devices(world, &DeviceSelector::from_env()?)?;
    if let Some(reason) = stands_in
        && world.rank() == 0
    {
        world.say(format!("({reason})"));
        world.say("using EFA devices in software inside this process instead");
    }
    let names: Vec<_> = devices.iter().map(Device::name).collect();
    world.say(format!("using the EFA device {}", names.join(", ")));
    Ok(devices)
}

/// As [`efa_devices`], among those that `selector` wants, and says nothing. The name [`SOFTWARE`](crate::SOFTWARE) asks
/// for those in software.
///
/// # Errors
///
/// As for [`efa_devices`].
pub fn find_efa_devices(
    world: &World,
    selector: &DeviceSelector,
) -> Result<Found<Vec<Device>>, AnyError> {
    if wants_software(selector) {
        return devices_in_software(world, "they were asked for");
    }
    let found = efa::devices().map(|mut found| {
        found.retain(|device| selector.wants(device.name()));
        found
    });
    let reason = match found {
        Ok(found) if !found.is_empty() => {
            return Ok(Found { devices: deal(world, found)?, stands_in: None });
        }
        Ok(_) => "no EFA device: they are attached to instances of certain types in AWS, where \
                  `lspci` shows them as 1d0f:efa*, and the driver `efa` must be loaded"
            .to_owned(),
        Err(error) => format!("no EFA device: {}", chain(&error)),
    };
    let required = std::env::var_os("RDMA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
    if required || *selector != DeviceSelector::default() || world.launcher() != Launcher::Threads {
        return Err(reason.into());
    }
    devices_in_software(world, &reason)
}

fn devices_in_software(world: &World, reason: &str) -> Result<Found<Vec<Device>>, AnyError> {
    one_process(world, reason)?;
    static SOFTWARE: OnceLock<[SoftDevice; IN_SOFTWARE]> = OnceLock::new();
    let software = SOFTWARE.get_or_init(|| {
        std::array::from_fn(|number| {
            let device = SoftDevice::builder().efa(|_| ()).build();
            device.set_disorder(Some(number as u64 + 1));
            device
        })
    });
    let list = Devices::of(soft_device::library())?;
    let named = |device: &SoftDevice| list.by_name(device.name()).cloned();
    let devices = deal(world, software.iter().filter_map(named).collect())?;
    Ok(Found { devices, stands_in: Some(reason.to_owned()) })
}

/// Gives each rank of a machine its share of the machine's devices.
fn deal(world: &World, devices: Vec<Device>) -> Result<Vec<Device>, AnyError> {
    let here = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let hosts = world.exchange(&here)?;
    let mine = |rank: &usize| hosts.get(*rank) == Some(&here);
    let ranks = (0..world.size()).filter(mine).count();
    let number = (0..world.rank()).filter(mine).count();
    let share = devices.len() / ranks;
    if share == 0 {
        let count = devices.len();
        return Err(
            format!("{ranks} ranks are on this machine and only {count} EFA devices").into()
        );
    }
    Ok(devices.into_iter().skip(number * share).take(share).collect())
}

/// Tells the other rank where a queue pair is, and makes the way to the other rank's. Both ranks need one, even if data
/// goes one way only: a device answers RDMA of those only that it knows.
///
/// # Errors
///
/// The other rank is missing or sends something else, or the device refuses.
pub fn efa_peer<'a>(
    world: &World,
    domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
    port: &LocalPort,
    pair: &QueuePair<'a, Srd>,
    key: QueueKey,
) -> Result<Peer<'a>, AnyError> {
    let local = EndpointInfo::new(pair, port, key);
    let remote = EndpointInfo::from_bytes(&world.exchange_with_peer(&local.to_bytes())?)?;
    let peer = remote.peer(domain, port)?;
    // Nobody begins before both have done so.
    world.barrier()?;
    Ok(peer)
}
