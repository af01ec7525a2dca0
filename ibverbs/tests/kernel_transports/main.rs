//! The transports and what queue pairs can be made of, on a device of the kernel.

#[cfg(test)]
#[path = "../transports/scenarios/mod.rs"]
mod scenarios;

#[cfg(test)]
use scenarios::Host;

/// `rxe` looks at the ends of the region, not of the window: its `check_rkey`.
#[cfg(test)]
pub(crate) const CHECKS_ENDS_OF_WINDOWS: bool = false;

/// `rxe` passes the kernel's flag on, whose bit means something else to programs.
#[cfg(test)]
pub(crate) const NAMES_INVALIDATED_KEYS: bool = false;

/// Runs a scenario on the device that the environment names.
#[cfg(test)]
pub(crate) fn run(scenario: fn(&Host, ibverbs::Posting)) {
    let selector = ibverbs::DeviceSelector::from_env().unwrap();
    let found = ibverbs::devices().and_then(|devices| devices.select(&selector));
    let device = match found {
        Ok(device) => device,
        Err(error) if std::env::var_os("RDMA_REQUIRE_DEVICE").is_none() => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    for posting in [ibverbs::Posting::Extended, ibverbs::Posting::Classic] {
        scenario(&Host::open(&device, &selector), posting);
    }
}
