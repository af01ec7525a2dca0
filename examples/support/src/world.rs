//! The ranks of one job, and what they tell each other outside of RDMA.

use std::{
    fmt::Display,
    io::{self, Write},
    net::TcpListener,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Error, Launcher, Result,
    connection::{Broken, Connection, Pause},
    environment::Environment,
    error::chain,
    frame::{Frame, Introduction, Kind, LONGEST_PAYLOAD},
    host, join,
    join::rank_on_wire,
    placement::Placement,
};

/// How long a last word to a peer may take.
const LAST_WORD: Duration = Duration::from_secs(1);

/// One rank's view of its job: who it is, and a way to reach the others.
///
/// Operations that all ranks call together ([`exchange`](Self::exchange),
/// [`broadcast`](Self::broadcast), [`barrier`](Self::barrier)) go through rank 0 over TCP. They are
/// for addresses and keys, not for data. Each ends within the time-out (30 s, or the seconds in
/// `RDMA4RS_TIMEOUT`), and the first failure ends the rendezvous for all ranks, with the reason.
/// Nothing is encrypted and nobody proves who they are: for networks that one trusts.
///
/// Dropping a world tells the others that this rank is done and well.
#[derive(Debug)]
pub struct World {
    placement: Placement,
    timeout: Duration,
    link: Mutex<Link>,
}

#[derive(Debug)]
struct Link {
    /// On rank 0 all others in order, on the others rank 0.
    peers: Vec<Peer>,
    /// Operations so far.
    sequence: u32,
    /// Why nothing can be exchanged any more.
    failed: Option<String>,
}

#[derive(Debug)]
struct Peer {
    rank: usize,
    connection: Connection,
}

impl World {
    /// The longest message of one rank in bytes: 16 MiB.
    pub const LONGEST_MESSAGE: usize = LONGEST_PAYLOAD;

    /// Meets the other ranks that a launcher started; `None` if no launcher did.
    ///
    /// Reads the variables of torchrun, `mpirun`, `mpiexec` and `srun`, or `RANK`, `WORLD_SIZE`,
    /// `MASTER_ADDR` and `MASTER_PORT` set by hand (the [crate docs](crate) have the table). Returns
    /// when all ranks have arrived.
    ///
    /// # Errors
    ///
    /// [`Error::Variable`] for a variable that is missing or does not fit; [`Error::Listen`] on rank
    /// 0 if its port is taken; [`Error::Missing`] on rank 0 and [`Error::HostNotFound`] or
    /// [`Error::Aborted`] on others if somebody does not come in time; [`Error::Conflict`] if two
    /// processes claim one rank or disagree about the number of ranks.
    pub fn from_environment() -> Result<Option<Self>> {
        let environment = Environment::of_process();
        let Some(placement) = Placement::find(&environment)? else { return Ok(None) };
        Self::meet(placement, environment.timeout()?, None).map(Some)
    }

    /// Listeners come with rank 0 if they are open already.
    pub(crate) fn meet(
        placement: Placement,
        timeout: Duration,
        listeners: Option<Vec<TcpListener>>,
    ) -> Result<Self> {
        let rank = placement.rank;
        let mut peers = Vec::new();
        if let Some(meeting) = &placement.meeting {
            let introduction =
                Introduction { job: meeting.job, world_size: rank_on_wire(placement.size) };
            if rank == 0 {
                let listeners = listeners.map_or_else(|| host::listen(meeting, timeout), Ok)?;
                let gathered = host::gather(&listeners, introduction, placement.size, timeout)?;
                let ranks = gathered.into_iter().zip(1..);
                peers.extend(ranks.map(|(connection, rank)| Peer { rank, connection }));
            } else {
                let patience = with_grace(timeout);
                let connection = join::join(meeting, introduction, rank, timeout, patience)?;
                peers.push(Peer { rank: 0, connection });
            }
        }
        let link = Mutex::new(Link { peers, sequence: 0, failed: None });
        Ok(Self { placement, timeout, link })
    }

