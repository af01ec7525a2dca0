//! Rank 0's side of the rendezvous: it listens, looks at every caller, and seats the ranks.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    connection::{Broken, Connection, Pause},
    error::{at, chain, ranks, seconds},
    frame::{Frame, Introduction, Kind},
    link::aborted,
    meeting::Meeting,
    notice::{FOR_ARRIVAL, Notice},
};

/// Who may wait at the door at once, beyond the ranks themselves.
const CALLERS_AT_ONCE: usize = 64;
/// How many problems an error message lists.
const PROBLEMS_LISTED: usize = 4;
/// How long an answer to a caller may take; it fits into any socket's buffer.
const ANSWER: Duration = Duration::from_secs(1);

/// Where rank 0 listens.
#[derive(Debug)]
pub(crate) struct Doors {
    listeners: Vec<TcpListener>,
    /// Whether the others look for rank 0 at an address of this host. One that is forwarded is no mistake.
    is_here: bool,
}

impl Doors {
    /// Ports that are open already, where the others were told.
    pub(crate) fn open(listeners: Vec<TcpListener>) -> Self {
        Self { listeners, is_here: true }
    }
}

/// Opens the first free port of `meeting`, on the loopback device alone if the ranks meet there.
pub(crate) fn listen(meeting: &Meeting, timeout: Duration) -> Result<Doors> {
    let addresses = meeting.addresses(0, timeout)?;
    let is_here = is_here(&addresses);
    if let Some(remedy) = meeting.remedy_if_wrong
        && !is_here
    {
        return Err(Error::variable("MASTER_ADDR", None, remedy));
    }
    // An earlier run may still be closing its socket; a port that stays taken is told early.
    let deadline = Instant::now() + timeout / 5;
    let mut pause = Pause::new();
    let mut notice = Notice::after(0, FOR_ARRIVAL);
    loop {
        let source = match listen_once(meeting, &addresses) {
            Ok(listeners) => return Ok(Doors { listeners, is_here }),
            Err(error) => error,
        };
        let address = meeting.describe();
        if source.kind() != io::ErrorKind::AddrInUse || Instant::now() >= deadline {
            return Err(Error::Listen { address, source });
        }
        notice.waiting_for(|| format!("{address} to become free, which somebody else has"));
        pause.rest();
    }
}

