//! What EFA says about a failed request, in words.

use std::fmt;

use ibverbs::{CompletionStatus, FailedWork, QueuePairNumber};

/// EFA's own status of a completion (`vendor_err`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct VendorStatus(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal, $remedy:literal;)*) => {
        impl VendorStatus {
            $(
                #[doc = concat!("Status ", stringify!($value), ": ", $text, ".")]
                ///
                $(#[$doc])*
                #[doc = concat!("What to look at: ", $remedy, ".")]
                pub const $name: Self = Self($value);
            )*

            /// Every status that is known.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// In words; a status of newer hardware is a number.
            const fn text(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($text),)*
                    _ => None,
                }
            }

            /// What to look at.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)*
                    _ => "newer EFA software knows this status",
                }
            }
        }
    };
}

statuses! {
    OK = 0, "success", "nothing is wrong";
    FLUSHED = 1, "flushed",
        "the queue pair was destroyed or went to its error state before the request ran; the first failure \
         says why";
    QUEUE_PAIR_INTERNAL_ERROR = 2, "internal error of the queue pair",
        "make a new queue pair, and look at the kernel's log for resets of the device";
    UNSUPPORTED_OPERATION = 3, "unsupported operation",
        "this device or this transport lacks the operation; check `efa::query_device` before";
    INVALID_ADDRESS_HANDLE = 4, "invalid address handle",
        "the handle was destroyed while requests named it, or belongs to another protection domain";
    INVALID_LOCAL_KEY = 5, "invalid local key",
        "a segment's region was deregistered, belongs to another protection domain, or lacks LOCAL_WRITE \
         for what arrives in it";
    BAD_LENGTH = 6, "bad length",
        "a send is longer than the MTU (`max_message_length`), an RDMA request longer than `max_rdma_size` \
         (split it with `write_wrs`), or what arrived is longer than the posted receive";
    REMOTE_BAD_ADDRESS = 7, "bad address at the responder",
        "the remote key is stale or of another protection domain than the responder's queue pair, the range \
         lies outside of the peer's region, or the region does not allow this access";
    REMOTE_ABORT = 8, "aborted by the responder",
        "the peer's memory, queue pair or device went away during the transfer";
    REMOTE_BAD_QUEUE_PAIR = 9, "bad queue pair at the responder",
        "the number or the queue key is wrong, or the peer's queue pair was destroyed or is in its error \
         state; exchange the endpoints anew";
    REMOTE_RECEIVER_NOT_READY = 10, "receiver not ready",
        "the peer posted too few receives, and the retries are used up; post more, earlier, or leave the \
         number of retries at its default, for ever";
    REMOTE_BAD_LENGTH = 11, "too long for the receive",
        "the peer's posted receive is shorter than the message";
    REMOTE_BAD_STATUS = 12, "unexpected status of the responder",
        "look at the peer's own completions";
    UNRESPONSIVE = 13, "the responder no longer answers",
        "the peer answered before: its process or its machine ended, or the network broke";
    /// RDMA needs it, sends do not.
    UNKNOWN_PEER = 14, "unknown peer",
        "the responder has no address handle for the requester, which RDMA needs even if data goes one way \
         only; exchange endpoints in both directions, and keep the `Peer` of each other side alive on the \
         protection domain of the queue pair that is read or written";
    UNREACHABLE = 15, "the responder cannot be reached",
        "no answer ever came: check that the security group allows all traffic to and from itself, both \
         ways, that both instances are in one subnet or VPC that EFA can cross, and that the GID is right; \
         some instance types drop what is sent to the same device or instance";
    FEATURE_MISMATCH = 18, "feature mismatch",
        "both queue pairs must agree on unsolicited write receives, and the responder's device must have \
         the operation";
}

impl VendorStatus {
    /// The status of a failed request.
    #[must_use]
    pub const fn of(work: &FailedWork) -> Self {
        Self(work.vendor_error)
    }
}

impl fmt::Display for VendorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "EFA status {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for VendorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:#04x})", self.0)
    }
}

/// A work request that failed, with EFA's own reason and its remedy.
///
/// Made from what [`outcome`](ibverbs::Completion::outcome) returns, by `?` or [`From`].
///
/// # Examples
///
/// ```no_run
/// # fn look(completion: &ibverbs::Completion) -> Result<(), efa::Failure> {
/// completion.outcome()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("work request {} of queue pair {} failed: {vendor_status:?}, which verbs call \"{}\"; {}",
    self.id(), self.queue_pair(), self.status(), vendor_status.remedy())]
pub struct Failure {
    work: FailedWork,
    vendor_status: VendorStatus,
}

impl Failure {
    /// The number that the request was given.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.work.id
    }

    /// The queue pair whose request it was. EFA leaves it ready unless the status says otherwise.
    #[must_use]
    pub const fn queue_pair(&self) -> QueuePairNumber {
        self.work.queue_pair
    }

    /// The status that verbs make of EFA's, which is coarser.
    #[must_use]
    pub const fn status(&self) -> CompletionStatus {
        self.work.status
    }

    /// EFA's own status.
    #[must_use]
    pub const fn vendor_status(&self) -> VendorStatus {
        self.vendor_status
    }

    /// Whether the request was only ended, because its queue pair was.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.status() == CompletionStatus::WORK_FLUSHED
    }
}

impl From<FailedWork> for Failure {
    fn from(work: FailedWork) -> Self {
        Self { work, vendor_status: VendorStatus::of(&work) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_status_has_words_and_a_remedy_of_its_own() {
        let mut texts = std::collections::HashSet::new();
        for status in VendorStatus::ALL {
            assert!(texts.insert(status.to_string()), "{status:?}");
            assert!(status.remedy().len() > 10, "{status:?}");
        }
    }

    #[test]
    fn the_unknown_peer_is_explained_by_its_missing_address_handle() {
        let status = VendorStatus(0x0e);
        assert_eq!(status, VendorStatus::UNKNOWN_PEER);
        assert_eq!(format!("{status:?}"), "unknown peer (0x0e)");
        assert!(status.remedy().contains("address handle for the requester"));
    }

    #[test]
    fn a_status_of_newer_hardware_is_a_number() {
        assert_eq!(VendorStatus(0x77).to_string(), "EFA status 0x77");
    }
}
