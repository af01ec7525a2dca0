//! Completions as futures, on tokio.
//!
//! The laws of this module:
//!
//! 1. What a future has posted it does not own: dropping it drops the interest, and the buffer stays with the queue
//!    pair until its completion comes or the queue pair is destroyed.
//! 2. No completion is lost with a future: what nobody waits for any more is kept to be claimed.
//! 3. Nothing needs to be awaited to be freed: dropping the queue pair destroys it and frees its buffers at once.
//! 4. No lock is held across an await, nor while a waker, or the destructor of one or of a buffer, runs.

#![expect(unsafe_code, reason = "lets the runtime watch a descriptor")]

mod queue;
mod queue_pair;
mod state;
mod transfer;

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
};

use crate::{CompletionChannel, Error, Result, Verb};

pub use queue::AsyncCompletionQueue;
pub use queue_pair::AsyncQueuePair;
pub use transfer::Transfer;

/// A channel that the runtime watches. It may belong to no other queue and no other runtime.
type Watched = AsyncFd<Arc<CompletionChannel<'static>>>;

/// Lets the runtime of the calling task watch a channel.
fn watch(channel: &Arc<CompletionChannel<'static>>) -> Result<Watched> {
    // Without a runtime tokio panics.
    if Handle::try_current().is_err() {
        return Err(Error::Invalid {
            what: "there is no tokio runtime".into(),
            remedy: "call this from a task, or within `runtime.enter()`",
        });
    }
    let channel = Arc::clone(channel);
    // SAFETY: the descriptor of a channel is constant, and open until the channel is dropped, which the
    // result holds.
    let watched = unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) };
    watched.map_err(|refused| runtime_error(refused.into_parts().1))
}

/// Waits until the channel can be read, and takes all its events: the runtime tells of each only once. How many it took.
async fn sleep(channel: &Watched) -> Result<usize> {
    let mut ready = channel.readable().await.map_err(runtime_error)?;
    let taken = channel.get_ref().drain_events()?;
    ready.clear_ready();
    Ok(taken)
}

/// Wakes everybody, also after a waker that panics: what one task brings along must not leave the others asleep.
fn wake(wakers: impl IntoIterator<Item = Waker>) {
    let mut wakers = wakers.into_iter();
    while catch_unwind(AssertUnwindSafe(|| wakers.by_ref().for_each(Waker::wake))).is_err() {
        log::warn!("the waker of a task panicked");
    }
}

/// The error of a descriptor that the runtime does not take or has given up.
fn runtime_error(source: io::Error) -> Error {
    Verb::new("epoll_ctl").error(source)
}
