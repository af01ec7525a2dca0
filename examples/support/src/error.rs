//! What can go wrong between ranks, in words that name the rank, the variable, or the address.

use std::{io, net::SocketAddr, time::Duration};

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a rank's own code, as [`launch`](crate::launch) takes it.
pub type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Why ranks could not meet, talk, or finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An environment variable is missing, malformed, or does not fit another one.
    #[error("{name}{}: {problem}", shown(value.as_deref()))]
    Variable {
        /// The variable.
        name: String,
        /// Its value; `None` if it is not set.
        value: Option<String>,
        /// What is wrong with it, and what to do.
        problem: String,
    },

    /// The program needs another number of ranks than there are.
    #[error("this program needs {needed} ranks, there are {found}: start it with {needed}")]
    WorldSize {
        /// Ranks the program is written for.
        needed: usize,
        /// Ranks that were started.
        found: usize,
    },

    /// Rank 0 could not listen for the others.
    #[error(
        "rank 0 cannot listen at {address}: set MASTER_PORT to a free port, \
         and MASTER_ADDR to an address of the host of rank 0"
    )]
    Listen {
        /// Where it tried last.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },

    /// The host of rank 0 has no address.
    #[error(
        "the host {host} of rank 0 is not known here: check its name (`getent hosts {host}` looks it up), \
         or give its address instead"
    )]
    UnknownHost {
        /// Its name, from `MASTER_ADDR`, the command line, or the launcher.
        host: String,
        /// The resolver's words.
        #[source]
        source: io::Error,
    },

    /// Some ranks did not arrive at the rendezvous.
    #[error(
        "{} of {size} did not arrive within {} at {address}{heard}: look at their output, and whether a firewall \
         lets them through (RDMA4RS_TIMEOUT sets the limit in seconds)",
        ranks(missing), seconds(*waited)
    )]
    Missing {
        /// The ranks that are missing.
        missing: Vec<usize>,
        /// How many there should be, rank 0 included.
        size: usize,
        /// Host and ports where rank 0 waited.
        address: String,
        /// How long it waited.
        waited: Duration,
        /// Who called and was not one of them; empty if nobody did.
        heard: String,
    },

    /// Rank 0 was not found.
    #[error(
        "rank 0 was not found at {address} within {}{heard}: start it, or look at its output; if it runs, check \
         host and port, and whether a firewall lets this host through (RDMA4RS_TIMEOUT sets the limit in seconds)",
        seconds(*waited)
    )]
    HostNotFound {
        /// Host and ports that were tried.
        address: String,
        /// How long this rank looked.
        waited: Duration,
        /// What was found there instead, address by address.
        heard: String,
    },

    /// Another process of this job has been told something else about the job.
    #[error("{problem}: check that all ranks are started with the same settings")]
    Conflict {
        /// Which rank, and what does not fit.
        problem: String,
    },

    /// A rank sent bytes that are no message of this protocol.
    #[error("rank {rank} sent garbage during {during}: {problem}")]
    Garbage {
        /// Who.
        rank: usize,
        /// What this rank was doing.
        during: &'static str,
        /// What came.
        problem: String,
    },

    /// A rank's connection ended: it died, was killed, or its host went away.
    #[error("rank {rank} disconnected during {during}: it died or was killed")]
    Disconnected {
        /// Who.
        rank: usize,
        /// What this rank was doing.
        during: &'static str,
        /// The socket's own words.
        #[source]
        source: io::Error,
    },

    /// A rank finished although others still expect it.
    #[error("rank {rank} has ended, this rank still waits for it in {during}")]
    Left {
        /// Who.
        rank: usize,
        /// What this rank was doing.
        during: &'static str,
    },

    /// Some ranks are connected and silent.
    #[error(
        "{} sent nothing for {} during {during}: stuck, or waiting for something else \
         (RDMA4RS_TIMEOUT sets the limit in seconds)",
        ranks(silent), seconds(*waited)
    )]
    TimedOut {
        /// Who.
        silent: Vec<usize>,
        /// What this rank was doing.
        during: &'static str,
        /// How long it waited.
        waited: Duration,
    },

    /// Ranks call different operations at the same step.
    #[error("out of step: rank {rank} calls {theirs}, this rank calls {ours}")]
    OutOfStep {
        /// The other rank.
        rank: usize,
        /// What it calls.
        theirs: String,
        /// What this rank calls.
        ours: String,
    },

    /// A rank failed, and said why before it went.
    #[error("rank {rank} gave up: {reason}")]
    Aborted {
        /// Who.
        rank: usize,
        /// Its own words.
        reason: String,
    },

    /// A message is over [`World::LONGEST_MESSAGE`](crate::World::LONGEST_MESSAGE).
    #[error("a message of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Bytes.
        length: usize,
        /// Bytes.
        limit: usize,
    },

    /// A rank number outside the world.
    #[error("there is no rank {rank} in a world of {size}")]
    NoSuchRank {
        /// The number asked for.
        rank: usize,
        /// Ranks there are.
        size: usize,
    },

    /// The rendezvous failed earlier; nothing more can be exchanged over it.
    #[error("the ranks are no longer connected, because earlier {reason}")]
    Unusable {
        /// The first failure.
        reason: String,
    },

    /// [`World::wait_for`](crate::World::wait_for) reached its limit.
    #[error("no {what} within {} (RDMA4RS_TIMEOUT sets the limit in seconds)", seconds(*waited))]
    WaitedTooLong {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },

    /// A buffer does not hold the pattern it should.
    #[error(
        "byte {offset} of {length} is {found:#04x} and should be {expected:#04x}; \
         {wrong} bytes are wrong in all"
    )]
    Pattern {
        /// Offset of the first wrong byte.
        offset: usize,
        /// Bytes in the buffer.
        length: usize,
        /// What the pattern has there.
        expected: u8,
        /// What the buffer has there.
        found: u8,
        /// How many bytes differ.
        wrong: usize,
    },

    /// A rank's own code returned an error.
    #[error("rank {rank} failed")]
    RankFailed {
        /// Who.
        rank: usize,
        /// What its code returned.
        #[source]
        source: AnyError,
    },

    /// A rank's own code panicked.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// Who.
        rank: usize,
        /// The panic message.
        message: String,
    },

    /// The system refused something that has no better name here.
    #[error("{operation} failed")]
    System {
        /// What was asked.
        operation: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn variable(name: &str, value: Option<&str>, problem: impl Into<String>) -> Self {
        Self::Variable {
            name: name.to_owned(),
            value: value.map(str::to_owned),
            problem: problem.into(),
        }
    }
}

