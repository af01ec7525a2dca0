//! The two families of status codes: of admin commands and of work requests.

/// How an admin command ended, other than well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum AdminStatus {
    NoResources = 1,
    UnsupportedOpcode = 3,
    Malformed = 4,
    IllegalParameter = 5,
    Busy = 7,
}

impl From<crate::slots::Full> for AdminStatus {
    fn from(_: crate::slots::Full) -> Self {
        Self::NoResources
    }
}

/// How a work request ended: the status byte of its completion, which verbs users see as the
/// vendor error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CompletionStatus {
    Ok = 0,
    Flushed = 1,
    LocalInternal = 2,
    LocalUnsupported = 3,
    LocalBadAddressHandle = 4,
    LocalBadKey = 5,
    LocalBadLength = 6,
    /// The remote key is not registered, not in the right domain, or does not cover the range.
    RemoteBadAddress = 7,
    RemoteAbort = 8,
    RemoteBadQueuePair = 9,
    RemoteNotReady = 10,
    RemoteBadLength = 11,
    RemoteBadStatus = 12,
    /// The peer answered before and does not now.
    Unresponsive = 13,
    /// The responder has no address handle for the requester, which RDMA needs.
    RemoteUnknownPeer = 14,
    /// The peer never answered.
    Unreachable = 15,
    RemoteFeatureMismatch = 18,
}
