//! What the connection manager reports.
#![expect(unsafe_code, reason = "copies an rdma_cm_event")]

use std::{ffi::c_void, fmt, io, net::SocketAddr, ptr::NonNull, slice, sync::Arc};

use super::{
    DatagramPeer, Identifier, IdentifierNumber, RejectReason,
    channel::Channel,
    identifier::{self, number_of},
    parameters::Reads,
};
use crate::{Error, Result};

/// One event, copied out of an [`EventChannel`](super::EventChannel) and acknowledged.
#[derive(Debug)]
pub struct Event {
    kind: EventKind,
    status: i32,
    identifier: IdentifierNumber,
    peer: Option<SocketAddr>,
    request: Option<Identifier>,
    private_data: Vec<u8>,
    reads: Reads,
    pub(super) datagram_peer: Option<DatagramPeer>,
}

/// Copies an event.
///
/// # Safety
///
/// `raw` is an event of an identifier of `channel` that is not acknowledged, the channel's lock is held, and a
/// connection request is copied once.
pub(super) unsafe fn copy(raw: NonNull<rdma_sys::rdma_cm_event>, channel: &Arc<Channel>) -> Event {
    // SAFETY: as the caller promises.
    let raw = unsafe { raw.as_ref() };
    let kind = EventKind(raw.event);
    let (mut private_data, mut reads) = (Vec::new(), Reads { incoming: 0, outgoing: 0 });
    let mut datagram_peer = None;
    // SAFETY: an event that is not acknowledged holds its identifier, which never changes its kind.
    if unsafe { (*raw.id).qp_type } == rdma_sys::IBV_QPT_UD {
        // SAFETY: rdma_get_cm_event(3): for identifiers of datagrams this is the live member, plain data.
        let parameters = unsafe { raw.param.ud };
        if kind.has_private_data_of_datagrams() {
            let (data, length) = (parameters.private_data, parameters.private_data_len);
            // SAFETY: so many bytes are there until the event is acknowledged.
            private_data = unsafe { bytes(data, length) };
        }
        if matches!(kind, EventKind::ESTABLISHED | EventKind::MULTICAST_JOINED) {
            datagram_peer = Some(DatagramPeer::from_raw(&parameters));
        }
    } else if kind.has_parameters() {
        // SAFETY: rdma_get_cm_event(3): for these events of connected identifiers this is the live member.
        let parameters = unsafe { raw.param.conn };
        let (data, length) = (parameters.private_data, parameters.private_data_len);
        // SAFETY: as above.
        private_data = unsafe { bytes(data, length) };
        let (incoming, outgoing) = (parameters.responder_resources, parameters.initiator_depth);
        reads = Reads { incoming, outgoing };
    }
    let mut request = None;
    // SAFETY: the event's own identifier, which is live.
    let mut identifier = unsafe { number_of(raw.id) };
    if kind == EventKind::CONNECT_REQUEST && !raw.listen_id.is_null() {
        if let Some(raw) = NonNull::new(raw.id) {
            // SAFETY: a request's identifier is new and the caller's to destroy, on the listener's channel,
            // whose lock is held.
            request = Some(unsafe { Identifier::of_request(raw, Arc::clone(channel), reads) });
        }
        // SAFETY: the listener, which the event holds.
        identifier = unsafe { number_of(raw.listen_id) };
    }
    // SAFETY: the event's own identifier is live, and the lock is held.
    let peer = unsafe { identifier::peer_of(raw.id) };
    let status = raw.status;
    Event { kind, status, identifier, peer, request, private_data, reads, datagram_peer }
}

