//! What the connection manager reports.

use rdma_sys as c;

use super::{Side, channel::CmChannel};
use crate::{address::Vector, fabric::Fabric};

/// The bytes of private data that each message of the InfiniBand connection manager has, of which a
/// receiver always sees all.
pub(super) const REQUEST_DATA: usize = 56;
pub(super) const REPLY_DATA: usize = 196;
pub(super) const REJECT_DATA: usize = 148;
/// Of a datagram service: its request and its reply.
pub(super) const LOOKUP_DATA: usize = 180;
pub(super) const LOOKUP_REPLY_DATA: usize = 136;

/// Why a request was rejected: nobody listens there, or the listener says so.
pub(super) const NO_LISTENER: i32 = 8;
pub(super) const BY_CONSUMER: i32 = 28;

/// An event on its way to whoever fetches it.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) identifier: u32,
    pub(super) kind: c::rdma_cm_event_type,
    pub(super) status: i32,
    pub(super) parameters: Parameters,
    /// What the user gave with a multicast group, shown in place of private data.
    pub(super) context: usize,
    /// Padded with zeros to what the message has room for.
    pub(super) private_data: Vec<u8>,
}

/// What comes with an event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Parameters {
    None,
    Connection(Side),
    /// Where datagrams go: address vector, queue pair number and key.
    Datagram(Vector, u32, u32),
}

impl Event {
    pub(super) fn new(identifier: u32, kind: c::rdma_cm_event_type) -> Self {
        Self {
            identifier,
            kind,
            status: 0,
            parameters: Parameters::None,
            context: 0,
            private_data: Vec::new(),
        }
    }

    pub(super) fn status(self, status: i32) -> Self {
        Self { status, ..self }
    }

    pub(super) fn connection(self, peer: Side) -> Self {
        Self { parameters: Parameters::Connection(peer), ..self }
    }

    /// Adds private data, padded to `room`.
    pub(super) fn data(self, given: &[u8], room: usize) -> Self {
        let mut private_data = given.to_vec();
        private_data.resize(room, 0);
        Self { private_data, ..self }
    }
}

impl Fabric {
    /// Queues an event on the channel of its identifier.
    pub(super) fn tell(&mut self, event: Event) {
        let Some(identifier) = self.cm.identifiers.get(event.identifier) else { return };
        let channel = match identifier.listener.and_then(|number| self.cm.identifiers.get(number)) {
            // A request comes to the channel of the listener, whatever that is by now.
            Some(listener) if event.kind == c::RDMA_CM_EVENT_CONNECT_REQUEST => listener.channel,
            _ => identifier.channel,
        };
        if let Some(channel) = self.cm.channels.get_mut(channel) {
            channel.push(event);
        }
    }

    /// The channel of an identifier.
    pub(super) fn channel_of(&mut self, identifier: u32) -> Option<&mut CmChannel> {
        let number = self.cm.identifiers.get(identifier)?.channel;
        self.cm.channels.get_mut(number)
    }
}
