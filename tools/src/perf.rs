//! How fast two sides move bytes, and how long a message takes: what perftest's programs tell, in one.

mod bandwidth;
mod bell;
mod clock;
mod device;
mod flow;
#[cfg(feature = "cuda")]
mod gpu;
mod latency;
mod measure;
mod memory;
mod options;
mod plan;
mod progress;
mod report;
mod rig;
mod session;
mod statistics;
mod verify;
mod watch;
mod wire;

use std::{process::ExitCode, time::Duration};

use example_support::{AnyError, Launcher, SOFTWARE, World, launch, run_by_hand};

pub(crate) use options::Options;
use plan::Plan;

use crate::output;

pub(crate) fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let plan = Plan::new(options)?;
    let rank = |world: &World| session::rank(world, options, &plan);
    if let Some(launcher) = Launcher::of_process()? {
        if options.host.is_some() {
            return Err(format!("{launcher} says who the ranks are: leave HOST out").into());
        }
        example_support::run(2, rank)?;
    } else if options.host.is_none() && (options.loopback || wants_threads(options)?) {
        launch(2, rank)?;
    } else {
        device::look_for(options)?;
        let port = options.port;
        if options.host.is_none() {
            output::note(&format!(
                "waiting for the client at TCP port {port}: start it with this host's name behind the same options"
            ));
        }
        run_by_hand(options.host.as_deref(), port, Duration::from_secs(options.wait), rank)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether there is no device that another process could reach, and none was asked for.
fn wants_threads(options: &Options) -> Result<bool, AnyError> {
    if let Some(name) = &options.device {
        return Ok(name == SOFTWARE);
    }
    let required = std::env::var_os("RDMA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
    let selector = ibverbs::DeviceSelector::from_env()?;
    if required || selector != ibverbs::DeviceSelector::default() {
        return Ok(false);
    }
    Ok(ibverbs::devices().is_ok_and(|devices| devices.is_empty()) || ibverbs::devices().is_err())
}
