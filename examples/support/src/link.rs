//! The streams of one rank, and the operations that all ranks do together over them.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    connection::{Broken, Connection, Pause},
    error::{chain, ranks},
    frame::{Frame, Kind},
    join::rank_on_wire,
    notice::{FOR_WORK, Notice},
};

/// How long a last word to all peers may take.
const LAST_WORD: Duration = Duration::from_secs(1);

/// One rank's streams: those to all others on rank 0, the one to rank 0 on the others.
#[derive(Debug)]
pub(crate) struct Link {
    rank: usize,
    size: usize,
    /// How long an operation may take.
    timeout: Duration,
    /// In order of rank.
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

impl Link {
    /// `connections` are those of ranks `1..` on rank 0, that of rank 0 on the others.
    pub(crate) fn new(
        rank: usize,
        size: usize,
        timeout: Duration,
        connections: Vec<Connection>,
    ) -> Self {
        let first = usize::from(rank == 0);
        let peers = (first..).zip(connections).map(|(rank, connection)| Peer { rank, connection });
        Self { rank, size, timeout, peers: peers.collect(), sequence: 0, failed: None }
    }

    /// Does this rank's part of an operation, within the time-out if no other one is given; gives what the
    /// operation has for it.
    pub(crate) fn together(
        &mut self,
        kind: Kind,
        detail: u32,
        bytes: &[u8],
        patience: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>> {
        self.usable()?;
        let timeout = patience.unwrap_or(self.timeout);
        // Who has patience knows that it may take long.
        let silence = patience.map_or(FOR_WORK, |_| self.timeout);
        let mut notice = Notice::after(self.rank, silence);
        self.sequence = self.sequence.wrapping_add(1);
        let own = Frame { kind, sequence: self.sequence, detail, payload: bytes.to_vec() };
        let done = if self.rank == 0 {
            lead(&mut self.peers, own, timeout, &mut notice)
        } else {
            follow(&mut self.peers, &own, self.size, timeout, &mut notice)
        };
        self.conclude(done)
    }

    /// Looks whether the peers are well; does not wait.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.usable()?;
        let seen = self.peers.iter_mut().try_for_each(|peer| peer.check("the work"));
        self.conclude(seen)
    }

    /// Tells the others why this rank fails, unless they were told something before.
    pub(crate) fn give_up(&mut self, reason: &str) {
        if self.failed.is_none() {
            self.fail(self.rank, reason);
        }
    }

    /// Tells the others that this rank is done and well, unless they know better.
    pub(crate) fn say_goodbye(&mut self) {
        if self.failed.is_none() {
            self.tell_all(&Frame::new(Kind::Goodbye, rank_on_wire(self.rank), Vec::new()));
        }
    }

    /// Sends to all peers until none takes any more.
    #[cfg(test)]
    pub(crate) fn fill(&mut self) {
        let frame =
            Frame { kind: Kind::Exchange, sequence: 1, detail: 0, payload: vec![0; 1 << 20] };
        for peer in &mut self.peers {
            while peer.connection.send(&frame, Instant::now()).is_ok() {}
        }
    }

    fn usable(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(Error::Unusable { reason: reason.clone() }),
        }
    }

    /// The first failure ends the rendezvous, and everybody hears of it.
    fn conclude<T>(&mut self, done: Result<T>) -> Result<T> {
        if let Err(error) = &done {
            match error {
                Error::Aborted { rank, reason } => self.fail(*rank, reason),
                other => self.fail(self.rank, &chain(other)),
            }
        }
        done
    }

    fn fail(&mut self, rank: usize, reason: &str) {
        self.tell_all(&Frame::abort(rank_on_wire(rank), reason));
        self.failed = Some(reason.to_owned());
    }

    fn tell_all(&mut self, frame: &Frame) {
        let deadline = Instant::now() + LAST_WORD;
        for peer in &mut self.peers {
            // A last word: whoever is gone does not miss it.
            drop(peer.connection.send(frame, deadline));
        }
    }
}

impl Peer {
    fn check(&mut self, during: &'static str) -> Result<()> {
        let rank = self.rank;
        let lost = |broken| lost(rank, during, broken);
        let next = match self.connection.look().map_err(lost)? {
            // A rank that is done may go.
            None => return Ok(()),
            Some(frame) if frame.kind == Kind::Goodbye => return Ok(()),
            Some(frame) if frame.kind == Kind::Abort => Some(frame),
            // It did its part of an operation that this rank comes to later, and waits for the answer.
            Some(_) => self.connection.look_behind().map_err(lost)?,
        };
        match next {
            Some(frame) if frame.kind == Kind::Abort => Err(aborted(frame)),
            _ => Ok(()),
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

    fn send(
        &mut self,
        frame: &Frame,
        deadline: Instant,
        waited: Duration,
        notice: &mut Notice,
    ) -> Result<()> {
        let (rank, during) = (self.rank, frame.kind.name());
        let waiting =
            || notice.waiting_for(|| format!("rank {rank} to take its bytes in {during}"));
        match self.connection.send_while(frame, deadline, waiting) {
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
fn lead(
    peers: &mut [Peer],
    own: Frame,
    timeout: Duration,
    notice: &mut Notice,
) -> Result<Vec<Vec<u8>>> {
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
        let silent = || -> Vec<usize> {
            let silent = peers.iter().zip(&parts).filter(|(_, part)| part.is_none());
            silent.map(|(peer, _)| peer.rank).collect()
        };
        if parts.iter().any(Option::is_none) {
            if Instant::now() >= deadline {
                return Err(Error::TimedOut { silent: silent(), during, waited: timeout });
            }
            notice.waiting_for(|| format!("{} in {during}", ranks(&silent())));
        }
        let silent = peers.iter().zip(&parts).find(|(_, part)| part.is_none());
        if let Some((peer, _)) = silent {
            pause.rest_until(&peer.connection);
        }
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
            peer.send(frame, deadline, timeout, notice)?;
        }
    }
    Ok(frames.into_iter().map(|frame| frame.payload).collect())
}

/// The others: hand their part to rank 0 and wait for its answer.
fn follow(
    peers: &mut [Peer],
    own: &Frame,
    size: usize,
    timeout: Duration,
    notice: &mut Notice,
) -> Result<Vec<Vec<u8>>> {
    let Some(leader) = peers.first_mut() else { return Ok(Vec::new()) };
    let waited = with_grace(timeout);
    let deadline = Instant::now() + waited;
    leader.send(own, deadline, waited, notice)?;
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
            notice.waiting_for(|| format!("rank 0 in {}", own.kind.name()));
            pause.rest_until(&leader.connection);
        }
    }
    Ok(results)
}

/// Rank 0 knows who is missing; the others give it time to say so.
pub(crate) fn with_grace(timeout: Duration) -> Duration {
    timeout + timeout.min(Duration::from_secs(5))
}

/// What a peer said before it went.
pub(crate) fn aborted(frame: &Frame) -> Error {
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