/// Writes an error and its causes on one line, each after a colon.
#[must_use]
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// An address and what was found there, for lists in messages.
pub(crate) fn at(address: SocketAddr, problem: &str) -> String {
    format!("{address}: {problem}")
}

fn shown(value: Option<&str>) -> String {
    value.map_or_else(|| " is not set".to_owned(), |value| format!(" is {value:?}"))
}

pub(crate) fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

/// Ranks by their numbers.
pub(crate) fn ranks(list: &[usize]) -> String {
    let numbers: Vec<String> = list.iter().map(ToString::to_string).collect();
    match numbers.as_slice() {
        [one] => format!("rank {one}"),
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
        [] => "no rank".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_rank_is_named() {
        let error = Error::Missing {
            missing: vec![1, 3],
            size: 4,
            address: "node1 port 7".to_owned(),
            waited: Duration::from_millis(2500),
            heard: String::new(),
        };
        let text = error.to_string();
        let begin = "ranks 1 and 3 of 4 did not arrive within 2.5 s at node1 port 7: look at ";
        assert!(text.starts_with(begin), "{text}");
    }

    #[test]
    fn a_variable_is_shown_with_its_value() {
        let error = Error::variable("RANK", Some("x"), "not a whole number");
        assert_eq!(error.to_string(), "RANK is \"x\": not a whole number");
        let error = Error::variable("RANK", None, "needed with WORLD_SIZE");
        assert_eq!(error.to_string(), "RANK is not set: needed with WORLD_SIZE");
    }

    #[test]
    fn a_chain_has_every_cause() {
        let source = AnyError::from(Error::NoSuchRank { rank: 9, size: 2 });
        let error = Error::RankFailed { rank: 1, source };
        assert_eq!(chain(&error), "rank 1 failed: there is no rank 9 in a world of 2");
    }
}
