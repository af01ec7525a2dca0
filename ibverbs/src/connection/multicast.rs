//! Multicast groups, joined through the connection manager.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use super::{DatagramPeer, EventChannel, EventKind, Identifier, PortSpace, channel::Deadline};
use crate::{
    Context, MulticastMembership, Parent, PortNumber, QueuePair, ReadyToSend, Reset, Result, Ud,
};

/// What a member of a group wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemberKind {
    /// To send and to receive.
    Full,
    /// To send only: switches need not forward the group to this port. Needs a subnet manager or a network that has it.
    SendOnly,
}

/// A multicast group that this side's port has joined: with the subnet manager on InfiniBand, by an IGMP report on Ethernet.
///
/// Dropping it leaves the group.
#[derive(Debug)]
#[must_use = "the port leaves the group when this is dropped"]
pub struct MulticastGroup {
    identifier: Identifier,
    channel: EventChannel,
    group: SocketAddr,
    peer: DatagramPeer,
}

impl MulticastGroup {
    /// Joins a group, by the device that `from` is an address of, or else that the routing table has for it. Waits. The port
    /// of the group's address has no meaning. Over RoCE v2 the kernel joins IPv4 groups only.
    ///
    /// # Errors
    ///
    /// [`Error::Connection`](crate::Error::Connection) if the group cannot be joined, or no RDMA device leads there;
    /// [`Error::TimedOut`](crate::Error::TimedOut); and as for [`EventChannel::create`] and
    /// [`Identifier::resolve_address`].
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join(
        group: SocketAddr,
        from: Option<SocketAddr>,
        kind: MemberKind,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Self> {
        let deadline = Deadline::after(timeout);
        let channel = EventChannel::create()?;
        let identifier = Identifier::create(&channel, PortSpace::UDP)?;
        identifier.resolve_address_until(from, group, &deadline)?;
        loop {
            while let Some(event) = channel.try_event()? {
                match event.kind() {
                    EventKind::ADDRESS_CHANGED => {}
                    EventKind::ADDRESS_RESOLVED => {
                        event.expect(EventKind::ADDRESS_RESOLVED)?;
                        identifier.join_multicast(group, kind)?;
                    }
                    _ => {
                        let event = event.expect(EventKind::MULTICAST_JOINED)?;
                        if let Some(peer) = event.datagram_peer().cloned() {
                            return Ok(Self { identifier, channel, group, peer });
                        }
                    }
                }
            }
            if !channel.wait(&deadline)? {
                return Err(deadline.missed(
                    "joining the multicast group",
                    "see that the interface is up, over InfiniBand that a subnet manager runs, or wait longer",
                ));
            }
        }
    }

    /// Where to send datagrams for the group.
    #[must_use]
    pub fn peer(&self) -> &DatagramPeer {
        &self.peer
    }

    /// The device, open. See [`Identifier::context`].
    ///
    /// # Errors
    ///
    /// As for [`Identifier::context`].
    pub fn context(&self) -> Result<Arc<Context>> {
        self.identifier.context()
    }

    /// The port of the device.
    #[must_use]
    pub fn port(&self) -> Option<PortNumber> {
        self.identifier.port()
    }

    /// Makes a queue pair of this device send to the group and accept what has the group's key.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::activate`].
    pub fn activate<'a>(&self, queue_pair: QueuePair<'a, Ud, Reset>) -> Result<QueuePair<'a, Ud>> {
        self.identifier.activate(queue_pair)
    }

    /// Lets a queue pair, borrowed or shared (`&Arc<…>`), receive what is sent to the group.
    ///
    /// # Errors
    ///
    /// As for [`MulticastMembership::attach`].
    pub fn attach<'a>(
        &self,
        queue_pair: impl Into<Parent<'a, QueuePair<'a, Ud>>>,
    ) -> Result<MulticastMembership<'a, ReadyToSend>> {
        MulticastMembership::attach(queue_pair, self.peer.address.gid(), self.peer.address.lid())
    }

    /// What has happened to the group since, `None` if nothing; [`EventKind::MULTICAST_ERROR`] says that this side is no
    /// member any more. Never waits.
    ///
    /// # Errors
    ///
    /// As for [`EventChannel::try_event`].
    pub fn try_event(&self) -> Result<Option<super::Event>> {
        self.channel.try_event()
    }
}

impl Drop for MulticastGroup {
    fn drop(&mut self) {
        if let Err(error) = self.identifier.leave_multicast(self.group) {
            log::debug!("{error}; the group ends with its identifier");
        }
    }
}