/// Copies private data, if there is any.
///
/// # Safety
///
/// `data` is null, or so many bytes are there.
unsafe fn bytes(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller promises.
    unsafe { slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec()
}

impl Event {
    /// What happened.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// Zero, or why it failed: a negative errno, or for [`EventKind::REJECTED`] a [`RejectReason`].
    #[must_use]
    pub fn status(&self) -> i32 {
        self.status
    }

    /// The identifier that it happened to; for a connection request, the listening one.
    #[must_use]
    pub fn identifier(&self) -> IdentifierNumber {
        self.identifier
    }

    /// What the peer sent along, as far as this event carries it.
    ///
    /// Over InfiniBand and RoCE it is as long as the message has room for, filled with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// How many reads and atomics at a time the peer wants answered; in requests and answers.
    #[must_use]
    #[doc(alias = "responder_resources")]
    pub fn incoming_reads(&self) -> u8 {
        self.reads.incoming
    }

    /// How many reads and atomics at a time the peer answers; in requests and answers.
    #[must_use]
    #[doc(alias = "initiator_depth")]
    pub fn outgoing_reads(&self) -> u8 {
        self.reads.outgoing
    }

    /// The new connection that a peer asks for, once.
    ///
    /// One that is not taken, or dropped, is rejected.
    pub fn take_request(&mut self) -> Option<Identifier> {
        self.request.take()
    }

    /// The event if it is of this kind.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`] or [`Error::Connection`] for any other.
    pub fn expect(self, kind: EventKind) -> Result<Self> {
        if self.kind == kind && self.status == 0 { Ok(self) } else { Err(self.into()) }
    }

    pub(super) fn into_private_data(self) -> Vec<u8> {
        self.private_data
    }
}

impl From<Event> for Error {
    fn from(event: Event) -> Self {
        let Event { kind, status, peer, private_data, .. } = event;
        if kind == EventKind::REJECTED {
            return Self::Rejected { peer, reason: RejectReason(status), private_data };
        }
        if kind == EventKind::UNREACHABLE && status > 0 {
            let reason = RejectReason::of_datagram_service(status);
            return Self::Rejected { peer, reason, private_data };
        }
        let source = (status < 0).then(|| io::Error::from_raw_os_error(-status));
        Self::Connection { event: kind, status, peer, source }
    }
}

/// What happened to an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventKind(pub u32);

impl EventKind {
    /// The peer's address is bound to a device of this side.
    pub const ADDRESS_RESOLVED: Self = Self(rdma_sys::RDMA_CM_EVENT_ADDR_RESOLVED);
    /// It cannot be.
    pub const ADDRESS_ERROR: Self = Self(rdma_sys::RDMA_CM_EVENT_ADDR_ERROR);
    /// The path to the peer is known.
    pub const ROUTE_RESOLVED: Self = Self(rdma_sys::RDMA_CM_EVENT_ROUTE_RESOLVED);
    /// There is none.
    pub const ROUTE_ERROR: Self = Self(rdma_sys::RDMA_CM_EVENT_ROUTE_ERROR);
    /// A peer asks for a connection.
    pub const CONNECT_REQUEST: Self = Self(rdma_sys::RDMA_CM_EVENT_CONNECT_REQUEST);
    /// The peer accepted; this side has not confirmed yet.
    pub const CONNECT_RESPONSE: Self = Self(rdma_sys::RDMA_CM_EVENT_CONNECT_RESPONSE);
    /// Connecting failed on the way.
    pub const CONNECT_ERROR: Self = Self(rdma_sys::RDMA_CM_EVENT_CONNECT_ERROR);
    /// The peer does not answer; for datagrams, it may also have said no, with a positive status.
    pub const UNREACHABLE: Self = Self(rdma_sys::RDMA_CM_EVENT_UNREACHABLE);
    /// The peer said no.
    pub const REJECTED: Self = Self(rdma_sys::RDMA_CM_EVENT_REJECTED);
    /// The connection stands.
    pub const ESTABLISHED: Self = Self(rdma_sys::RDMA_CM_EVENT_ESTABLISHED);
    /// It has ended.
    pub const DISCONNECTED: Self = Self(rdma_sys::RDMA_CM_EVENT_DISCONNECTED);
    /// The device is going away: everything on it must be dropped.
    pub const DEVICE_REMOVAL: Self = Self(rdma_sys::RDMA_CM_EVENT_DEVICE_REMOVAL);
    /// This side is a member of the multicast group.
    pub const MULTICAST_JOINED: Self = Self(rdma_sys::RDMA_CM_EVENT_MULTICAST_JOIN);
    /// It is not, or not any more.
    pub const MULTICAST_ERROR: Self = Self(rdma_sys::RDMA_CM_EVENT_MULTICAST_ERROR);
    /// The network interface behind the address is another one now.
    pub const ADDRESS_CHANGED: Self = Self(rdma_sys::RDMA_CM_EVENT_ADDR_CHANGE);
    /// The numbers of an ended connection may be used again.
    pub const TIME_WAIT_OVER: Self = Self(rdma_sys::RDMA_CM_EVENT_TIMEWAIT_EXIT);

    /// Whether C fills in the connection parameters.
    fn has_parameters(self) -> bool {
        matches!(
            self,
            Self::CONNECT_REQUEST
                | Self::CONNECT_RESPONSE
                | Self::ESTABLISHED
                | Self::REJECTED
                | Self::DISCONNECTED
        )
    }

    /// Whether C fills in private data where the peer is a datagram service. In multicast events the field has another
    /// meaning.
    fn has_private_data_of_datagrams(self) -> bool {
        matches!(self, Self::CONNECT_REQUEST | Self::ESTABLISHED | Self::UNREACHABLE)
    }

    /// What to do about a failure of this kind.
    pub(crate) fn remedy(self, errno: i32) -> &'static str {
        match (self, errno) {
            (Self::ADDRESS_ERROR, libc::ENODEV) => {
                "no RDMA device is behind the interface that leads to this address; see `ip route get` and \
                 `rdma link`"
            }
            (Self::ADDRESS_ERROR, _) => {
                "the address does not answer ARP or neighbour discovery, or no route leads there"
            }
            (Self::ROUTE_ERROR, _) => "no path to the peer; InfiniBand: ask the subnet manager",
            (Self::UNREACHABLE, _) => {
                "the peer's machine is there but its connection manager does not answer; check that UDP port \
                 4791 (RoCE) is open and that the peer's device is up"
            }
            (Self::DISCONNECTED, _) => "the peer has ended the connection",
            (Self::DEVICE_REMOVAL, _) => "drop everything on this device",
            _ => "try again, or look at the peer",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::ADDRESS_RESOLVED => "address resolved",
            Self::ADDRESS_ERROR => "address cannot be resolved",
            Self::ROUTE_RESOLVED => "route resolved",
            Self::ROUTE_ERROR => "no route",
            Self::CONNECT_REQUEST => "connection requested",
            Self::CONNECT_RESPONSE => "connection accepted",
            Self::CONNECT_ERROR => "connecting failed",
            Self::UNREACHABLE => "unreachable",
            Self::REJECTED => "rejected",
            Self::ESTABLISHED => "established",
            Self::DISCONNECTED => "disconnected",
            Self::DEVICE_REMOVAL => "device removed",
            Self::MULTICAST_JOINED => "multicast joined",
            Self::MULTICAST_ERROR => "multicast failed",
            Self::ADDRESS_CHANGED => "address changed",
            Self::TIME_WAIT_OVER => "time-wait over",
            Self(other) => return write!(f, "event {other}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: EventKind, status: i32) -> Event {
        Event {
            kind,
            status,
            identifier: IdentifierNumber::next(),
            peer: Some("10.0.0.7:4420".parse().unwrap()),
            request: None,
            private_data: vec![7; 148],
            reads: Reads { incoming: 0, outgoing: 0 },
            datagram_peer: None,
        }
    }

    #[test]
    fn a_rejection_tells_the_reason_and_what_the_peer_sent() {
        let error = failed(EventKind::REJECTED, 28).expect(EventKind::ESTABLISHED).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("10.0.0.7:4420") && text.contains("by the program"), "{text}");
        let Error::Rejected { reason, private_data, .. } = error else { panic!("{text}") };
        assert_eq!((reason, private_data.len()), (RejectReason::BY_THE_PROGRAM, 148));
        let text = Error::from(failed(EventKind::REJECTED, 8)).to_string();
        assert!(text.contains("nobody listens"), "{text}");
    }

    #[test]
    fn a_failure_has_its_errno_and_a_remedy() {
        let error = Error::from(failed(EventKind::ADDRESS_ERROR, -libc::ENODEV));
        assert_eq!(error.errno(), Some(libc::ENODEV));
        assert!(error.to_string().contains("rdma link"), "{error}");
        let error = Error::from(failed(EventKind(99), 0));
        assert!(error.to_string().contains("event 99"), "{error}");
    }
}
