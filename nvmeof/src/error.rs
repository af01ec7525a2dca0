//! What can go wrong, with the numbers and, where there is one, the remedy.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    status::{CommandSet, Status},
    wire::{auth::FailureReason, rdma::RejectReason},
};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes from the target, or from a file, ended too early.
    #[error("{structure} has {found} bytes, at least {expected} are needed")]
    Short {
        /// What the bytes should have been.
        structure: &'static str,
        /// Bytes needed.
        expected: usize,
        /// Bytes there.
        found: usize,
    },
    /// Bytes from the target, or from a file, break the format.
    #[error("{structure}: {field} is {found:#x}, which {rule}")]
    Malformed {
        /// What the bytes should have been.
        structure: &'static str,
        /// The part that is wrong.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// A name is empty, too long, not text, or not ended.
    #[error("a qualified name has 1 to 223 bytes of text without control characters, not {bytes}")]
    InvalidName {
        /// Its length, or that of the field it stood in.
        bytes: usize,
    },
    /// An argument or a configured value is not what it should be; nothing was sent.
    #[error("{what} {given:?}: it {rule}")]
    InvalidArgument {
        /// What it is.
        what: &'static str,
        /// The value.
        given: String,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// A number is outside what the target or the namespace allows; nothing was sent.
    #[error("{what} is {asked}, and has to be {min} to {max}")]
    OutOfRange {
        /// What it is.
        what: &'static str,
        /// The value.
        asked: u64,
        /// The smallest that is allowed.
        min: u64,
        /// The largest that is allowed.
        max: u64,
    },
    /// The target, or this crate, lacks something.
    #[error("{what} is not supported: {reason}")]
    Unsupported {
        /// What was wanted.
        what: &'static str,
        /// Who lacks it, and what to do.
        reason: &'static str,
    },
    /// The target completed a command with an error.
    #[error("{operation} failed: {} ({status})", status.description(*set))]
    Command {
        /// The command.
        operation: &'static str,
        /// Which set of commands it belongs to.
        set: CommandSet,
        /// What the target said.
        status: Status,
    },
    /// The target refused to make a queue of a connection.
    #[error(
        "connecting queue {queue} failed: {} ({status}), the target complains about {complaint}",
        status.description(CommandSet::Fabrics)
    )]
    ConnectRefused {
        /// The queue.
        queue: u16,
        /// What the target said.
        status: Status,
        /// The parameter it complains about.
        complaint: &'static str,
    },
    /// The target refused the transport connection.
    #[error("the target rejected the connection of queue {queue}: {reason}")]
    Rejected {
        /// The queue.
        queue: u16,
        /// The reason that it gave.
        reason: RejectReason,
    },
    /// The transport failed.
    #[error("{operation} failed on queue {queue}")]
    Transport {
        /// What was tried.
        operation: &'static str,
        /// The queue.
        queue: u16,
        /// What the transport says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Memory of a GPU could not be registered, or could not be brought in order with its streams.
    #[error("{operation} failed")]
    Memory {
        /// What was tried.
        operation: &'static str,
        /// What the memory's owner says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The target broke the protocol; the queue is closed, since nothing it says can be trusted.
    #[error("the target broke the protocol on queue {queue}: {violation}")]
    Protocol {
        /// The queue.
        queue: u16,
        /// What it did.
        violation: Violation,
    },
    /// No answer came in time.
    #[error("{operation} got no answer within {after:?}")]
    TimedOut {
        /// What was tried.
        operation: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The connection was lost while this command was in flight; it had no lasting effect, or
    /// none that matters, and may be sent again.
    #[error("the connection was lost during {operation}")]
    ConnectionLost {
        /// The command.
        operation: &'static str,
        /// How it was lost.
        #[source]
        cause: Arc<Self>,
    },
    /// The connection was lost while this command was in flight, and nobody knows whether the
    /// target carried it out.
    ///
    /// The blocks it names hold the old content, the new, or some of each, and may still change
    /// until the target has given up the old connection. Write them again once that has no way to
    /// undo a later write.
    #[error("the connection was lost during {operation}, and its outcome is not known")]
    OutcomeUnknown {
        /// The command.
        operation: &'static str,
        /// How the connection was lost.
        #[source]
        cause: Arc<Self>,
    },
    /// The controller reported a fatal error, or did not become ready.
    #[error("the controller {condition}")]
    ControllerFailed {
        /// What it did, or did not do.
        condition: &'static str,
    },
    /// All attempts to reconnect failed, or reconnecting is switched off.
    #[error("the controller is not connected, and no attempt to reconnect is left")]
    Disconnected {
        /// How the connection was lost, or why the last attempt failed.
        #[source]
        cause: Arc<Self>,
    },
    /// Every place for a request is taken; poll, and submit again.
    #[error("all {places} places for requests of this queue are taken")]
    QueueFull {
        /// Requests that the queue holds.
        places: usize,
    },
    /// A queue was dropped with requests in flight, and the connection given up for the target not to reach their
    /// buffers any more; the cause of what others saw of that.
    #[error("queue {queue} was dropped with requests in flight, which ends the connection")]
    QueueDropped {
        /// The queue.
        queue: u16,
    },
    /// The controller was closed.
    #[error("the controller is closed")]
    Closed,
    /// Host and target did not prove to each other that they share the secret.
    #[error("authentication failed: {reason}")]
    Authentication {
        /// Why.
        reason: FailureReason,
    },
    /// The target ended the connection where it should have judged the host's answer. Some targets,
    /// the Linux kernel's among them, do so when the secret is wrong.
    #[error("the connection was lost during authentication; the secret may be wrong")]
    LostWhileAuthenticating {
        /// How it was lost.
        #[source]
        cause: Arc<Self>,
    },
    /// The target wants to know who the host is, and no secret was given.
    #[error("the target requires authentication; give the host's secret (DHHC-1:...)")]
    AuthenticationRequired,
    /// A secret is not in the form `DHHC-1:hh:base64:`.
    #[error("the secret is not valid: {reason}")]
    InvalidSecret {
        /// What is wrong; never any part of the secret.
        reason: &'static str,
    },
    /// After the connection was lost and made anew, the namespace is another one, or has another
    /// format: what was meant for the old one would do damage there. Open it again.
    #[error("namespace {namespace} is not the one that was opened, or is formatted anew")]
    NamespaceChanged {
        /// Its identifier.
        namespace: u32,
    },
    /// A name or address could not be resolved.
    #[error("{host} could not be resolved to an address")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver says.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("{} could not be read", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A configuration file is not valid JSON, or not of the known structure.
    #[error("the configuration is not valid")]
    Configuration {
        /// Where and why.
        source: serde_json::Error,
    },
    /// The system has no random bytes.
    #[error("no random bytes could be had")]
    Random {
        /// Why.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("the controller's thread could not be started")]
    Thread {
        /// Why.
        source: io::Error,
    },
}

/// An error and all that caused it, as the log has them: messages do not repeat their cause.
pub(crate) struct Whole<'e>(pub(crate) &'e Error);

impl fmt::Display for Whole<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first: &dyn std::error::Error = self.0;
        write!(f, "{first}")?;
        std::iter::successors(first.source(), |error| error.source())
            .try_for_each(|cause| write!(f, ": {cause}"))
    }
}

