//! Rank 0's side of the rendezvous: it listens, looks at every caller, and seats the ranks.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    connection::{Broken, Connection, Pause},
    error::{at, chain},
    frame::{Frame, Introduction, Kind},
    link::aborted,
    meeting::Meeting,
};

/// Who may wait at the door at once, beyond the ranks themselves.
const CALLERS_AT_ONCE: usize = 64;
/// How many problems an error message lists.
const PROBLEMS_LISTED: usize = 4;
/// How long an answer to a caller may take; it fits into any socket's buffer.
const ANSWER: Duration = Duration::from_secs(1);

/// Opens the first free port of `meeting`, on the loopback device alone if the ranks meet there.
pub(crate) fn listen(meeting: &Meeting, timeout: Duration) -> Result<Vec<TcpListener>> {
    // An earlier run may still be closing its socket; a port that stays taken is told early.
    let deadline = Instant::now() + timeout / 5;
    let mut pause = Pause::new();
    loop {
        let error = match listen_once(meeting) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => error,
        };
        let is_taken = matches!(&error, Error::Listen { source, .. }
            if source.kind() == io::ErrorKind::AddrInUse);
        if !is_taken || Instant::now() >= deadline {
            return Err(error);
        }
        pause.rest();
    }
}

fn listen_once(meeting: &Meeting) -> Result<Vec<TcpListener>> {
    let unresolved = |problem: String| Error::Listen {
        address: meeting.describe(),
        source: io::Error::other(problem),
    };
    let addresses = meeting.addresses().map_err(unresolved)?;
    if let Some(remedy) = meeting.remedy_if_wrong
        && !is_here(&addresses)
    {
        return Err(Error::variable("MASTER_ADDR", None, remedy));
    }
    let mut problem = None;
    for &port in &meeting.ports {
        let opened =
            if meeting.is_loopback() { open_any(&addresses, port) } else { open_all(port) };
        match opened {
            Ok(listeners) => return Ok(listeners),
            Err(error) => problem = Some(error),
        }
    }
    Err(Error::Listen {
        address: meeting.describe(),
        source: problem.unwrap_or_else(|| io::ErrorKind::InvalidInput.into()),
    })
}

/// Whether one of these is an address of this host.
fn is_here(addresses: &[IpAddr]) -> bool {
    addresses.iter().any(|&address| TcpListener::bind((address, 0)).is_ok())
}

/// The first of these addresses that works.
fn open_any(addresses: &[IpAddr], port: u16) -> io::Result<Vec<TcpListener>> {
    let places: Vec<SocketAddr> =
        addresses.iter().map(|&address| SocketAddr::new(address, port)).collect();
    let listener = TcpListener::bind(places.as_slice())?;
    listener.set_nonblocking(true)?;
    Ok(vec![listener])
}

/// Every address of this host: a name may resolve to one that only this host can reach.
fn open_all(port: u16) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Ok(listener) => listeners.push(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
        // No IPv6 here.
        Err(_) => {}
    }
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(listener) => listeners.push(listener),
        // Usually the first socket serves IPv4 as well, and so holds this port.
        Err(error) if listeners.is_empty() => return Err(error),
        Err(_) => {}
    }
    for listener in &listeners {
        listener.set_nonblocking(true)?;
    }
    Ok(listeners)
}

/// Waits until every other rank has called, and starts them all. In order of rank, from rank 1 on.
pub(crate) fn gather(
    listeners: &[TcpListener],
    meeting: &Meeting,
    introduction: Introduction,
    size: usize,
    timeout: Duration,
) -> Result<Vec<Connection>> {
    let mut table = Table {
        introduction,
        size,
        seats: (1..size).map(|_| None).collect(),
        callers: Vec::new(),
        heard: Vec::new(),
    };
    let gathered = table.gather(listeners, timeout).map_err(|error| hint(error, meeting));
    let mut ranks: Vec<Connection> = table.seats.into_iter().flatten().collect();
    let farewell = match &gathered {
        Ok(()) => Frame::new(Kind::Start, 0, Vec::new()),
        Err(error) => Frame::abort(0, &chain(error)),
    };
    for (place, connection) in ranks.iter_mut().enumerate() {
        let sent = connection.send(&farewell, Instant::now() + ANSWER);
        if let (Ok(()), Err(broken)) = (&gathered, sent) {
            let source = io::Error::other(broken);
            return Err(Error::Disconnected { rank: place + 1, during: "the start", source });
        }
    }
    gathered.map(|()| ranks)
}

/// A forwarded address is no mistake, so this is told only when a rank does not come.
fn hint(mut error: Error, meeting: &Meeting) -> Error {
    if let Error::Missing { heard, .. } = &mut error
        && meeting.addresses().is_ok_and(|addresses| !is_here(&addresses))
    {
        let hosts = meeting.hosts.join(" or ");
        heard.push_str(&format!("; rank 0 runs here, and {hosts} is no address of this host"));
    }
    error
}

struct Table {
    introduction: Introduction,
    size: usize,
    /// By rank, from rank 1 on.
    seats: Vec<Option<Connection>>,
    /// Connected, and not yet known.
    callers: Vec<Connection>,
    /// What went wrong with callers, for the message when somebody is missing.
    heard: Vec<String>,
}

