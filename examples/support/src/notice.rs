//! What a rank says while it waits for longer than one would expect.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use crate::world::prefixed;

/// Until then a wait for others to come says nothing.
pub(crate) const FOR_ARRIVAL: Duration = Duration::from_secs(2);
/// Until then a wait within the work says nothing: ranks do other things between their operations.
pub(crate) const FOR_WORK: Duration = Duration::from_secs(5);

/// Says what a wait is for, once, on standard error.
#[derive(Debug)]
pub(crate) struct Notice {
    rank: usize,
    /// `None` once it was said, or if it never will be.
    due: Option<Instant>,
}

impl Notice {
    /// One for a wait that begins now and may be silent for a while.
    pub(crate) fn after(rank: usize, silence: Duration) -> Self {
        Self { rank, due: Some(Instant::now() + silence) }
    }

    /// One that says nothing, for waits that somebody else announces.
    pub(crate) fn never(rank: usize) -> Self {
        Self { rank, due: None }
    }

    /// Called again and again while waiting; `what` is made up once.
    pub(crate) fn waiting_for(&mut self, what: impl FnOnce() -> String) {
        if self.due.is_some_and(|due| Instant::now() >= due) {
            self.due = None;
            let line = prefixed(self.rank, &format!("waiting for {}", what()));
            // One write, so that lines of other ranks do not come in between. A closed output is no reason to end.
            drop(io::stderr().lock().write_all(line.as_bytes()));
        }
    }
}