fn listen_once(meeting: &Meeting, addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let mut problem = io::ErrorKind::InvalidInput.into();
    for &port in &meeting.ports {
        let opened = if meeting.is_loopback() { open_any(addresses, port) } else { open_all(port) };
        match opened {
            Ok(listeners) => return Ok(listeners),
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

/// Whether one of these is an address of this host.
fn is_here(addresses: &[SocketAddr]) -> bool {
    addresses.iter().any(|address| TcpListener::bind(address).is_ok())
}

/// The first of these addresses that works.
fn open_any(addresses: &[SocketAddr], port: u16) -> io::Result<Vec<TcpListener>> {
    let mut places = addresses.to_vec();
    places.iter_mut().for_each(|place| place.set_port(port));
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
    doors: &Doors,
    meeting: &Meeting,
    introduction: Introduction,
    size: usize,
    timeout: Duration,
    mut notice: Notice,
) -> Result<Vec<Connection>> {
    let mut table = Table {
        introduction,
        size,
        address: meeting.describe(),
        seats: (1..size).map(|_| None).collect(),
        callers: Vec::new(),
        heard: Vec::new(),
        stuck: None,
    };
    let gathered = table.gather(&doors.listeners, timeout, &mut notice);
    let gathered = gathered.map_err(|error| hint(error, doors));
    let ranks: Vec<Connection> = table.seats.into_iter().flatten().collect();
    match gathered {
        Ok(()) => start_or_say_why(ranks),
        Err(error) => Err(say_why(ranks, error)),
    }
}

fn start_or_say_why(mut ranks: Vec<Connection>) -> Result<Vec<Connection>> {
    match start(&mut ranks) {
        Ok(()) => Ok(ranks),
        Err(error) => Err(say_why(ranks, error)),
    }
}

/// Tells those who have come why nothing becomes of it.
fn say_why(ranks: Vec<Connection>, error: Error) -> Error {
    let (farewell, deadline) = (Frame::abort(0, &chain(&error)), Instant::now() + ANSWER);
    for mut connection in ranks {
        // This rank fails in any case; whoever is gone does not miss the reason.
        drop(connection.send(&farewell, deadline));
    }
    error
}

/// Tells all ranks, in order from rank 1 on, that all have arrived.
fn start(ranks: &mut [Connection]) -> Result<()> {
    let (word, deadline) = (Frame::new(Kind::Start, 0, Vec::new()), Instant::now() + ANSWER);
    for (rank, connection) in (1..).zip(ranks) {
        connection.send(&word, deadline).map_err(|broken| {
            let source = io::Error::other(broken);
            Error::Disconnected { rank, during: "the start", source }
        })?;
    }
    Ok(())
}

/// A forwarded address is no mistake, so this is told only when a rank does not come.
fn hint(mut error: Error, doors: &Doors) -> Error {
    if let Error::Missing { heard, .. } = &mut error
        && !doors.is_here
    {
        heard.push_str("; rank 0 runs here, and that is no address of this host");
    }
    error
}

struct Table {
    introduction: Introduction,
    size: usize,
    /// Host and ports, for messages.
    address: String,
    /// By rank, from rank 1 on.
    seats: Vec<Option<Connection>>,
    /// Connected, and not yet known.
    callers: Vec<Connection>,
    /// What went wrong with callers, for the message when somebody is missing.
    heard: Vec<String>,
    /// Why callers cannot be let in, since the last one that was.
    stuck: Option<io::Error>,
}

impl Table {
    fn gather(
        &mut self,
        listeners: &[TcpListener],
        timeout: Duration,
        notice: &mut Notice,
    ) -> Result<()> {
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
            notice.waiting_for(|| {
                let (absent, size, address) = (ranks(&self.absent()), self.size, &self.address);
                let (limit, heard) = (seconds(timeout), self.heard());
                format!("{absent} of {size} at {address}, for up to {limit}{heard}")
            });
            pause.rest();
        }
        Ok(())
    }

    /// Lets in who is at the door, not so many at once that the ranks already inside are forgotten.
    fn accept(&mut self, listener: &TcpListener) {
        for _ in 0..CALLERS_AT_ONCE {
            let (stream, address) = match listener.accept() {
                Ok(caller) => caller,
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        self.stuck = Some(error);
                    }
                    return;
                }
            };
            self.stuck = None;
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

    /// The ranks that are not here.
    fn absent(&self) -> Vec<usize> {
        let absent = self.seats.iter().enumerate().filter(|(_, seat)| seat.is_none());
        absent.map(|(place, _)| place + 1).collect()
    }

    /// Who else called, and why nobody can be let in if that is so.
    fn heard(&self) -> String {
        let stuck = self.stuck.as_ref().map(|error| format!("; callers cannot be let in: {error}"));
        listed(" (others called: ", &self.heard) + &stuck.unwrap_or_default()
    }

    fn missing(&mut self, waited: Duration) -> Error {
        for caller in std::mem::take(&mut self.callers) {
            self.note(caller.address, "it said nothing");
        }
        let (missing, size, heard) = (self.absent(), self.size, self.heard());
        Error::Missing { missing, size, address: self.address.clone(), waited, heard }
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

#[cfg(test)]
mod tests {
    use std::{io::Read, net::TcpStream};

    use super::*;
    use crate::frame::{Parsed, parse};

    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, address) = listener.accept().unwrap();
        (Connection::new(ours, address).unwrap(), theirs)
    }

    #[test]
    fn a_rank_that_dies_just_before_the_start_is_named_to_the_others() {
        let ((first, mut alive), (mut second, dead)) = (pair(), pair());
        // Bytes that nobody read make the end a reset, after which nothing can be sent.
        second.send(&Frame::new(Kind::Welcome, 0, Vec::new()), Instant::now()).unwrap();
        drop(dead);
        while second.receive().is_ok() {
            std::thread::yield_now();
        }
        let error = start_or_say_why(vec![first, second]).unwrap_err();
        assert!(
            matches!(error, Error::Disconnected { rank: 2, during: "the start", .. }),
            "{error}"
        );
        let mut heard = Vec::new();
        alive.read_to_end(&mut heard).unwrap();
        let Ok(Parsed::Frame(word, taken)) = parse(&heard, 4096) else { unreachable!() };
        assert_eq!(word.kind, Kind::Start);
        let Ok(Parsed::Frame(word, _)) = parse(&heard[taken..], 4096) else { unreachable!() };
        assert_eq!(word.kind, Kind::Abort);
        assert!(String::from_utf8(word.payload).unwrap().starts_with("rank 2 disconnected"));
    }
}
