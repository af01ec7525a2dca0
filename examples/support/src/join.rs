//! The other ranks' side of the rendezvous: they look for rank 0 wherever it may listen.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    connection::{Broken, Connection, Pause},
    error::{at, seconds},
    frame::{Frame, Introduction, Kind},
    host::listed,
    link::{aborted, with_grace},
    meeting::Meeting,
    notice::{FOR_ARRIVAL, Notice},
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
    let deadline = Instant::now() + timeout;
    let addresses = meeting.addresses(rank, timeout)?;
    let mut search = Search {
        hello: Frame::new(Kind::Hello, rank_on_wire(rank), introduction.to_bytes()),
        introduction,
        rank,
        call_limit: (timeout / 16).clamp(Duration::from_millis(100), Duration::from_secs(2)),
        places: meeting.places(&addresses).into_iter().map(Place::new).collect(),
    };
    let mut connection = search.find(meeting, deadline, timeout)?;
    connection.trust();
    await_start(&mut connection, rank, with_grace(timeout))?;
    Ok(connection)
}

pub(crate) fn rank_on_wire(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

/// Rank 0 tells when everybody is there, or why it stopped waiting.
fn await_start(connection: &mut Connection, rank: usize, patience: Duration) -> Result<()> {
    const DURING: &str = "the start";
    let deadline = Instant::now() + patience;
    let mut pause = Pause::new();
    let mut notice = Notice::after(rank, FOR_ARRIVAL);
    loop {
        let address = connection.address;
        notice.waiting_for(|| format!("the other ranks, which rank 0 at {address} expects"));
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
}

struct Place {
    address: SocketAddr,
    /// Greeted, and not answered yet.
    connection: Option<Connection>,
    next_call: Instant,
    problem: String,
}

impl Place {
    fn new(address: SocketAddr) -> Self {
        let problem = "not called yet".to_owned();
        Self { address, connection: None, next_call: Instant::now(), problem }
    }
}

impl Search {
    fn find(
        &mut self,
        meeting: &Meeting,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Connection> {
        let mut pause = Pause::new();
        let mut notice = Notice::after(self.rank, FOR_ARRIVAL);
        loop {
            for place in 0..self.places.len() {
                let left = deadline.saturating_duration_since(Instant::now());
                self.call(place, left);
                // A call can take long where nobody refuses it, and somebody else may have answered meanwhile.
                for answered in 0..self.places.len() {
                    if let Some(connection) = self.hear(answered)? {
                        return Ok(connection);
                    }
                }
                notice.waiting_for(|| {
                    let (address, limit) = (meeting.describe(), seconds(timeout));
                    format!("rank 0 at {address}, for up to {limit}{}", self.problems())
                });
            }
            if Instant::now() >= deadline {
                let (address, heard) = (meeting.describe(), self.problems());
                return Err(Error::HostNotFound { address, waited: timeout, heard });
            }
            pause.rest();
        }
    }

    /// What each place has instead of rank 0.
    fn problems(&self) -> String {
        let problems = self.places.iter().map(|place| at(place.address, &place.problem));
        listed(" (", &problems.collect::<Vec<_>>())
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
