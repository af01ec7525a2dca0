//! Completions: what became of a work request.
#![expect(unsafe_code, reason = "reads the union of ibv_wc")]

use std::fmt;

use crate::{QueuePairNumber, RemoteKey};

/// One finished work request, copied out of a completion queue.
///
/// On failure C leaves most fields undefined, so that they are reached through [`outcome`](Self::outcome) only.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Completion(rdma_sys::ibv_wc);

impl Completion {
    /// Room for `N` completions, for [`CompletionQueue::poll`](crate::CompletionQueue::poll). Make it once, outside of the loop.
    ///
    /// The room is zeroed: providers leave fields alone that do not matter for a completion, and those must
    /// be readable all the same.
    #[must_use]
    pub fn slots<const N: usize>() -> [Self; N] {
        [Self(rdma_sys::ibv_wc::default()); N]
    }

    /// The number that the request was given.
    #[must_use]
    #[inline]
    pub const fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// The queue pair whose request this was.
    #[must_use]
    pub const fn queue_pair(&self) -> QueuePairNumber {
        QueuePairNumber::from_device(self.0.qp_num)
    }

    /// How it went.
    #[must_use]
    #[inline]
    pub const fn status(&self) -> CompletionStatus {
        CompletionStatus(self.0.status)
    }

    /// What the request did, or why it failed.
    ///
    /// # Errors
    ///
    /// [`FailedWork`] with the status. Requests that were still queued behind a failed one end as
    /// [`CompletionStatus::WORK_FLUSHED`]: look at the first failure.
    #[inline]
    pub fn outcome(&self) -> Result<FinishedWork<'_>, FailedWork> {
        if self.0.status == rdma_sys::IBV_WC_SUCCESS {
            Ok(FinishedWork(&self.0))
        } else {
            Err(self.failure())
        }
    }

    /// Out of line, so that the way of success is one comparison.
    #[cold]
    #[inline(never)]
    fn failure(&self) -> FailedWork {
        FailedWork {
            id: self.0.wr_id,
            status: self.status(),
            vendor_error: self.0.vendor_err,
            queue_pair: self.queue_pair(),
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outcome().fmt(f)
    }
}

/// What a request did that succeeded.
#[derive(Clone, Copy)]
pub struct FinishedWork<'c>(&'c rdma_sys::ibv_wc);

impl FinishedWork<'_> {
    /// The number that the request was given.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// What kind of work it was.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        Operation(self.0.opcode)
    }

    /// Bytes that arrived, for receives; with a datagram queue pair the 40 bytes of routing header count.
    /// On the sender's side the value has no meaning for most devices.
    #[must_use]
    pub const fn byte_length(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate that came with the message, host order.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        // SAFETY: both members are a u32; the flag says which one it is.
        let immediate = u32::from_be(unsafe { self.0.__bindgen_anon_1.imm_data });
        self.has(rdma_sys::IBV_WC_WITH_IMM).then_some(immediate)
    }

    /// The key that the message invalidated.
    #[must_use]
    pub fn invalidated_key(&self) -> Option<RemoteKey> {
        // SAFETY: both members are a u32; the flag says which one it is.
        let key = RemoteKey(unsafe { self.0.__bindgen_anon_1.invalidated_rkey });
        self.has(rdma_sys::IBV_WC_WITH_INV).then_some(key)
    }

    /// Whether a routing header stands before the payload of a datagram, in the first 40 bytes.
    #[must_use]
    pub const fn has_routing_header(&self) -> bool {
        self.has(rdma_sys::IBV_WC_GRH)
    }

    /// Whether the device found the checksums of a frame right: it has a packet of TCP or UDP over IPv4, and its header and the
    /// rest are whole. `false` says nothing: the device may not have looked.
    #[must_use]
    #[doc(alias = "IBV_WC_IP_CSUM_OK")]
    pub const fn has_right_checksums(&self) -> bool {
        self.has(rdma_sys::IBV_WC_IP_CSUM_OK)
    }

    /// The queue pair that sent the datagram.
    #[must_use]
    pub const fn source_queue_pair(&self) -> QueuePairNumber {
        QueuePairNumber::from_device(self.0.src_qp)
    }

    /// The local identifier of the port that sent the datagram; InfiniBand only.
    #[must_use]
    pub const fn source_lid(&self) -> u16 {
        self.0.slid
    }

    /// The queue pair whose request this was.
    #[must_use]
    pub const fn queue_pair(&self) -> QueuePairNumber {
        QueuePairNumber::from_device(self.0.qp_num)
    }

    /// All fields, as C has them.
    #[must_use]
    pub const fn as_raw(&self) -> &rdma_sys::ibv_wc {
        self.0
    }

    const fn has(&self, flag: u32) -> bool {
        self.0.wc_flags & flag != 0
    }
}

