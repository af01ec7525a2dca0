//! What can go wrong beyond what plain verbs have.

use std::fmt;

use ibverbs::{FailedWork, Verb};

use crate::{EfaCapabilities, Failure};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a call of this crate was refused for.
///
/// Messages do not repeat their cause; print the chain of [`source`](std::error::Error::source)s.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb was refused, a library is missing, or a number cannot be.
    #[error(transparent)]
    Verbs(#[from] ibverbs::Error),

    /// The device is there, but it is none of EFA.
    #[error("{device} is not an EFA device: choose one of `efa::devices()`")]
    NotEfa {
        /// The device's name.
        device: String,
    },

    /// The device lacks something; nothing was called.
    #[error("{device} does not have {missing}: {}", missing.remedy())]
    MissingCapability {
        /// The device's name.
        device: String,
        /// What it lacks.
        missing: EfaCapabilities,
    },

    /// A work request failed.
    #[error(transparent)]
    Work(#[from] Failure),
}

impl Error {
    /// The errno of the refused verb, if one was called.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Verbs(error) => error.errno(),
            _ => None,
        }
    }
}

impl From<FailedWork> for Error {
    fn from(work: FailedWork) -> Self {
        Self::Work(work.into())
    }
}

impl From<&'static rdma_sys::LoadError> for Error {
    fn from(error: &'static rdma_sys::LoadError) -> Self {
        Self::Verbs(error.into())
    }
}

/// Gives the refusal of a verb a remedy that only this crate knows; others pass as they are.
pub(crate) fn with_remedy(error: ibverbs::Error, remedy: impl fmt::Display) -> ibverbs::Error {
    match error {
        ibverbs::Error::Verb { verb, source, .. } => {
            ibverbs::Error::Verb { verb, remedy: Some(remedy.to_string().into()), source }
        }
        other => other,
    }
}

/// A function of libefa by its C name, together with its [`Verb`].
macro_rules! efa_verb {
    ($library:expr, $name:ident) => {{
        let verb = ibverbs::Verb::new(stringify!($name));
        $crate::error::found(verb, $library.efa().map(|table| table.$name))
    }};
}
pub(crate) use efa_verb;

/// A function that a table may have, if the table itself could be loaded.
pub(crate) fn found<F>(
    verb: Verb,
    function: Result<Option<F>, &'static rdma_sys::LoadError>,
) -> Result<(Verb, F)> {
    Ok((verb, verb.find(function?)?))
}