impl Table {
    fn gather(&mut self, listeners: &[TcpListener], timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut pause = Pause::new();
        while self.seats.iter().any(Option::is_none) {
            for listener in listeners {
                self.accept(listener);
            }
            self.hear_callers()?;
            self.check_seats()?;
            if self.seats.iter().all(Option::is_some) {
                break;
            }
            if Instant::now() >= deadline {
                return Err(self.missing(timeout));
            }
            pause.rest();
        }
        Ok(())
    }

    fn accept(&mut self, listener: &TcpListener) {
        while let Ok((stream, address)) = listener.accept() {
            if self.callers.len() >= CALLERS_AT_ONCE + self.size {
                let oldest = self.callers.remove(0);
                self.note(oldest.address, "said nothing");
            }
            if let Ok(connection) = Connection::new(stream, address) {
                self.callers.push(connection);
            }
        }
    }

    fn hear_callers(&mut self) -> Result<()> {
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.receive() {
                Ok(None) => self.callers.push(caller),
                Ok(Some(frame)) => self.seat(caller, &frame)?,
                Err(broken) => self.note(caller.address, &broken.to_string()),
            }
        }
        Ok(())
    }

    fn seat(&mut self, mut caller: Connection, frame: &Frame) -> Result<()> {
        let theirs = Introduction::from_bytes(&frame.payload);
        let (Kind::Hello, Some(theirs)) = (frame.kind, theirs) else {
            self.note(caller.address, "it does not introduce itself");
            return Ok(());
        };
        // Everybody gets an answer, so that a rank of another job looks for its own rank 0 elsewhere.
        let answer = Frame::new(Kind::Welcome, 0, self.introduction.to_bytes());
        if let Err(broken) = caller.send(&answer, Instant::now() + ANSWER) {
            self.note(caller.address, &broken.to_string());
            return Ok(());
        }
        if theirs.job != self.introduction.job {
            self.note(caller.address, "it is a rank of another job");
            return Ok(());
        }
        let rank = usize::try_from(frame.detail).unwrap_or(usize::MAX);
        if theirs.world_size != self.introduction.world_size {
            return Err(Error::Conflict {
                problem: format!(
                    "rank {rank} at {} is in a world of {}, rank 0 in one of {}",
                    caller.address, theirs.world_size, self.size
                ),
            });
        }
        let place = rank.checked_sub(1).and_then(|place| self.seats.get_mut(place));
        let Some(place) = place else {
            return refuse(caller, format!("a second rank {rank} called"));
        };
        if let Some(seated) = place
            && seated.look().is_ok()
        {
            let other = seated.address;
            return refuse(caller, format!("there are two of rank {rank}, the first at {other}"));
        }
        caller.trust();
        *place = Some(caller);
        Ok(())
    }

    /// A rank that died has left its seat to whoever is started in its place.
    fn check_seats(&mut self) -> Result<()> {
        for place in 0..self.seats.len() {
            let Some(seated) = &mut self.seats[place] else { continue };
            let rank = place + 1;
            let garbage = |problem| Error::Garbage { rank, during: "the start", problem };
            let problem = match seated.look() {
                Ok(None) => continue,
                Ok(Some(frame)) if frame.kind == Kind::Abort => {
                    return Err(aborted(frame));
                }
                Ok(Some(_)) => return Err(garbage("it does not wait for the start".to_owned())),
                Err(Broken::Garbage(problem)) => return Err(garbage(problem.to_string())),
                Err(broken) => broken.to_string(),
            };
            let address = seated.address;
            self.seats[place] = None;
            self.note(address, &format!("rank {rank} was here and left: {problem}"));
        }
        Ok(())
    }

    fn note(&mut self, address: SocketAddr, problem: &str) {
        if self.heard.len() < PROBLEMS_LISTED {
            self.heard.push(at(address, problem));
        }
    }

    fn missing(&mut self, waited: Duration) -> Error {
        for caller in std::mem::take(&mut self.callers) {
            self.note(caller.address, "it said nothing");
        }
        let absent = self.seats.iter().enumerate().filter(|(_, seat)| seat.is_none());
        Error::Missing {
            missing: absent.map(|(place, _)| place + 1).collect(),
            size: self.size,
            waited,
            heard: listed(" (others called: ", &self.heard),
        }
    }
}

/// A caller whose claim does not fit ends the rendezvous, and is told why.
fn refuse(mut caller: Connection, claim: String) -> Result<()> {
    let error = Error::Conflict { problem: format!("{claim}, the last one at {}", caller.address) };
    // This rank fails in any case; the caller's own failure only adds to it.
    drop(caller.send(&Frame::abort(0, &error.to_string()), Instant::now() + ANSWER));
    Err(error)
}

/// `before` and the problems in parentheses, nothing without problems.
pub(crate) fn listed(before: &str, problems: &[String]) -> String {
    if problems.is_empty() {
        String::new()
    } else {
        format!("{before}{})", problems[..problems.len().min(PROBLEMS_LISTED)].join("; "))
    }
}
