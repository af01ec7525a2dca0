//! The transports and what queue pairs can be made of, on the software device.

#[cfg(test)]
mod multicast;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod soft_only;

#[cfg(test)]
use scenarios::Host;

/// A write past the end of a memory window is refused, even inside of the region.
#[cfg(test)]
pub(crate) const CHECKS_ENDS_OF_WINDOWS: bool = true;

/// The completion of a message that invalidates says which key it was.
#[cfg(test)]
pub(crate) const NAMES_INVALIDATED_KEYS: bool = true;

/// Runs a scenario on a device of its own, which must be clean afterwards.
#[cfg(test)]
pub(crate) fn run(scenario: fn(&Host, ibverbs::Posting)) {
    for posting in [ibverbs::Posting::Extended, ibverbs::Posting::Classic] {
        let device = soft_device::SoftDevice::new();
        let devices = ibverbs::Devices::of(soft_device::library()).unwrap();
        let listed = devices.by_name(device.name()).unwrap();
        scenario(&Host::open(listed, &ibverbs::DeviceSelector::default()), posting);
        assert_eq!(device.leaks(), [""; 0], "{posting:?}");
        assert_eq!(device.violations(), [""; 0], "{posting:?}");
    }
}