impl fmt::Debug for FinishedWork<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FinishedWork")
            .field("id", &self.id())
            .field("operation", &self.operation())
            .field("byte_length", &self.byte_length())
            .field("immediate", &self.immediate())
            .field("queue_pair", &self.queue_pair())
            .finish_non_exhaustive()
    }
}

/// Why a request failed: the four fields that C defines then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("work request {id} of queue pair {queue_pair} failed: {status} (vendor error {vendor_error:#x}); {}", status.advice())]
#[non_exhaustive]
pub struct FailedWork {
    /// The number that the request was given.
    pub id: u64,
    /// What went wrong.
    pub status: CompletionStatus,
    /// The device's own word for it; see its vendor's documentation.
    pub vendor_error: u32,
    /// The queue pair, which is in its error state now.
    pub queue_pair: QueuePairNumber,
}

/// How a work request ended. See `ibv_poll_cq(3)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CompletionStatus(pub u32);

macro_rules! statuses {
    ($($name:ident = $raw:ident, $text:literal, $advice:literal;)*) => {
        impl CompletionStatus {
            $(
                #[doc = concat!("In C `", stringify!($raw), "`; prints as \"", $text, "\".")]
                pub const $name: Self = Self(rdma_sys::$raw);
            )*

            /// In words; a value of a newer library is a number.
            const fn text(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($text),)*
                    _ => None,
                }
            }

            /// What to look at.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self {
                    $(Self::$name => $advice,)*
                    _ => "a newer rdma-core knows this status",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = IBV_WC_SUCCESS, "success", "nothing is wrong";
    LOCAL_LENGTH_ERROR = IBV_WC_LOC_LEN_ERR, "local length error",
        "the message is longer than the posted receive, or than the transport allows";
    LOCAL_QUEUE_PAIR_ERROR = IBV_WC_LOC_QP_OP_ERR, "local queue pair operation error",
        "this queue pair does not allow the request as it was posted";
    LOCAL_END_TO_END_ERROR = IBV_WC_LOC_EEC_OP_ERR, "local end-to-end context error",
        "reliable datagrams are not supported by any current device";
    LOCAL_PROTECTION_ERROR = IBV_WC_LOC_PROT_ERR, "local protection error",
        "a segment's region was deregistered, belongs to another domain, or lacks LOCAL_WRITE";
    WORK_FLUSHED = IBV_WC_WR_FLUSH_ERR, "flushed",
        "the queue pair went to its error state before this request ran; the first failure says why";
    WINDOW_BIND_ERROR = IBV_WC_MW_BIND_ERR, "memory window bind error",
        "the region does not allow windows, or the range lies outside of it";
    BAD_RESPONSE = IBV_WC_BAD_RESP_ERR, "bad response",
        "the peer's device answered with something that makes no sense";
    LOCAL_ACCESS_ERROR = IBV_WC_LOC_ACCESS_ERR, "local access error",
        "a peer's write with immediate did not fit the rights of this side's memory";
    REMOTE_INVALID_REQUEST = IBV_WC_REM_INV_REQ_ERR, "remote invalid request",
        "the peer's queue pair does not allow this operation (its access flags), the message is longer \
         than its receive, or an atomic's address is not a multiple of 8";
    REMOTE_ACCESS_ERROR = IBV_WC_REM_ACCESS_ERR, "remote access error",
        "the key is wrong or stale, the range lies outside of the peer's region, or the region does \
         not allow this access";
    REMOTE_OPERATION_ERROR = IBV_WC_REM_OP_ERR, "remote operation error",
        "the peer's device could not finish the request; look at the peer's completions";
    RETRIES_EXCEEDED = IBV_WC_RETRY_EXC_ERR, "transport retries exceeded",
        "the peer does not answer: its process ended, its queue pair is not connected to this one, \
         packets are lost, or GID, MTU or traffic class do not fit the network";
    RECEIVER_NOT_READY = IBV_WC_RNR_RETRY_EXC_ERR, "receiver not ready",
        "the peer posted too few receives; post more, earlier, or raise the retry count (7 is for ever)";
    LOCAL_DOMAIN_VIOLATION = IBV_WC_LOC_RDD_VIOL_ERR, "local reliable-datagram domain violation",
        "reliable datagrams are not supported by any current device";
    REMOTE_INVALID_DATAGRAM = IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid reliable-datagram request",
        "reliable datagrams are not supported by any current device";
    REMOTE_ABORTED = IBV_WC_REM_ABORT_ERR, "aborted by the peer",
        "the peer's device gave the request up";
    INVALID_END_TO_END_NUMBER = IBV_WC_INV_EECN_ERR, "invalid end-to-end context number",
        "reliable datagrams are not supported by any current device";
    INVALID_END_TO_END_STATE = IBV_WC_INV_EEC_STATE_ERR, "invalid end-to-end context state",
        "reliable datagrams are not supported by any current device";
    FATAL_ERROR = IBV_WC_FATAL_ERR, "fatal device error",
        "the device is gone or was reset; open it again";
    RESPONSE_TIMEOUT = IBV_WC_RESP_TIMEOUT_ERR, "response timeout",
        "the peer's device did not answer in time";
    GENERAL_ERROR = IBV_WC_GENERAL_ERR, "general error",
        "the device does not say more; look at the vendor error and the kernel's log";
    TAG_MATCHING_ERROR = IBV_WC_TM_ERR, "tag matching error",
        "the tag list of the shared receive queue does not fit the request";
    TAG_MATCHING_INCOMPLETE = IBV_WC_TM_RNDV_INCOMPLETE, "tag matching rendezvous incomplete",
        "the rendezvous must be finished in software";
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "completion status {}", self.0),
        }
    }
}