/// How a target broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A completion for a command that is not in flight: never sent, or completed before.
    #[error("a completion names command {command_id:#06x}, which is not in flight")]
    UnknownCommand {
        /// The identifier in the completion.
        command_id: u16,
    },
    /// A response capsule of the wrong size.
    #[error("a response capsule has {bytes} bytes, not 16")]
    CapsuleSize {
        /// Its size.
        bytes: u32,
    },
    /// The submission queue head is outside the queue.
    #[error("the submission queue head is {head}, in a queue of {entries} entries")]
    QueueHead {
        /// Where the target says it is.
        head: u16,
        /// Entries of the queue.
        entries: u16,
    },
    /// The target named another controller for an I/O queue than for the admin queue.
    #[error("a queue was connected to controller {found}, not {expected}")]
    WrongController {
        /// The one that the admin queue has.
        expected: u16,
        /// The one that the I/O queue got.
        found: u16,
    },
}

impl Error {
    /// The target's status, if a command completed with one.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Command { status, .. } | Self::ConnectRefused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the connection is at fault, so that a new one may help.
    #[must_use]
    pub const fn is_connection(&self) -> bool {
        matches!(
            self,
            Self::Transport { .. }
                | Self::Protocol { .. }
                | Self::TimedOut { .. }
                | Self::ConnectionLost { .. }
                | Self::OutcomeUnknown { .. }
                | Self::ControllerFailed { .. }
                | Self::LostWhileAuthenticating { .. }
                | Self::Disconnected { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_the_whole_chain_of_causes() {
        let source = "the target has ended the connection".into();
        let cause = Arc::new(Error::Transport { operation: "reading", queue: 2, source });
        let error = Error::ConnectionLost { operation: "flush", cause };
        assert_eq!(
            Whole(&error).to_string(),
            "the connection was lost during flush: reading failed on queue 2: the target has ended the connection"
        );
    }
}