    /// This rank's number, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.placement.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.placement.size
    }

    /// This rank's number among those of its host; it chooses a device or a GPU.
    ///
    /// It is 0 if `RANK` was set by hand for several hosts, without `LOCAL_RANK`.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.placement.local_rank
    }

    /// What started the ranks. With [`Launcher::Threads`] they all are in this process.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        self.placement.launcher
    }

    /// How long an operation may take: `RDMA4RS_TIMEOUT` in seconds, else 30 s.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Gives each rank's bytes to every rank, in order of rank. All ranks call it together.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] before anything is sent. [`Error::TimedOut`], [`Error::Disconnected`],
    /// [`Error::Left`], [`Error::Garbage`], [`Error::OutOfStep`] name the rank that did not do its
    /// part; [`Error::Aborted`] has another rank's reason. After any of these,
    /// [`Error::Unusable`].
    pub fn exchange(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.together(Kind::Exchange, rank_on_wire(self.rank()), bytes)
    }

    /// Gives the other rank's bytes to each of two ranks.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange); [`Error::WorldSize`] if there are not two ranks.
    pub fn exchange_with_peer(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        if self.size() != 2 {
            return Err(Error::WorldSize { needed: 2, found: self.size() });
        }
        let mut parts = self.exchange(bytes)?;
        Ok(parts.swap_remove(1 - self.rank()))
    }

    /// Gives the bytes of rank `from` to every rank; those of other ranks are ignored.
    ///
    /// All ranks call it together, and none returns before all have called.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange); [`Error::NoSuchRank`] before anything is sent.
    pub fn broadcast(&self, from: usize, bytes: &[u8]) -> Result<Vec<u8>> {
        if from >= self.size() {
            return Err(Error::NoSuchRank { rank: from, size: self.size() });
        }
        let bytes = if from == self.rank() { bytes } else { &[] };
        let mut parts = self.together(Kind::Broadcast, rank_on_wire(from), bytes)?;
        Ok(parts.swap_remove(0))
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    pub fn barrier(&self) -> Result<()> {
        self.together(Kind::Barrier, 0, &[]).map(drop)
    }

    /// Looks whether the other ranks are well; does not wait.
    ///
    /// For loops that wait for something else than the rendezvous. Rank 0 sees every rank, the others
    /// see rank 0, which passes on what it sees. A rank that has finished is well.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange), for a rank that died or gave up.
    pub fn check_peers(&self) -> Result<()> {
        let mut link = self.lock();
        link.usable()?;
        let seen = link.peers.iter_mut().try_for_each(|peer| peer.check("the work"));
        self.conclude(&mut link, seen)
    }

    /// Calls `poll` until it gives something, at most for the time-out. Spins, giving way to other
    /// threads; looks after the other ranks meanwhile.
    ///
    /// `what` is for the error message: "completion of the write".
    ///
    /// # Errors
    ///
    /// What `poll` returns; [`Error::WaitedTooLong`]; as [`check_peers`](Self::check_peers).
    pub fn wait_for<T, E: From<Error>>(
        &self,
        what: &str,
        mut poll: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
        let begin = Instant::now();
        let mut next_look = begin + BETWEEN_LOOKS;
        loop {
            if let Some(found) = poll()? {
                return Ok(found);
            }
            let now = Instant::now();
            if now >= begin + self.timeout {
                let (what, waited) = (what.to_owned(), self.timeout);
                return Err(Error::WaitedTooLong { what, waited }.into());
            }
            if now >= next_look {
                next_look = now + BETWEEN_LOOKS;
                if let Err(error) = self.check_peers() {
                    // What a peer did before it failed may have arrived since the last poll.
                    return poll()?.ok_or_else(|| error.into());
                }
            }
            thread::yield_now();
        }
    }

    /// Tells the other ranks that this one failed and why; their next operation returns it.
    ///
    /// [`launch`](crate::launch) and [`run`](crate::run) do it for a rank that returns an error or
    /// panics.
    pub fn give_up(&self, reason: &str) {
        let mut link = self.lock();
        if link.failed.is_none() {
            link.fail(self.rank(), reason);
        }
    }

    /// Prints one or more lines to standard output, each with this rank in front, not mixed with
    /// other ranks' lines. A closed output is ignored.
    pub fn say(&self, text: impl Display) {
        let lines = prefixed(self.rank(), &text.to_string());
        let mut output = io::stdout().lock();
        // One write, so that lines of ranks in other processes do not come in between.
        drop(output.write_all(lines.as_bytes()).and_then(|()| output.flush()));
    }

    fn together(&self, kind: Kind, detail: u32, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        if bytes.len() > Self::LONGEST_MESSAGE {
            let (length, limit) = (bytes.len(), Self::LONGEST_MESSAGE);
            return Err(Error::TooLong { length, limit });
        }
        let mut link = self.lock();
        link.usable()?;
        link.sequence = link.sequence.wrapping_add(1);
        let sequence = link.sequence;
        let own = Frame { kind, sequence, detail, payload: bytes.to_vec() };
        let done = if self.rank() == 0 {
            lead(&mut link.peers, own, self.timeout)
        } else {
            follow(&mut link.peers, &own, self.size(), self.timeout)
        };
        self.conclude(&mut link, done)
    }

    /// The first failure ends the rendezvous, and everybody hears of it.
    fn conclude<T>(&self, link: &mut Link, done: Result<T>) -> Result<T> {
        if let Err(error) = &done {
            match error {
                Error::Aborted { rank, reason } => link.fail(*rank, reason),
                other => link.fail(self.rank(), &chain(other)),
            }
        }
        done
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let link = self.link.get_mut().unwrap_or_else(PoisonError::into_inner);
        if link.failed.is_none() && !thread::panicking() {
            let goodbye = Frame::new(Kind::Goodbye, rank_on_wire(self.placement.rank), Vec::new());
            link.tell_all(&goodbye);
        }
    }
}

