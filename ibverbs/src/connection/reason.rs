//! Why a connection was rejected.

use std::fmt;

/// Why a peer, or its machine, rejected a connection.
///
/// Positive values are the codes of the InfiniBand specification, section 12.6.7.2; negative ones are errno
/// values, as iWARP has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub i32);

impl RejectReason {
    /// The peer is out of queue pairs.
    pub const NO_QUEUE_PAIR: Self = Self(1);
    /// The peer is out of resources.
    pub const NO_RESOURCES: Self = Self(3);
    /// The peer waited too long for this side.
    pub const TIMEOUT: Self = Self(4);
    /// The peer does not support the request.
    pub const UNSUPPORTED: Self = Self(5);
    /// Nobody listens at this port.
    pub const NOT_LISTENING: Self = Self(8);
    /// The peer still has an earlier connection with these numbers.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The peer cannot carry the MTU of the path.
    pub const INVALID_MTU: Self = Self(26);
    /// The peer answers fewer reads at a time than were asked for.
    pub const TOO_FEW_READS: Self = Self(27);
    /// The program at the other side said no; it may have sent private data that tells why.
    pub const BY_THE_PROGRAM: Self = Self(28);
    /// iWARP: nobody listens, or the program at the other side said no.
    pub const REFUSED: Self = Self(-libc::ECONNREFUSED);
    /// iWARP: the other side closed the TCP connection.
    pub const RESET: Self = Self(-libc::ECONNRESET);

    /// The reason that the status of a datagram service's answer stands for; InfiniBand specification, section 16.7.
    pub(super) const fn of_datagram_service(status: i32) -> Self {
        match status {
            1 => Self::NOT_LISTENING,
            2 => Self::BY_THE_PROGRAM,
            3 => Self::NO_QUEUE_PAIR,
            _ => Self::UNSUPPORTED,
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NOT_LISTENING => {
                "nobody listens there; start the server, and check the port and that both sides use the \
                 same port space (a TCP listener cannot be reached as UDP)"
            }
            Self::BY_THE_PROGRAM => {
                "the program there said no; what it sent along tells why, if it sent anything"
            }
            Self::REFUSED | Self::RESET => {
                "nobody listens there, or the program there said no; check the port"
            }
            Self::STALE_CONNECTION => {
                "the peer still holds an earlier connection of this queue pair; try again with a new one"
            }
            Self::TIMEOUT => "the peer waited too long for this side's answer; try again",
            Self::TOO_FEW_READS => "ask for fewer outgoing reads in `Parameters`",
            Self::INVALID_MTU => "the ports on the path have different MTUs",
            Self::NO_QUEUE_PAIR | Self::NO_RESOURCES => "the peer is out of resources",
            _ => "see section 12.6.7.2 of the InfiniBand specification for the code",
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NO_QUEUE_PAIR => "no queue pair",
            Self::NO_RESOURCES => "no resources",
            Self::TIMEOUT => "time-out",
            Self::UNSUPPORTED => "unsupported request",
            Self::NOT_LISTENING => "not listening",
            Self::STALE_CONNECTION => "stale connection",
            Self::INVALID_MTU => "invalid MTU",
            Self::TOO_FEW_READS => "too few reads",
            Self::BY_THE_PROGRAM => "by the program",
            Self::REFUSED => "refused",
            Self::RESET => "reset",
            Self(other) => return write!(f, "code {other}"),
        })
    }
}
