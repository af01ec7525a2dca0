//! Waiting without sleeping, and never for ever.

use std::{
    thread,
    time::{Duration, Instant},
};

use example_support::{AnyError, World};

/// Rounds before the first time that a loop gives way: what is nearly there need not wait for that call.
const SPINS: u64 = 8;
/// How often a loop that finds nothing looks at the clock and after the other rank, in rounds.
const ROUNDS: u64 = 1024;
/// The least time between looks after the other rank, each of which enters the kernel.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Watches over a loop that polls: gives way to others where that helps, and ends it when nothing moves.
pub(crate) struct Watch<'w> {
    world: &'w World,
    what: &'static str,
    yields: bool,
    /// Rounds without progress.
    idle: u64,
    /// Since about when there is no progress.
    since: Instant,
    next_look: Instant,
}

impl<'w> Watch<'w> {
    /// Watches a loop that waits for `what`. Where the device needs the processor that the loop runs on, it `yields`.
    pub(crate) fn new(world: &'w World, what: &'static str, yields: bool) -> Self {
        let now = Instant::now();
        Self { world, what, yields, idle: 0, since: now, next_look: now + BETWEEN_LOOKS }
    }

    /// Something came.
    #[inline(always)]
    pub(crate) fn progress(&mut self) {
        self.idle = 0;
    }

    /// Nothing came. After the time-out, or if the other rank died, it is an error.
    #[inline(always)]
    pub(crate) fn idle(&mut self) -> Result<(), AnyError> {
        self.idle += 1;
        if self.yields && self.idle > SPINS {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        if self.idle.is_multiple_of(ROUNDS) { self.look() } else { Ok(()) }
    }

    /// For how long nothing came, give or take some rounds.
    pub(crate) fn silence(&self) -> Duration {
        if self.idle <= ROUNDS { Duration::ZERO } else { self.since.elapsed() }
    }

    #[cold]
    fn look(&mut self) -> Result<(), AnyError> {
        let now = Instant::now();
        if self.idle == ROUNDS {
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
