//! Asking discovery services where subsystems are.

use std::collections::{HashSet, VecDeque};

use crate::{
    Controller, Error, Host, Nqn, Options, Result,
    address::split,
    wire::{
        admin::{LogPage, get_log_page},
        discovery::{DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType},
    },
};

/// The most entries that are read from one service.
const MAX_ENTRIES: u64 = 4096;

/// Entries that are read with one command: 32 KiB.
const ENTRIES_AT_ONCE: u64 = 32;

/// The most services that are asked, the first one included.
const MAX_SERVICES: usize = 32;

/// How often a log that changes while it is read is read anew.
const ATTEMPTS: usize = 5;

/// What one discovery service and those that it refers to say.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Discovered {
    /// All entries, referrals left out, each once, in the order they were found.
    pub entries: Vec<DiscoveryEntry>,
    /// Services that were referred to and could not be asked: address, port, and why.
    pub failures: Vec<(String, String, Error)>,
}

/// Asks the discovery service at an address, and those that it refers to over RDMA.
///
/// Connects to each with the options, without I/O queues and keep-alive, and disconnects again.
///
/// # Errors
///
/// As [`Controller::connect_with`] for the first service; what went wrong with others is in
/// [`Discovered::failures`].
pub fn discover(address: &str, options: &Options) -> Result<Discovered> {
    let (host, port) = split(address)?;
    let port = port.unwrap_or(options.port).to_string();
    let mut options = options.clone().io_queues(0).keep_alive(None);
    if options.host.is_none() {
        // All of them see the same host.
        options = options.host(Host::from_system()?);
    }
    follow(host, &port, |host, port| {
        let address =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let controller = Controller::connect_with(&address, Nqn::discovery(), options.clone())?;
        read_log(&controller)
    })
}

/// Reads the log of a discovery controller.
pub(crate) fn read_log(controller: &Controller) -> Result<Vec<DiscoveryEntry>> {
    let head = || -> Result<DiscoveryHeader> {
        let page = read(controller, 0, DiscoveryHeader::BYTES)?;
        DiscoveryHeader::parse(&page)
    };
    for _ in 0..ATTEMPTS {
        let before = head()?;
        if before.records > MAX_ENTRIES {
            return Err(Error::OutOfRange {
                what: "the number of discovery log entries",
                asked: before.records,
                min: 0,
                max: MAX_ENTRIES,
            });
        }
        let mut entries = Vec::new();
        let mut at = 0;
        while at < before.records {
            let count = usize::try_from((before.records - at).min(ENTRIES_AT_ONCE)).unwrap_or(1);
            let offset = 1024 * (at + 1);
            let page = read(controller, offset, count * DiscoveryEntry::BYTES)?;
            for entry in page.chunks_exact(DiscoveryEntry::BYTES) {
                entries.push(DiscoveryEntry::parse(entry)?);
            }
            at += ENTRIES_AT_ONCE;
        }
        if head()?.generation == before.generation {
            return Ok(entries);
        }
    }
    Err(Error::Unsupported {
        what: "reading the discovery log",
        reason: "it changed each time while it was read; try again",
    })
}

fn read(controller: &Controller, offset: u64, length: usize) -> Result<Vec<u8>> {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let command = get_log_page(LogPage::DISCOVERY, length, offset, false);
    controller.fetch("get discovery log page", command, length)
}

/// Asks the service at an address, and those that it refers to over RDMA, with `ask`.
///
/// Each service is asked once, and no more than a few dozen are, so that services that refer to
/// each other come to an end. Only a failure of the first one is an error.
pub(crate) fn follow(
    address: &str,
    service: &str,
    mut ask: impl FnMut(&str, &str) -> Result<Vec<DiscoveryEntry>>,
) -> Result<Discovered> {
    let first = (address.to_owned(), service.to_owned());
    let mut asked = HashSet::from([first.clone()]);
    let mut waiting = VecDeque::from([first]);
    let mut found = Discovered::default();
    let mut is_first = true;
    while let Some((address, service)) = waiting.pop_front() {
        let entries = match ask(&address, &service) {
            Ok(entries) => entries,
            Err(error) if is_first => return Err(error),
            Err(error) => {
                found.failures.push((address, service, error));
                continue;
            }
        };
        is_first = false;
        for entry in entries {
            let is_referral = entry.subsystem_type == SubsystemType::REFERRAL;
            if !is_referral {
                if !found.entries.contains(&entry) {
                    found.entries.push(entry);
                }
                continue;
            }
            let place = (entry.address, entry.service);
            if entry.transport == TransportType::RDMA
                && asked.len() < MAX_SERVICES
                && asked.insert(place.clone())
            {
                waiting.push_back(place);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Nqn, fake::FakeTarget, wire::discovery::tests::entry};

    fn referral(address: &str) -> DiscoveryEntry {
        let mut entry = entry();
        entry.subsystem_type = SubsystemType::REFERRAL;
        entry.subsystem = Nqn::discovery();
        address.clone_into(&mut entry.address);
        entry
    }

    #[test]
    fn a_log_longer_than_one_command_is_read_whole() {
        let target = FakeTarget::new(16);
        let expected: Vec<DiscoveryEntry> = (0..77)
            .map(|number| {
                let mut entry = entry();
                entry.port_id = number;
                entry
            })
            .collect();
        target.lock().discovery.clone_from(&expected);
        let options = Options::new().host(Host::random().unwrap()).keep_alive(None);
        let controller =
            Controller::connect_over(target.transport(), Nqn::discovery(), options).unwrap();
        assert_eq!(controller.queues(), 0);
        assert_eq!(read_log(&controller).unwrap(), expected);
    }

    #[test]
    fn referrals_are_followed_once_each() {
        let mut asked = Vec::new();
        let found = follow("a", "4420", |address, _| {
            asked.push(address.to_owned());
            match address {
                "a" => Ok(vec![entry(), referral("b"), referral("a"), referral("c")]),
                "b" => Ok(vec![entry(), referral("a")]),
                _ => Err(Error::Closed),
            }
        })
        .unwrap();
        assert_eq!(asked, ["a", "b", "c"]);
        assert_eq!(found.entries, [entry()]);
        assert_eq!(found.failures.len(), 1);
    }

    #[test]
    fn endless_referrals_come_to_an_end() {
        let mut count = 0;
        follow("0", "4420", |_, _| {
            count += 1;
            Ok(vec![referral(&count.to_string()), referral(&format!("x{count}"))])
        })
        .unwrap();
        assert_eq!(count, MAX_SERVICES);
    }

    #[test]
    fn a_first_service_that_fails_is_an_error() {
        assert!(matches!(follow("a", "4420", |_, _| Err(Error::Closed)), Err(Error::Closed)));
    }
}