impl fmt::Debug for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What kind of work a completion is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation(pub u32);

macro_rules! operations {
    ($($name:ident = $raw:ident, $text:literal;)*) => {
        impl Operation {
            $(
                #[doc = concat!("In C `", stringify!($raw), "`; prints as \"", $text, "\".")]
                pub const $name: Self = Self(rdma_sys::$raw);
            )*
        }

        impl fmt::Display for Operation {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str($text),)*
                    Self(other) => write!(f, "operation {other}"),
                }
            }
        }
    };
}

operations! {
    SEND = IBV_WC_SEND, "send";
    WRITE = IBV_WC_RDMA_WRITE, "write";
    READ = IBV_WC_RDMA_READ, "read";
    COMPARE_AND_SWAP = IBV_WC_COMP_SWAP, "compare and swap";
    FETCH_AND_ADD = IBV_WC_FETCH_ADD, "fetch and add";
    BIND_WINDOW = IBV_WC_BIND_MW, "bind of a memory window";
    LOCAL_INVALIDATE = IBV_WC_LOCAL_INV, "local invalidate";
    SEGMENTED_SEND = IBV_WC_TSO, "segmented send";
    FLUSH = IBV_WC_FLUSH, "flush";
    ATOMIC_WRITE = IBV_WC_ATOMIC_WRITE, "atomic write";
    RECEIVE = IBV_WC_RECV, "receive";
    RECEIVE_WRITE_WITH_IMMEDIATE = IBV_WC_RECV_RDMA_WITH_IMM, "receive of a write with immediate";
}

impl Operation {
    /// Whether this completed a receive of this side.
    #[must_use]
    pub const fn is_receive(self) -> bool {
        self.0 & rdma_sys::IBV_WC_RECV != 0
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(change: impl FnOnce(&mut rdma_sys::ibv_wc)) -> Completion {
        let mut raw = rdma_sys::ibv_wc { wr_id: 7, qp_num: 0x11, ..Default::default() };
        change(&mut raw);
        Completion(raw)
    }

    #[test]
    fn immediates_are_in_host_order_and_only_there_when_flagged() {
        let with = completion(|raw| {
            raw.wc_flags = rdma_sys::IBV_WC_WITH_IMM;
            raw.__bindgen_anon_1.imm_data = 0xC0DE_u32.to_be();
        });
        assert_eq!(with.outcome().unwrap().immediate(), Some(0xC0DE));
        assert_eq!(with.outcome().unwrap().invalidated_key(), None);
        assert_eq!(completion(|_| ()).outcome().unwrap().immediate(), None);
    }

    #[test]
    fn a_failure_says_what_to_look_at() {
        let failed = completion(|raw| {
            raw.status = rdma_sys::IBV_WC_RETRY_EXC_ERR;
            raw.vendor_err = 0x81;
        });
        let error = failed.outcome().unwrap_err();
        assert_eq!(error.status, CompletionStatus::RETRIES_EXCEEDED);
        let text = error.to_string();
        assert!(text.contains("work request 7"), "{text}");
        assert!(text.contains("0x81"), "{text}");
        assert!(text.contains("does not answer"), "{text}");
    }

    #[test]
    fn values_of_a_newer_library_are_values() {
        let unknown = completion(|raw| raw.status = 9999);
        assert_eq!(unknown.status().to_string(), "completion status 9999");
        unknown.outcome().unwrap_err();
        assert_eq!(Operation(77).to_string(), "operation 77");
        assert!(Operation::RECEIVE_WRITE_WITH_IMMEDIATE.is_receive());
        assert!(!Operation::READ.is_receive());
    }
}
