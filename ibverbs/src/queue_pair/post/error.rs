//! What became of a batch that was not posted as a whole.

use std::{ffi::c_int, fmt, io};

use crate::{Error, Verb};

/// A batch that was not posted as a whole. The requests are still the caller's, as they were.
///
/// One pointer, so that the way of success carries no room for it.
#[derive(Debug)]
pub struct PostError(Box<Failure>);

#[derive(Debug)]
struct Failure {
    posted: usize,
    refused: Option<usize>,
    source: Error,
}

impl PostError {
    #[cold]
    pub(super) fn before(index: usize, source: Error) -> Self {
        Self(Box::new(Failure { posted: 0, refused: Some(index), source }))
    }

    /// A single request that was not posted.
    #[cold]
    pub(crate) fn alone(source: Error) -> Self {
        Self::before(0, source)
    }

    /// How many requests, from the first on, were posted: those will complete.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.0.posted
    }

    /// The first request that was not posted; `None` where the device refuses a batch without saying which.
    #[must_use]
    pub fn refused(&self) -> Option<usize> {
        self.0.refused
    }

    /// Why.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.source
    }

    /// Why, without the batch.
    #[must_use]
    pub fn into_error(self) -> Error {
        self.0.source
    }

    /// The errno of the refused verb, if one was called. `ENOMEM` means that the queue is full.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.0.source.errno()
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.refused {
            Some(index) => write!(f, "request {index} of the batch was refused")?,
            None => f.write_str("the batch was refused as a whole")?,
        }
        write!(f, " ({} before it were posted)", self.0.posted)
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.source)
    }
}

/// A classic call stops at the first bad request and points to it.
#[cold]
pub(crate) fn refused(
    verb: Verb,
    returned: c_int,
    bad: usize,
    first: usize,
    stride: usize,
) -> PostError {
    let index = bad.checked_sub(first).map(|distance| distance / stride);
    let source = match verb.status(returned) {
        Err(source) => source,
        Ok(()) => verb.error(io::Error::from_raw_os_error(libc::EIO)),
    };
    PostError(Box::new(Failure { posted: index.unwrap_or(0), refused: index, source }))
}

/// `ibv_wr_complete` posts all or nothing, `ibv_wr_post(3)`.
#[cold]
pub(super) fn refused_whole(returned: c_int) -> PostError {
    // No address lies before the first, so that no request is named.
    refused(Verb::new("ibv_wr_complete"), returned, 0, 1, 1)
}
