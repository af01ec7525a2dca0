//! How to connect to a controller, and what to do when things go wrong.

use std::{net::IpAddr, time::Duration};

use crate::{Host, Secret};

/// How to connect to a controller. Every setting has a default that suits a Linux target.
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(crate) port: u16,
    pub(crate) source: Option<IpAddr>,
    pub(crate) host: Option<Host>,
    pub(crate) io_queues: u16,
    pub(crate) queue_entries: u16,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) reconnect: Reconnect,
    pub(crate) retries: u8,
    pub(crate) retry_writes: bool,
    pub(crate) in_capsule_data: bool,
    pub(crate) max_transfer: u32,
    pub(crate) spin: Duration,
    pub(crate) service_type: Option<u8>,
    pub(crate) secret: Option<Secret>,
    pub(crate) controller_secret: Option<Secret>,
}

/// When to try again after a connection was lost, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// How long to wait before the second attempt; the first comes at once. Each further attempt
    /// waits twice as long as the one before.
    pub delay: Duration,
    /// The longest wait between two attempts.
    pub max_delay: Duration,
    /// How long after the loss the last attempt may begin. Zero: no attempt at all.
    pub give_up_after: Duration,
}

impl Default for Reconnect {
    /// Half a second, doubling up to ten seconds, for ten minutes.
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(10),
            give_up_after: Duration::from_secs(600),
        }
    }
}

impl Reconnect {
    /// Never: the first loss of the connection ends the controller.
    pub const NEVER: Self =
        Self { delay: Duration::ZERO, max_delay: Duration::ZERO, give_up_after: Duration::ZERO };

    /// How long to wait after so many attempts that failed, the first one counted as 1.
    pub(crate) fn wait_after(&self, failed_attempts: u32) -> Duration {
        let doublings = failed_attempts.saturating_sub(1).min(16);
        self.delay.saturating_mul(1 << doublings).min(self.max_delay)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 4420,
            source: None,
            host: None,
            io_queues: 1,
            queue_entries: 128,
            keep_alive: Some(Duration::from_secs(5)),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            reconnect: Reconnect::default(),
            retries: 3,
            retry_writes: false,
            in_capsule_data: true,
            max_transfer: 1 << 20,
            spin: Duration::from_micros(20),
            service_type: None,
            secret: None,
            controller_secret: None,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The port of the target; 4420 by default, where subsystems are. Discovery services that
    /// stand alone have 8009.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The address to connect from, which chooses the device; by default routing does.
    pub fn source(mut self, source: IpAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Who this host is; [`Host::from_system`] by default.
    pub fn host(mut self, host: Host) -> Self {
        self.host = Some(host);
        self
    }

    /// How many I/O queues to open; 1 by default. The target may grant fewer.
    pub fn io_queues(mut self, count: u16) -> Self {
        self.io_queues = count;
        self
    }

    /// Entries of each I/O queue, at least 2; 128 by default, and never more than the target has, or
    /// has receives for. One command less can be in flight: see [`IoQueue::depth`](crate::IoQueue::depth).
    pub fn queue_entries(mut self, entries: u16) -> Self {
        self.queue_entries = entries;
        self
    }

    /// How long the controller waits for a sign of life before it gives this host up, in whole
    /// milliseconds; 5 seconds by default. A keep-alive is sent in half that time, and the connection
    /// is given up if it is not answered within the time, or within
    /// [`connect_timeout`](Self::connect_timeout) if that is shorter. `None` switches it off, and with
    /// it the notice of a target that vanished while nothing was sent.
    pub fn keep_alive(mut self, time: Option<Duration>) -> Self {
        self.keep_alive = time;
        self
    }

    /// How long opening one connection may take, and how long an admin command; 10 seconds by
    /// default.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// How long an I/O command may take; 30 seconds by default. Then it is aborted, and if that
    /// does not end it either within a quarter of that time, the connection is given up.
    pub fn command_timeout(mut self, time: Duration) -> Self {
        self.command_timeout = time;
        self
    }

    /// What to do when the connection is lost; see [`Reconnect::default`].
    pub fn reconnect(mut self, policy: Reconnect) -> Self {
        self.reconnect = policy;
        self
    }

    /// How often each command of a request is sent again, after a status that speaks of a passing
    /// condition or after a lost connection; 3 by default. However many commands a request became,
    /// one loss counts once.
    pub fn retries(mut self, count: u8) -> Self {
        self.retries = count;
        self
    }

    /// Whether writes, zeroed blocks and deallocations whose connection was lost are sent again
    /// too; they are not by default.
    ///
    /// Such a command may have been carried out, and the target may still carry it out while a
    /// new connection is already in use. Sending it again is right only if no other host, and no
    /// later request of this one, writes to the same blocks in the meantime.
    pub fn retry_writes(mut self, yes: bool) -> Self {
        self.retry_writes = yes;
        self
    }

    /// Whether small writes travel inside their command, which saves a round trip; they do by
    /// default, if the target can.
    pub fn in_capsule_data(mut self, yes: bool) -> Self {
        self.in_capsule_data = yes;
        self
    }

    /// The most bytes of one command; 1 MiB by default, and never more than the target takes.
    /// Longer requests become several commands in flight at once.
    pub fn max_transfer(mut self, bytes: u32) -> Self {
        self.max_transfer = bytes;
        self
    }

    /// How long whoever waits polls before it sleeps; 20 microseconds by default, about what going to
    /// sleep and waking up costs. Between two polls it yields the processor, so that a machine where
    /// others have to run for the answer to come does not lose the time. Zero sleeps at once.
    ///
    /// `AsyncQueue` does not: its runtime has other tasks.
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// The type of service of the connection's packets: the traffic class of IPv6 and RoCE.
    pub fn service_type(mut self, value: u8) -> Self {
        self.service_type = Some(value);
        self
    }

    /// The secret by which this host proves itself, for targets that ask.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The secret that the controller has to prove to have; needs [`Options::secret`] too. A
    /// target that does not ask for authentication cannot prove anything, and is refused then.
    pub fn controller_secret(mut self, secret: Secret) -> Self {
        self.controller_secret = Some(secret);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let policy = Reconnect::default();
        assert_eq!(policy.wait_after(1), Duration::from_millis(500));
        assert_eq!(policy.wait_after(2), Duration::from_secs(1));
        assert_eq!(policy.wait_after(100), Duration::from_secs(10));
    }
}
