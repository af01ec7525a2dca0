//! Where ranks meet: hosts to try, ports to try, and how they know that they belong together.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    error::seconds,
    notice::{FOR_ARRIVAL, Notice},
};

/// How many ports rank 0 tries when the launcher names none for us.
const PORTS_TO_TRY: u16 = 8;
/// How long a resolver is asked again that says to do so.
const RESOLVER_RETRIES: Duration = Duration::from_secs(3);
/// Between two questions to it.
const RETRY_RESOLVER: Duration = Duration::from_millis(250);

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

    /// Every address of every host, in order, without repetition, with port 0.
    ///
    /// A name that nobody knows is an error at once; one that the resolver cannot tell at the moment is after a few
    /// seconds.
    pub(crate) fn addresses(&self, rank: usize, timeout: Duration) -> Result<Vec<SocketAddr>> {
        self.addresses_by(&resolve, rank, timeout)
    }

    fn addresses_by(
        &self,
        resolve: &(impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Clone + Send + 'static),
        rank: usize,
        timeout: Duration,
    ) -> Result<Vec<SocketAddr>> {
        let begin = Instant::now();
        let deadline = begin + timeout;
        let mut notice = Notice::after(rank, FOR_ARRIVAL);
        loop {
            let (mut found, mut problem) = (Vec::new(), None);
            for host in &self.hosts {
                match ask(resolve, host, deadline, &mut notice) {
                    Ok(addresses) => found.extend(addresses),
                    Err(source) => problem = Some((host, source)),
                }
            }
            if let Some((host, source)) = problem
                && found.is_empty()
            {
                if is_temporary(&source) && begin.elapsed() < RESOLVER_RETRIES.min(timeout) {
                    thread::sleep(RETRY_RESOLVER);
                    continue;
                }
                return Err(Error::UnknownHost { host: host.clone(), source });
            }
            let mut unique: Vec<SocketAddr> = Vec::new();
            for address in found {
                if !unique.contains(&address) {
                    unique.push(address);
                }
            }
            return Ok(unique);
        }
    }

    /// Each of these addresses at every port.
    pub(crate) fn places(&self, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
        let pairs = self.ports.iter().flat_map(|&port| {
            addresses.iter().map(move |&address| {
                let mut place = address;
                place.set_port(port);
                place
            })
        });
        pairs.collect()
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

/// The addresses of a host, in the resolver's order; a scope (`fe80::1%eth0`) stays with its address.
fn resolve(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok((host, 0).to_socket_addrs()?.collect())
}

/// What `resolve` says of a host. A resolver can take longer than anybody wants to wait; it is left alone then.
fn ask(
    resolve: &(impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Clone + Send + 'static),
    host: &str,
    deadline: Instant,
    notice: &mut Notice,
) -> io::Result<Vec<SocketAddr>> {
    const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, 0)]);
    }
    let (begin, (sender, answer)) = (Instant::now(), mpsc::channel());
    let (resolve, name) = (resolve.clone(), host.to_owned());
    // Whoever asked may be gone when the answer comes.
    let work = move || drop(sender.send(resolve(&name)));
    thread::Builder::new().name("resolver".to_owned()).spawn(work)?;
    loop {
        match answer.recv_timeout(BETWEEN_LOOKS) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {
                notice.waiting_for(|| format!("the resolver, which looks up the host {host}"));
            }
            Err(RecvTimeoutError::Timeout) => {
                let waited = seconds(begin.elapsed());
                let problem = format!("the resolver did not answer within {waited}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the resolver broke down"));
            }
        }
    }
}

/// Whether the resolver may know more in a moment. `EAI_AGAIN` has no kind of its own, only the words of the C
/// libraries.
fn is_temporary(error: &io::Error) -> bool {
    let words = error.to_string();
    ["Temporary failure", "Try again"].iter().any(|sign| words.contains(sign))
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
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::chain;

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

    fn places(meeting: &Meeting) -> Vec<String> {
        let addresses = meeting.addresses(0, Duration::from_secs(60)).unwrap();
        meeting.places(&addresses).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_of_both_families_are_tried_once_each() {
        let both = meeting(&["127.0.0.1", "::1", "127.0.0.1"]);
        assert_eq!(places(&both), ["127.0.0.1:7", "[::1]:7", "127.0.0.1:8", "[::1]:8"]);
        assert!(both.is_loopback() && !meeting(&["localhost", "10.0.0.1"]).is_loopback());
        assert_eq!(both.describe(), "127.0.0.1 or ::1 or 127.0.0.1 port 7 to 8");
    }

    #[test]
    fn a_link_local_address_keeps_its_interface() {
        assert_eq!(places(&meeting(&["fe80::1%1"])), ["[fe80::1%1]:7", "[fe80::1%1]:8"]);
    }

    #[test]
    fn a_name_that_nobody_knows_is_told_at_once_with_a_remedy() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let resolve = move |_: &str| {
            count.fetch_add(1, Ordering::Relaxed);
            Err(io::Error::other("Name or service not known"))
        };
        let patience = Duration::from_secs(60);
        let error = meeting(&["no-such"]).addresses_by(&resolve, 0, patience).unwrap_err();
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let text = chain(&error);
        for words in ["host no-such ", "`getent hosts no-such`", "Name or service not known"] {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_resolver_that_cannot_tell_at_the_moment_is_asked_again() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let resolve = move |_: &str| match count.fetch_add(1, Ordering::Relaxed) {
            0 => Err(io::Error::other("Temporary failure in name resolution")),
            _ => Ok(vec![SocketAddr::from(([10, 0, 0, 1], 0))]),
        };
        let patience = Duration::from_secs(60);
        let found = meeting(&["late"]).addresses_by(&resolve, 0, patience).unwrap();
        assert_eq!(found, [SocketAddr::from(([10, 0, 0, 1], 0))]);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn one_host_of_several_that_is_known_is_enough() {
        let resolve = |host: &str| match host {
            "known" => Ok(vec![SocketAddr::from(([10, 0, 0, 1], 0))]),
            _ => Err(io::Error::other("Name or service not known")),
        };
        let patience = Duration::from_secs(60);
        let hosts = meeting(&["known", "unknown"]);
        assert_eq!(hosts.addresses_by(&resolve, 0, patience).unwrap().len(), 1);
    }

    #[test]
    fn a_resolver_that_does_not_answer_is_not_waited_for() {
        let resolve = |_: &str| -> io::Result<Vec<SocketAddr>> {
            loop {
                thread::park();
            }
        };
        let limit = Duration::from_millis(300);
        let error = meeting(&["slow"]).addresses_by(&resolve, 0, limit).unwrap_err();
        assert!(chain(&error).contains("the resolver did not answer within 0.3"), "{error}");
    }
}
