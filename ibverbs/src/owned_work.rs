//! What comes back from requests that own their buffers.

use std::fmt;

use crate::{
    Completion, Error, FailedWork, FinishedWork, HostBuffer, Operation, OwnedBuffer, PostError,
};

/// Which request of an [`OwnedQueuePair`](crate::OwnedQueuePair) this is; never given twice while outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkId(pub(crate) u64);

impl WorkId {
    /// The bit that says that it is a receive.
    pub(crate) const RECEIVE: u64 = 1 << 63;

    /// The place in the list of what is outstanding.
    #[cfg(feature = "tokio")]
    pub(crate) fn place(self) -> usize {
        usize::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A request that has finished, well or not, with the buffer that it owned.
#[must_use = "the buffer of the request is in here"]
pub struct Finished<'a, B: HostBuffer> {
    /// Which request.
    pub id: WorkId,
    /// Its buffer.
    pub buffer: OwnedBuffer<'a, B>,
    pub(crate) completion: Completion,
}

impl<B: HostBuffer> Finished<'_, B> {
    /// Whether it was a receive.
    #[must_use]
    pub fn is_receive(&self) -> bool {
        self.id.0 & WorkId::RECEIVE != 0
    }

    /// What the request did, or why it failed.
    ///
    /// # Errors
    ///
    /// As for [`Completion::outcome`].
    pub fn outcome(&self) -> Result<FinishedWork<'_>, FailedWork> {
        self.completion.outcome()
    }

    /// The bytes that a receive received: the first of the buffer. None for any other request, nor if the peer
    /// wrote with an immediate, which takes a receive but not its buffer.
    ///
    /// # Errors
    ///
    /// As for [`Completion::outcome`].
    pub fn received(&self) -> Result<&[u8], FailedWork> {
        let work = self.completion.outcome()?;
        let length = if work.operation() == Operation::RECEIVE { work.byte_length() } else { 0 };
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(self.buffer.len());
        Ok(self.buffer.get(..length).unwrap_or_default())
    }
}

impl<B: HostBuffer> fmt::Debug for Finished<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished")
            .field("id", &self.id)
            .field("outcome", &self.completion)
            .field("buffer", &self.buffer)
            .finish()
    }
}

/// What [`OwnedQueuePair::close`](crate::OwnedQueuePair::close) gives back.
#[derive(Debug)]
#[must_use = "the buffers are in here"]
pub struct Closed<'a, B: HostBuffer> {
    /// What finished, most of it flushed.
    pub finished: Vec<Finished<'a, B>>,
    /// The buffers of requests that had not reported when the queue pair was destroyed. What is in those of receives
    /// and reads may be in part what came, in part what was there.
    pub unfinished: Vec<OwnedBuffer<'a, B>>,
}

/// A request that was not posted, with its buffer.
pub struct Rejected<'a, B: HostBuffer>(Box<(OwnedBuffer<'a, B>, RejectReason)>);

/// Why a request was not posted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// Nothing was called.
    #[error(transparent)]
    Check(#[from] Error),
    /// Posting was refused.
    #[error(transparent)]
    Post(#[from] PostError),
}

impl RejectReason {
    /// As many requests as there is room for are outstanding.
    pub(crate) fn full(what: &'static str, room: usize) -> Self {
        let room = room as u64;
        let remedy = Some("wait until one has finished, or make the queue pair with room for more");
        Self::Check(Error::OutOfRange { what, asked: room + 1, minimum: 0, maximum: room, remedy })
    }
}

impl<'a, B: HostBuffer> Rejected<'a, B> {
    pub(crate) fn new(buffer: OwnedBuffer<'a, B>, reason: RejectReason) -> Self {
        Self(Box::new((buffer, reason)))
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> &RejectReason {
        &self.0.1
    }

    /// The buffer, and why.
    #[must_use]
    pub fn into_parts(self) -> (OwnedBuffer<'a, B>, RejectReason) {
        *self.0
    }
}

impl<B: HostBuffer> fmt::Debug for Rejected<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rejected").field(self.reason()).finish()
    }
}

impl<B: HostBuffer> fmt::Display for Rejected<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            RejectReason::Check(error) => write!(f, "the request was not posted: {error}"),
            RejectReason::Post(error) => error.fmt(f),
        }
    }
}

impl<B: HostBuffer> std::error::Error for Rejected<'_, B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.reason().source()
    }
}