impl Link {
    fn usable(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(Error::Unusable { reason: reason.clone() }),
        }
    }

    fn fail(&mut self, rank: usize, reason: &str) {
        self.tell_all(&Frame::abort(rank_on_wire(rank), reason));
        self.failed = Some(reason.to_owned());
    }

    fn tell_all(&mut self, frame: &Frame) {
        for peer in &mut self.peers {
            // A last word: whoever is gone does not miss it.
            drop(peer.connection.send(frame, Instant::now() + LAST_WORD));
        }
    }
}

impl Peer {
    fn check(&mut self, during: &'static str) -> Result<()> {
        let rank = self.rank;
        match self.connection.look() {
            Ok(Some(frame)) if frame.kind == Kind::Abort => Err(aborted(frame)),
            Ok(_) => Ok(()),
            Err(broken) => Err(lost(rank, during, broken)),
        }
    }

    /// The peer's part in the operation that `own` belongs to, `None` while it has not come.
    fn part(&mut self, own: &Frame) -> Result<Option<Frame>> {
        let (rank, during) = (self.rank, own.kind.name());
        let Some(frame) = self.connection.receive().map_err(|broken| lost(rank, during, broken))?
        else {
            return Ok(None);
        };
        match frame.kind {
            Kind::Abort => Err(aborted(&frame)),
            Kind::Goodbye => Err(Error::Left { rank, during }),
            kind if kind == own.kind && frame.sequence == own.sequence => Ok(Some(frame)),
            Kind::Exchange | Kind::Broadcast | Kind::Barrier => {
                Err(Error::OutOfStep { rank, theirs: step(&frame), ours: step(own) })
            }
            Kind::Hello | Kind::Welcome | Kind::Start => Err(Error::Garbage {
                rank,
                during,
                problem: format!("a message of kind {} has no place here", frame.kind.name()),
            }),
        }
    }

    fn send(&mut self, frame: &Frame, deadline: Instant, waited: Duration) -> Result<()> {
        let (rank, during) = (self.rank, frame.kind.name());
        match self.connection.send(frame, deadline) {
            Ok(()) => Ok(()),
            Err(Broken::Slow) => Err(Error::TimedOut { silent: vec![rank], during, waited }),
            Err(broken) => {
                // It may have said why before it went.
                self.part(frame)?;
                Err(lost(rank, during, broken))
            }
        }
    }
}

