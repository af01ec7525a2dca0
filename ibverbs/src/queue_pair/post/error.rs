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
    /// How many requests the batch has, where that is at hand without making posting dearer.
    total: Option<usize>,
    error: Error,
}

impl PostError {
    /// None of a batch was posted, because of the request at `index`.
    #[cold]
    pub(super) fn before(index: usize, total: Option<usize>, error: Error) -> Self {
        Self(Box::new(Failure { posted: 0, refused: Some(index), total, error }))
    }

    /// A single request that was not posted.
    #[cold]
    pub(crate) fn alone(error: Error) -> Self {
        Self::before(0, Some(1), error)
    }

    /// How many requests, from the first on, were posted: those will complete.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.0.posted
    }

    /// The index of the first request that was not posted; `None` where the device refuses a batch without saying which.
    #[must_use]
    pub fn refused(&self) -> Option<usize> {
        self.0.refused
    }

    /// Why.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.error
    }

    /// Why, without the batch.
    #[must_use]
    pub fn into_error(self) -> Error {
        self.0.error
    }

    /// The errno of the refused verb, if one was called. `ENOMEM` means that the queue is full.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.0.error.errno()
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { posted, refused, total, error } = &*self.0;
        match refused {
            Some(index) => write!(f, "request {}", index + 1)?,
            None => f.write_str("nothing was posted")?,
        }
        if let Some(total) = total {
            write!(f, " of {total}")?;
        }
        if *posted > 0 {
            f.write_str(" (those before it were posted)")?;
        }
        write!(f, ": {error}")
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.error.source()
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
    let error = match verb.status(returned) {
        Err(error) => error,
        Ok(()) => verb.error(io::Error::from_raw_os_error(libc::EIO)),
    };
    let posted = index.unwrap_or(0);
    PostError(Box::new(Failure { posted, refused: index, total: None, error }))
}

/// `ibv_wr_complete` posts all or nothing, `ibv_wr_post(3)`.
#[cold]
pub(super) fn refused_whole(returned: c_int) -> PostError {
    // No address lies before the first, so that no request is named.
    refused(Verb::new("ibv_wr_complete"), returned, 0, 1, 1)
}
