//! The other ranks' side of the rendezvous: they look for rank 0 wherever it may listen.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    connection::{Broken, Connection, Pause},
    error::at,
    frame::{Frame, Introduction, Kind},
    host::listed,
    link::{aborted, with_grace},
    meeting::Meeting,
};

/// Between two calls at a place where nobody listens.
const RETRY_NOBODY: Duration = Duration::from_millis(20);
/// Between two calls at a place where somebody else listens.
const RETRY_STRANGER: Duration = Duration::from_millis(500);

/// Finds rank 0 and waits until all ranks have arrived.
pub(crate) fn join(
    meeting: &Meeting,
    introduction: Introduction,
    rank: usize,
    timeout: Duration,
) -> Result<Connection> {
    let mut search = Search {
        hello: Frame::new(Kind::Hello, rank_on_wire(rank), introduction.to_bytes()),
        introduction,
        rank,
        call_limit: (timeout / 16).clamp(Duration::from_millis(100), Duration::from_secs(2)),
        places: Vec::new(),
        unresolved: None,
    };
    let mut connection = search.find(meeting, timeout)?;
    connection.trust();
    await_start(&mut connection, with_grace(timeout))?;
    Ok(connection)
}

pub(crate) fn rank_on_wire(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

/// Rank 0 tells when everybody is there, or why it stopped waiting.
fn await_start(connection: &mut Connection, patience: Duration) -> Result<()> {
    const DURING: &str = "the start";
    let deadline = Instant::now() + patience;
    let mut pause = Pause::new();
    loop {
        match connection.receive() {
            Ok(None) if Instant::now() >= deadline => {
                return Err(Error::TimedOut { silent: vec![0], during: DURING, waited: patience });
            }
            Ok(None) => pause.rest(),
            Ok(Some(frame)) => {
                return match frame.kind {
                    Kind::Start => Ok(()),
                    Kind::Abort => Err(aborted(&frame)),
                    other => Err(Error::Garbage {
                        rank: 0,
                        during: DURING,
                        problem: format!("a message of kind {} came first", other.name()),
                    }),
                };
            }
            Err(Broken::Garbage(problem)) => {
                let problem = problem.to_string();
                return Err(Error::Garbage { rank: 0, during: DURING, problem });
            }
            Err(broken) => {
                let source = io::Error::other(broken);
                return Err(Error::Disconnected { rank: 0, during: DURING, source });
            }
        }
    }
}

/// All places are tried side by side, so that a silent stranger at one of them costs no time.
struct Search {
    introduction: Introduction,
    hello: Frame,
    rank: usize,
    /// How long one call may take to get through.
    call_limit: Duration,
    places: Vec<Place>,
    /// What the resolver said last, while it gives no address.
    unresolved: Option<String>,
}

struct Place {
    address: SocketAddr,
    /// Greeted, and not answered yet.
    connection: Option<Connection>,
    next_call: Instant,
    problem: String,
}

impl Search {
    fn find(&mut self, meeting: &Meeting, timeout: Duration) -> Result<Connection> {
        let deadline = Instant::now() + timeout;
        let mut pause = Pause::new();
        loop {
            if self.places.is_empty() {
                self.resolve(meeting);
            }
            for place in 0..self.places.len() {
                let left = deadline.saturating_duration_since(Instant::now());
                self.call(place, left);
                if let Some(connection) = self.hear(place)? {
                    return Ok(connection);
                }
            }
            if Instant::now() >= deadline {
                let problems = self.places.iter().map(|place| at(place.address, &place.problem));
                let problems: Vec<String> = problems.chain(self.unresolved.take()).collect();
                let (address, heard) = (meeting.describe(), listed(" (", &problems));
                return Err(Error::HostNotFound { address, waited: timeout, heard });
            }
            pause.rest();
        }
    }

    fn resolve(&mut self, meeting: &Meeting) {
        match meeting.candidates() {
            Ok(addresses) => {
                self.unresolved = None;
                let now = Instant::now();
                self.places.extend(addresses.into_iter().map(|address| Place {
                    address,
                    connection: None,
                    next_call: now,
                    problem: "not called yet".to_owned(),
                }));
            }
            Err(problem) => self.unresolved = Some(problem),
        }
    }

    fn call(&mut self, place: usize, left: Duration) {
        let limit = self.call_limit.min(left);
        let place = &mut self.places[place];
        let now = Instant::now();
        if place.connection.is_some() || now < place.next_call || limit.is_zero() {
            return;
        }
        match greet(place.address, &self.hello, limit) {
            Ok(connection) => {
                place.problem = "somebody listens there and does not answer".to_owned();
                place.connection = Some(connection);
            }
            Err(error) => {
                place.problem = error.to_string();
                place.next_call = now + RETRY_NOBODY;
            }
        }
    }

    /// Rank 0's connection, if this place turned out to be it.
    fn hear(&mut self, place: usize) -> Result<Option<Connection>> {
        let place = &mut self.places[place];
        let Some(connection) = &mut place.connection else { return Ok(None) };
        let stranger = match connection.receive() {
            Ok(None) => return Ok(None),
            Ok(Some(frame)) => match (frame.kind, Introduction::from_bytes(&frame.payload)) {
                (Kind::Welcome, Some(theirs)) if theirs.job != self.introduction.job => {
                    "rank 0 of another job listens there".to_owned()
                }
                (Kind::Welcome, Some(theirs))
                    if theirs.world_size != self.introduction.world_size =>
                {
                    return Err(Error::Conflict {
                        problem: format!(
                            "rank 0 at {} is in a world of {}, rank {} in one of {}",
                            place.address,
                            theirs.world_size,
                            self.rank,
                            self.introduction.world_size
                        ),
                    });
                }
                (Kind::Welcome, Some(_)) => return Ok(place.connection.take()),
                _ => "somebody listens there who is not rank 0".to_owned(),
            },
            Err(Broken::Garbage(problem)) => format!("somebody else listens there: {problem}"),
            Err(broken) => format!("somebody listens there: {broken}"),
        };
        place.problem = stranger;
        place.connection = None;
        place.next_call = Instant::now() + RETRY_STRANGER;
        Ok(None)
    }
}

fn greet(address: SocketAddr, hello: &Frame, limit: Duration) -> io::Result<Connection> {
    let stream = TcpStream::connect_timeout(&address, limit)?;
    // A call to a free port of this host can meet itself when the system picks that very port.
    if stream.local_addr()? == address {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let mut connection = Connection::new(stream, address)?;
    connection.send(hello, Instant::now() + limit).map_err(io::Error::other)?;
    Ok(connection)
}