/// Rank 0: collects every rank's part, then hands out what the operation gives.
fn lead(peers: &mut [Peer], own: Frame, timeout: Duration) -> Result<Vec<Vec<u8>>> {
    let (kind, sequence, detail) = (own.kind, own.sequence, own.detail);
    let during = kind.name();
    let deadline = Instant::now() + timeout;
    let mut parts: Vec<Option<Vec<u8>>> = peers.iter().map(|_| None).collect();
    let mut pause = Pause::new();
    while parts.iter().any(Option::is_none) {
        for (peer, part) in peers.iter_mut().zip(&mut parts) {
            if part.is_some() {
                // A rank that is waiting can die, too.
                peer.check(during)?;
            } else if let Some(frame) = peer.part(&own)? {
                let expected =
                    if kind == Kind::Exchange { rank_on_wire(peer.rank) } else { detail };
                if frame.detail != expected {
                    let (theirs, ours) = (step(&frame), step(&own));
                    return Err(Error::OutOfStep { rank: peer.rank, theirs, ours });
                }
                *part = Some(frame.payload);
            }
        }
        if Instant::now() >= deadline && parts.iter().any(Option::is_none) {
            let silent = peers.iter().zip(&parts).filter(|(_, part)| part.is_none());
            let silent = silent.map(|(peer, _)| peer.rank).collect();
            return Err(Error::TimedOut { silent, during, waited: timeout });
        }
        pause.rest();
    }
    let mut all = vec![own.payload];
    all.extend(parts.into_iter().flatten());
    let results = match kind {
        Kind::Exchange => all,
        Kind::Broadcast => vec![all.swap_remove(usize::try_from(detail).unwrap_or(0))],
        _ => vec![Vec::new()],
    };
    let frames = results.into_iter().zip(0..).map(|(payload, index)| {
        let detail = if kind == Kind::Exchange { index } else { detail };
        Frame { kind, sequence, detail, payload }
    });
    let frames: Vec<Frame> = frames.collect();
    let deadline = Instant::now() + timeout;
    for peer in peers {
        for frame in &frames {
            peer.send(frame, deadline, timeout)?;
        }
    }
    Ok(frames.into_iter().map(|frame| frame.payload).collect())
}

/// The others: hand their part to rank 0 and wait for its answer.
fn follow(peers: &mut [Peer], own: &Frame, size: usize, timeout: Duration) -> Result<Vec<Vec<u8>>> {
    let Some(leader) = peers.first_mut() else { return Ok(Vec::new()) };
    let waited = with_grace(timeout);
    let deadline = Instant::now() + waited;
    leader.send(own, deadline, waited)?;
    let count = if own.kind == Kind::Exchange { size } else { 1 };
    let mut results = Vec::new();
    let mut pause = Pause::new();
    while results.len() < count {
        if let Some(frame) = leader.part(own)? {
            results.push(frame.payload);
        } else if Instant::now() >= deadline {
            let during = own.kind.name();
            return Err(Error::TimedOut { silent: vec![0], during, waited });
        } else {
            pause.rest();
        }
    }
    Ok(results)
}

/// Rank 0 knows who is missing; the others give it time to say so.
fn with_grace(timeout: Duration) -> Duration {
    timeout + timeout.min(Duration::from_secs(5))
}

fn aborted(frame: &Frame) -> Error {
    Error::Aborted {
        rank: usize::try_from(frame.detail).unwrap_or(usize::MAX),
        reason: String::from_utf8_lossy(&frame.payload).into_owned(),
    }
}

fn lost(rank: usize, during: &'static str, broken: Broken) -> Error {
    match broken {
        Broken::Garbage(problem) => Error::Garbage { rank, during, problem: problem.to_string() },
        Broken::Gone(source) => Error::Disconnected { rank, during, source },
        Broken::Slow => {
            Error::Disconnected { rank, during, source: io::ErrorKind::TimedOut.into() }
        }
    }
}

/// An operation in words: "broadcast from rank 1 (operation 3)".
fn step(frame: &Frame) -> String {
    let (name, sequence) = (frame.kind.name(), frame.sequence);
    match frame.kind {
        Kind::Broadcast => {
            format!("{name} from rank {} (operation {sequence})", frame.detail)
        }
        _ => format!("{name} (operation {sequence})"),
    }
}

fn prefixed(rank: usize, text: &str) -> String {
    text.lines().map(|line| format!("[rank {rank}] {line}\n")).collect()
}

#[cfg(test)]
mod tests;
