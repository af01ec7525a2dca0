//! Waiting, and never for ever.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

use example_support::{AnyError, World};

use super::bell::{Bell, Queues};

/// How often a loop that stays awake looks at the clock and after the other rank, in rounds without progress.
const ROUNDS: u64 = 1024;
/// The least time between looks after the other rank, each of which enters the kernel.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// What a loop does when it finds nothing.
#[derive(Clone, Copy)]
pub(crate) enum Waiting<'w> {
    /// It looks again.
    Spinning,
    /// It gives the processor away first, since the device needs it.
    Yielding,
    /// It sleeps until a queue has news.
    Sleeping(&'w Bell<'w, 'w>, Queues),
}

/// Watches over a loop that polls: lets it wait, and ends it when nothing moves.
pub(crate) struct Watch<'w> {
    world: &'w World,
    what: &'static str,
    waiting: Waiting<'w>,
    /// From one look at the clock to the next.
    rounds: u64,
    /// Rounds without progress.
    idle: u64,
    /// Since about when there is no progress.
    since: Instant,
    next_look: Instant,
}

impl<'w> Watch<'w> {
    /// Watches a loop that waits for `what`.
    pub(crate) fn new(world: &'w World, what: &'static str, waiting: Waiting<'w>) -> Self {
        let now = Instant::now();
        let rounds = if matches!(waiting, Waiting::Sleeping(..)) { 1 } else { ROUNDS };
        Self { world, what, waiting, rounds, idle: 0, since: now, next_look: now + BETWEEN_LOOKS }
    }

    /// Something came.
    #[inline(always)]
    pub(crate) fn progress(&mut self) {
        self.idle = 0;
    }

    /// Nothing came. After the time-out, or if the other rank died, it is an error.
    #[inline(always)]
    pub(crate) fn idle(&mut self) -> Result<(), AnyError> {
        match self.waiting {
            Waiting::Spinning => hint::spin_loop(),
            Waiting::Yielding => thread::yield_now(),
            Waiting::Sleeping(bell, queues) => {
                return if bell.rest(queues)? { self.count() } else { Ok(()) };
            }
        }
        self.count()
    }

    /// As [`idle`](Self::idle), where what is waited for raises no event.
    pub(crate) fn idle_awake(&mut self) -> Result<(), AnyError> {
        match self.waiting {
            Waiting::Spinning => hint::spin_loop(),
            Waiting::Yielding | Waiting::Sleeping(..) => thread::yield_now(),
        }
        self.count()
    }

    #[inline(always)]
    fn count(&mut self) -> Result<(), AnyError> {
        self.idle += 1;
        if self.idle.is_multiple_of(self.rounds) { self.look() } else { Ok(()) }
    }

    /// For how long nothing came, give or take some rounds.
    pub(crate) fn silence(&self) -> Duration {
        if self.idle <= self.rounds { Duration::ZERO } else { self.since.elapsed() }
    }

    #[cold]
    fn look(&mut self) -> Result<(), AnyError> {
        let now = Instant::now();
        if self.idle == self.rounds {
            self.since = now;
        }
        let limit = self.world.timeout();
        if now.duration_since(self.since) > limit {
            return Err(format!(
                "nothing moved for {} s while waiting for {}: is the other side stuck, or the network lossy? \
                 RDMA4RS_TIMEOUT sets the seconds",
                limit.as_secs_f64(),
                self.what
            )
            .into());
        }
        if now >= self.next_look {
            self.next_look = now + BETWEEN_LOOKS;
            self.world.check_peers()?;
        }
        Ok(())
    }
}
