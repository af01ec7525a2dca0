//! What both sides tell each other when they connect.

use std::time::Duration;

use crate::{Access, Error, Result};

/// What this side wants of a connection and tells the peer. Everything has a default.
#[derive(Debug, Clone)]
pub struct Parameters {
    pub(super) access: Access,
    pub(super) private_data: Vec<u8>,
    pub(super) incoming_reads: Option<u8>,
    pub(super) outgoing_reads: Option<u8>,
    pub(super) retries: u8,
    pub(super) receiver_not_ready_retries: u8,
    pub(super) receiver_not_ready_timer: Duration,
    pub(super) flow_control: bool,
    pub(super) timeout: Option<Duration>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            access: Access::empty(),
            private_data: Vec::new(),
            incoming_reads: None,
            outgoing_reads: None,
            retries: 7,
            receiver_not_ready_retries: 7,
            receiver_not_ready_timer: Duration::from_micros(640),
            flow_control: true,
            timeout: Some(DEFAULT_TIMEOUT),
        }
    }
}

/// Longer than a peer that is there takes, shorter than the minute after which the kernel gives up.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

impl Parameters {
    /// A connection with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the peer may ask of this side: nothing if not set. The region must allow it too.
    #[must_use]
    pub fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// Bytes that the peer gets with the request or the answer; none if not set.
    ///
    /// Over InfiniBand and RoCE at most 56 with a request and 196 with an answer, and the peer sees just so
    /// many, filled with zeros: put a length or a version into them.
    #[must_use]
    pub fn private_data(self, bytes: impl Into<Vec<u8>>) -> Self {
        Self { private_data: bytes.into(), ..self }
    }

    /// How many reads and atomics of the peer are answered at a time; the device's limit, but at most 16,
    /// if not set. An answer never says more than the request asked for.
    #[must_use]
    #[doc(alias = "responder_resources")]
    pub fn incoming_reads(self, count: u8) -> Self {
        Self { incoming_reads: Some(count), ..self }
    }

    /// How many reads and atomics are outstanding at a time; the device's limit, but at most 16, if not
    /// set. An answer never says more than the request offered.
    #[must_use]
    #[doc(alias = "initiator_depth")]
    pub fn outgoing_reads(self, count: u8) -> Self {
        Self { outgoing_reads: Some(count), ..self }
    }

    /// How often to send again before giving up, at most 7; 7 if not set. The side that connects says it for
    /// both.
    #[must_use]
    #[doc(alias = "retry_count")]
    pub fn retries(self, retries: u8) -> Self {
        Self { retries, ..self }
    }

    /// How often the peer tries again while this side has no receive posted, at most 7; 7, which is for ever,
    /// if not set.
    #[must_use]
    #[doc(alias = "rnr_retry_count")]
    pub fn receiver_not_ready_retries(self, retries: u8) -> Self {
        Self { receiver_not_ready_retries: retries, ..self }
    }

    /// How long the peer must wait before it tries again while this side has no receive posted; 640 µs
    /// if not set, rounded up to one of 32 steps from 10 µs to 655 ms.
    #[must_use]
    #[doc(alias = "min_rnr_timer")]
    pub fn receiver_not_ready_timer(self, timer: Duration) -> Self {
        Self { receiver_not_ready_timer: timer, ..self }
    }

    /// Whether this side's hardware has end-to-end flow control, which the peer is told; yes if not set.
    #[must_use]
    pub fn flow_control(self, flow_control: bool) -> Self {
        Self { flow_control, ..self }
    }

    /// How long the peer may take to answer; 10 seconds if not set, `None` waits until the kernel gives up
    /// (about a minute).
    #[must_use]
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        Self { timeout: timeout.into(), ..self }
    }

    /// The C struct without a queue pair; it points to the private data of `self`.
    pub(super) fn to_raw(&self, reads: Reads) -> Result<rdma_sys::rdma_conn_param> {
        let not_ready = self.receiver_not_ready_retries.into();
        Error::check("the number of retries", self.retries.into(), 0, 7)?;
        Error::check("the number of receiver-not-ready retries", not_ready, 0, 7)?;
        Ok(rdma_sys::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: private_length(&self.private_data)?,
            responder_resources: reads.incoming,
            initiator_depth: reads.outgoing,
            flow_control: self.flow_control.into(),
            retry_count: self.retries,
            rnr_retry_count: self.receiver_not_ready_retries,
            ..Default::default()
        })
    }
}

/// How many reads and atomics are under way at a time, in each direction, as one side sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reads {
    pub(super) incoming: u8,
    pub(super) outgoing: u8,
}

/// The length of private data, in the one byte that C has for it. What fits further depends on the message and
/// on the device; the kernel knows.
pub(super) fn private_length(bytes: &[u8]) -> Result<u8> {
    let length = bytes.len() as u64;
    let remedy = "send the rest over the connection";
    Error::check_or("the length of the private data", length, 0..=u8::MAX.into(), remedy)?;
    Ok(u8::try_from(length).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: Reads = Reads { incoming: 3, outgoing: 4 };

    #[test]
    fn parameters_say_what_was_asked_for() {
        let parameters = Parameters::new().private_data(*b"hello").retries(2).flow_control(false);
        let raw = parameters.to_raw(READS).unwrap();
        assert_eq!(raw.private_data, parameters.private_data.as_ptr().cast());
        assert_eq!(raw.private_data_len, 5);
        assert_eq!((raw.responder_resources, raw.initiator_depth), (3, 4));
        assert_eq!((raw.retry_count, raw.rnr_retry_count, raw.flow_control), (2, 7, 0));
    }

    #[test]
    fn private_data_that_no_message_holds_is_refused() {
        let parameters = Parameters::new().private_data([0; 256]);
        let text = parameters.to_raw(READS).unwrap_err().to_string();
        assert!(text.contains("256") && text.contains("255"), "{text}");
        Parameters::new().private_data([0; 255]).to_raw(READS).unwrap();
    }

    #[test]
    fn retries_of_more_than_three_bits_are_refused() {
        Parameters::new().retries(8).to_raw(READS).unwrap_err();
        Parameters::new().receiver_not_ready_retries(8).to_raw(READS).unwrap_err();
    }
}
