//! The whole crate against a target in memory.

use std::time::Duration;

use crate::{
    Controller, Host, HostId, Nqn, Options, Reconnect, Result,
    fake::{FakeTarget, subsystem},
};

mod authentication;
mod commands;
mod connecting;
mod everything;
mod hostile;
mod limits;
mod losing;
mod registered;
mod transferring;

fn host() -> Host {
    Host { nqn: Nqn::new("nqn.2024-01.org.example:host").unwrap(), id: HostId([3; 16]) }
}

/// Options whose waits are short, so that tests of failures are too.
fn options() -> Options {
    Options::new()
        .host(host())
        .io_queues(2)
        .connect_timeout(Duration::from_secs(5))
        .command_timeout(Duration::from_millis(400))
        .reconnect(Reconnect {
            delay: Duration::from_millis(1),
            max_delay: Duration::from_millis(10),
            give_up_after: Duration::from_secs(20),
        })
}

fn connect(target: &FakeTarget, options: Options) -> Result<Controller> {
    Controller::connect_over(target.transport(), subsystem(), options)
}
