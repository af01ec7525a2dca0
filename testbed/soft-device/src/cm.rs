//! The connection manager: connections by IP address between identifiers of one process.
//!
//! It plays librdmacm and the kernel below it. What goes over the wire there (REQ, REP, RTU, REJ, DREQ)
//! is done to the peer at once here; what waits for the user there (fetching an event, acknowledging it)
//! waits for the user here.

mod accept;
mod address;
mod channel;
mod connect;
mod device;
mod endpoint;
mod event;
mod identifier;
mod multicast;
mod queue_pair;
mod resolve;

use std::net::SocketAddr;

use rdma_sys as c;

use crate::{async_event::Acknowledgements, slab::Slab};

pub(crate) use accept::{
    rdma_accept, rdma_disconnect, rdma_establish, rdma_notify, rdma_reject, rdma_reject_ece,
};
pub(crate) use address::{rdma_freeaddrinfo, rdma_getaddrinfo};
pub(crate) use channel::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_event_str,
    rdma_get_cm_event,
};
pub(crate) use connect::{rdma_connect, rdma_get_request, rdma_listen};
pub(crate) use device::{rdma_free_devices, rdma_get_devices};
pub(crate) use endpoint::{rdma_create_ep, rdma_destroy_ep};
pub(crate) use identifier::{
    rdma_create_id, rdma_destroy_id, rdma_get_dst_port, rdma_get_remote_ece, rdma_get_src_port,
    rdma_migrate_id, rdma_set_local_ece, rdma_set_option,
};
pub(crate) use multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
pub(crate) use queue_pair::{
    rdma_create_qp, rdma_create_qp_ex, rdma_destroy_qp, rdma_init_qp_attr,
};
pub(crate) use resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};

use channel::CmChannel;
use device::CmDevice;

/// Everything of the connection manager.
pub(crate) struct Manager {
    channels: Slab<CmChannel>,
    identifiers: Slab<Identifier>,
    devices: Vec<CmDevice>,
    next_port: u16,
    next_psn: u32,
}

impl Manager {
    pub(crate) const fn new() -> Self {
        Self {
            channels: Slab::starting_at(1),
            identifiers: Slab::starting_at(1),
            devices: Vec::new(),
            // The first port that needs no privilege and is no service's.
            next_port: 49152,
            next_psn: 0x1234,
        }
    }

    /// The identifiers of a device, in words.
    pub(crate) fn alive(&self, device: u32) -> impl Iterator<Item = String> {
        self.identifiers
            .iter()
            .filter(move |(_, each)| each.device == Some(device))
            .map(|(number, each)| format!("rdma_cm_id {number}, {:?}", each.state))
    }
}

/// How far an identifier is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// It asked and waits for an answer.
    Connecting,
    /// A peer asks it.
    Requested,
    /// It accepted and waits for the peer to be ready.
    Accepted,
    /// The peer accepted, and it is to get ready.
    Responded,
    Connected,
    Disconnected,
}

/// An `rdma_cm_id`.
struct Identifier {
    /// Address of its C struct.
    raw: usize,
    channel: u32,
    /// It was made without a channel, and each call waits for what it begins.
    waits: bool,
    ps: c::rdma_port_space,
    state: State,
    device: Option<u32>,
    port: u8,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    reuses_address: bool,
    /// The identifier at the other end.
    peer: Option<u32>,
    /// Of one that a peer asked: the one that listened.
    listener: Option<u32>,
    backlog: u32,
    events: Acknowledgements,
    own: Side,
    ece: c::ibv_ece,
}

/// What one end of a connection tells the other.
#[derive(Debug, Clone, Copy, Default)]
struct Side {
    qp_num: u32,
    psn: u32,
    /// Reads and atomics that it answers at a time, and that it asks for.
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    flow_control: u8,
    srq: u8,
}
