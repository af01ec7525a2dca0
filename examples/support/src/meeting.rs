//! Where ranks meet: hosts to try, ports to try, and how they know that they belong together.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// How many ports rank 0 tries when the launcher names none for us.
const PORTS_TO_TRY: u16 = 8;

/// Where rank 0 listens, as every rank works it out for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meeting {
    /// Names or addresses of the host of rank 0.
    pub(crate) hosts: Vec<String>,
    /// Rank 0 takes the first free one; the others look at all.
    pub(crate) ports: Vec<u16>,
    /// A digest of the job's name, the same on every rank.
    pub(crate) job: u64,
    /// Says that the hosts are a guess that rank 0 has to confirm, and what to do if it is wrong.
    pub(crate) remedy_if_wrong: Option<&'static str>,
}

impl Meeting {
    pub(crate) fn is_loopback(&self) -> bool {
        self.hosts.iter().all(|host| is_loopback(host))
    }

    /// Every address of every host, in order, without repetition; `Err` has the resolver's words.
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        let mut found = Vec::new();
        let mut problems = Vec::new();
        for host in &self.hosts {
            match (host.as_str(), 0).to_socket_addrs() {
                Ok(addresses) => found.extend(addresses.map(|address| address.ip())),
                Err(error) => problems.push(format!("{host}: {error}")),
            }
        }
        let mut unique: Vec<IpAddr> = Vec::new();
        for address in found {
            if !unique.contains(&address) {
                unique.push(address);
            }
        }
        if unique.is_empty() { Err(problems.join("; ")) } else { Ok(unique) }
    }

    /// Every address at every port.
    pub(crate) fn candidates(&self) -> Result<Vec<SocketAddr>, String> {
        let addresses = self.addresses()?;
        let pairs = self
            .ports
            .iter()
            .flat_map(|&port| addresses.iter().map(move |&address| SocketAddr::new(address, port)));
        Ok(pairs.collect())
    }

    /// Hosts and ports in a few words, for messages.
    pub(crate) fn describe(&self) -> String {
        let ports = match self.ports.as_slice() {
            [first, .., last] => format!("port {first} to {last}"),
            [one] => format!("port {one}"),
            [] => "no port".to_owned(),
        };
        format!("{} {ports}", self.hosts.join(" or "))
    }
}

/// Whether a name or address can only mean this host.
pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The host on which every rank is.
pub(crate) fn this_host() -> String {
    Ipv4Addr::LOCALHOST.to_string()
}

/// The ports after one that the launcher itself holds. Every rank works out the same ones.
pub(crate) fn ports_beside(held: u16) -> Vec<u16> {
    (1..=PORTS_TO_TRY).map(|step| held.checked_add(step).unwrap_or_else(|| held - step)).collect()
}

/// Ports for a job of this name, below those that systems hand out by themselves (from 32768 on).
pub(crate) fn ports_of_job(job: u64) -> Vec<u16> {
    const FIRST: u16 = 15_000;
    const GROUPS: u64 = 2_000;
    let group = u16::try_from(job % GROUPS).unwrap_or(0);
    let first = FIRST + group * PORTS_TO_TRY;
    (first..first + PORTS_TO_TRY).collect()
}

/// FNV-1a with 64 bits: not for secrets, only to tell jobs apart.
pub(crate) fn digest(parts: &[&str]) -> u64 {
    let mut digest = 0xCBF2_9CE4_8422_2325_u64;
    for part in parts {
        for byte in part.bytes().chain([0]) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meeting(hosts: &[&str]) -> Meeting {
        Meeting {
            hosts: hosts.iter().map(ToString::to_string).collect(),
            ports: vec![7, 8],
            job: 0,
            remedy_if_wrong: None,
        }
    }

    #[test]
    fn a_held_port_is_never_among_those_beside_it() {
        for held in 1..=u16::MAX {
            let ports = ports_beside(held);
            assert_eq!(ports.len(), 8);
            assert!(!ports.contains(&held) && !ports.contains(&0), "{held}: {ports:?}");
            assert!(ports.iter().all(|port| port.abs_diff(held) <= 8), "{held}: {ports:?}");
        }
    }

    #[test]
    fn ports_of_a_job_stay_below_the_ephemeral_ones() {
        for job in [0, 1, 1_999, 2_000, u64::MAX, digest(&["Slurm", "4711", "0"])] {
            let ports = ports_of_job(job);
            assert!(ports[0] >= 15_000 && ports[7] < 31_000, "{ports:?}");
        }
    }

    #[test]
    fn the_digest_tells_parts_apart() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_ne!(digest(&["a"]), digest(&["a", ""]));
    }

    #[test]
    fn addresses_of_both_families_are_tried_once_each() {
        let both = meeting(&["127.0.0.1", "::1", "127.0.0.1"]);
        let candidates: Vec<String> =
            both.candidates().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(candidates, ["127.0.0.1:7", "[::1]:7", "127.0.0.1:8", "[::1]:8"]);
        assert!(both.is_loopback() && !meeting(&["localhost", "10.0.0.1"]).is_loopback());
        assert_eq!(both.describe(), "127.0.0.1 or ::1 or 127.0.0.1 port 7 to 8");
    }

    #[test]
    fn a_name_that_does_not_resolve_is_reported() {
        let problem = meeting(&["no-such-host.invalid"]).candidates().unwrap_err();
        assert!(problem.contains("no-such-host.invalid"), "{problem}");
    }
}
