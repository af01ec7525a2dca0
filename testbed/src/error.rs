//! What can go wrong, told so that a user knows what to do next.

use std::io;
use std::process::ExitStatus;

/// The result of everything in this program.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// A step that failed: what it was, the numbers, and the remedy where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The operating system refused.
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },

    /// A program of the host ended with a failure; `tail` is the end of what it printed.
    #[error("`{command}` ended with {status}\n{tail}")]
    Command { command: String, status: ExitStatus, tail: String },

    /// This machine cannot do it; the text says what it needs.
    #[error("{0}")]
    Host(String),

    /// The guest never came up; `log` is the end of its console.
    #[error("{what}\n---- the guest's log ends with ----\n{log}\n----")]
    Boot { what: String, log: String },

    /// The guest could not be set up, died, or fell silent; `log` is the end of its console.
    #[error("{what}\n---- the guest's log ends with ----\n{log}\n----")]
    Guest { what: String, log: String },

    /// The two ends of the channel disagree.
    #[error("the channel to the guest carried {0}")]
    Channel(String),

    /// A file or a program's output has not the form it should have.
    #[error("{what} is not what was expected: {found}")]
    Format { what: String, found: String },
}

/// Adds what was being done to an error of the operating system.
pub(crate) trait During<T> {
    /// Turns the error into [`Error::Io`]; `what` completes the sentence "cannot …".
    fn during(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> During<T> for std::result::Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source: source.into() })
    }
}

/// An error and all its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}
