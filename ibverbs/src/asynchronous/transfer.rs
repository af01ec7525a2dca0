//! The future of a request that owns its buffer.

use std::{
    borrow::Cow,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::state::{Shared, Ticket};
use crate::{Error, Finished, HostBuffer, Result, Transport, WorkId};

/// A request that was posted; finishes with its completion and its buffer.
///
/// Dropping it does not cancel the request, and frees nothing: the buffer stays with the queue pair, and what became of
/// it can be had from [`AsyncQueuePair::claim`](crate::AsyncQueuePair::claim).
#[must_use = "the request is posted; its buffer comes back from here"]
pub struct Transfer<T: Transport, B: HostBuffer> {
    shared: Arc<Shared<T, B>>,
    id: WorkId,
    ticket: Ticket,
    handed_out: bool,
}

impl<T: Transport, B: HostBuffer> Transfer<T, B> {
    pub(super) fn new(shared: Arc<Shared<T, B>>, id: WorkId, ticket: Ticket) -> Self {
        Self { shared, id, ticket, handed_out: false }
    }

    /// Which request.
    #[must_use]
    pub fn id(&self) -> WorkId {
        self.id
    }
}

impl<T: Transport, B: HostBuffer> Future for Transfer<T, B> {
    /// What the request did or why it failed is in there too: [`Finished::outcome`]. An error here says that nothing
    /// of the queue pair finishes any more.
    type Output = Result<Finished<'static, B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.handed_out {
            return Poll::Ready(Err(HANDED_OUT));
        }
        let (outcome, replaced) = self.shared.state().poll_finished(self.ticket, context);
        self.handed_out = outcome.is_ready();
        drop(replaced);
        outcome
    }
}

const HANDED_OUT: Error = Error::Invalid {
    what: Cow::Borrowed("the transfer was awaited to its end before"),
    remedy: "await it once",
};

impl<T: Transport, B: HostBuffer> Drop for Transfer<T, B> {
    fn drop(&mut self) {
        if !self.handed_out {
            let left = self.shared.state().give_up(self.id, self.ticket);
            drop(left);
        }
    }
}

impl<T: Transport, B: HostBuffer> fmt::Debug for Transfer<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("id", &self.id).finish_non_exhaustive()
    }
}
