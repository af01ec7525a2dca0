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
    environment::Environment,
    frame::{Introduction, Kind, LONGEST_PAYLOAD},
    host,
    host::Doors,
    join,
    join::rank_on_wire,
    link::Link,
    notice::{FOR_ARRIVAL, FOR_WORK, Notice},
    placement::Placement,
};

/// One rank's view of its job: who it is, and a way to reach the others.
///
/// Operations that all ranks call together ([`exchange`](Self::exchange),
/// [`broadcast`](Self::broadcast), [`barrier`](Self::barrier)) go through rank 0 over TCP. They are
/// for addresses and keys, not for data. Each ends within the time-out (30 s, or the seconds in
/// `RDMA4RS_TIMEOUT`), and the first failure ends the rendezvous for all ranks, with the reason. A wait that takes
/// longer than a few seconds says on standard error, once, what it is for.
/// Nothing is encrypted and nobody proves who they are: for networks that one trusts.
///
/// Dropping a world tells the others that this rank is done and well.
#[derive(Debug)]
pub struct World {
    placement: Placement,
    timeout: Duration,
    link: Mutex<Link>,
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
    /// [`Error::Variable`] for a variable that is missing or does not fit; [`Error::UnknownHost`], at once, if the host
    /// of rank 0 has no address; [`Error::Listen`] on rank 0 if its port is taken; [`Error::Missing`] on rank 0 and [`Error::HostNotFound`] or
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
        Self::meet_within(placement, timeout, timeout, listeners)
    }

    /// The others may take `arrival` to come.
    pub(crate) fn meet_within(
        placement: Placement,
        timeout: Duration,
        arrival: Duration,
        listeners: Option<Vec<TcpListener>>,
    ) -> Result<Self> {
        let (rank, size) = (placement.rank, placement.size);
        let mut connections = Vec::new();
        if let Some(meeting) = &placement.meeting {
            let introduction = Introduction { job: meeting.job, world_size: rank_on_wire(size) };
            if rank == 0 {
                let doors = listeners
                    .map(Doors::open)
                    .map_or_else(|| host::listen(meeting, timeout), Ok)?;
                // A server that was started by hand says so itself, before it waits.
                let notice = match placement.launcher {
                    Launcher::ByHand => Notice::never(rank),
                    _ => Notice::after(rank, FOR_ARRIVAL),
                };
                connections = host::gather(&doors, meeting, introduction, size, arrival, notice)?;
            } else {
                connections.push(join::join(meeting, introduction, rank, arrival)?);
            }
        }
        let link = Mutex::new(Link::new(rank, size, timeout, connections));
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
        self.together(Kind::Exchange, rank_on_wire(self.rank()), bytes, None)
    }

    /// [`exchange`](Self::exchange) that waits longer, or less long, than the time-out: the others may do long work
    /// first. One that dies meanwhile is noticed at once.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    pub fn exchange_within(&self, patience: Duration, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.together(Kind::Exchange, rank_on_wire(self.rank()), bytes, Some(patience))
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
        let mut parts = self.together(Kind::Broadcast, rank_on_wire(from), bytes, None)?;
        Ok(parts.swap_remove(0))
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    pub fn barrier(&self) -> Result<()> {
        self.together(Kind::Barrier, 0, &[], None).map(drop)
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
        self.lock().check()
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
        let mut notice = Notice::after(self.rank(), FOR_WORK);
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
                notice.waiting_for(|| what.to_owned());
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
        self.lock().give_up(reason);
    }

    /// Prints one or more lines to standard output, each with this rank in front, not mixed with
    /// other ranks' lines. A closed output is ignored.
    pub fn say(&self, text: impl Display) {
        let lines = prefixed(self.rank(), &text.to_string());
        let mut output = io::stdout().lock();
        // One write, so that lines of ranks in other processes do not come in between.
        drop(output.write_all(lines.as_bytes()).and_then(|()| output.flush()));
    }

    fn together(
        &self,
        kind: Kind,
        detail: u32,
        bytes: &[u8],
        patience: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>> {
        if bytes.len() > Self::LONGEST_MESSAGE {
            let (length, limit) = (bytes.len(), Self::LONGEST_MESSAGE);
            return Err(Error::TooLong { length, limit });
        }
        self.lock().together(kind, detail, bytes, patience)
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.link.get_mut().unwrap_or_else(PoisonError::into_inner).say_goodbye();
        }
    }
}

/// Lines with a rank in front.
pub(crate) fn prefixed(rank: usize, text: &str) -> String {
    text.lines().map(|line| format!("[rank {rank}] {line}\n")).collect()
}

#[cfg(test)]
mod tests;
