//! Datagram queue pairs found by address and port.
//!
//! There is no connection: a service tells whoever asks the number and the key of its queue pair, and the way to it is the
//! address that was asked. Both may then forget each other's identifier.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use super::{
    Event, EventChannel, EventKind, Identifier, PortSpace, RouteBuilder,
    channel::{Deadline, NOBODY_CAME, PEER_IS_SILENT},
    progress::finished,
};
use crate::{
    Address, AddressHandle, Context, Destination, Parent, PortNumber, ProtectionDomain, QueueKey,
    QueuePair, QueuePairNumber, Reset, Result, Ud,
};

/// Where a service or a multicast group takes datagrams.
#[derive(Debug, Clone)]
pub struct DatagramPeer {
    /// The way there.
    pub address: Address,
    /// The queue pair; that of a group is [`QueuePairNumber::MULTICAST`].
    pub number: QueuePairNumber,
    /// The key that it accepts.
    pub queue_key: QueueKey,
}

impl DatagramPeer {
    /// Makes the handle that datagrams to it name, in a domain, borrowed (`&domain`) or shared (`&Arc<ProtectionDomain>`).
    ///
    /// # Errors
    ///
    /// As for [`AddressHandle::create`].
    pub fn handle<'a>(
        &self,
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
    ) -> Result<AddressHandle<'a>> {
        AddressHandle::create(domain, &self.address)
    }

    /// What requests to it name, with its [`handle`](Self::handle).
    #[must_use]
    #[inline]
    pub const fn destination<'a>(&self, handle: &'a AddressHandle<'a>) -> Destination<'a> {
        Destination::new(handle, self.number, self.queue_key)
    }

    pub(super) fn from_raw(raw: &rdma_sys::rdma_ud_param) -> Self {
        Self {
            address: Address::from_raw(raw.ah_attr),
            number: QueuePairNumber::from_device(raw.qp_num),
            queue_key: QueueKey(raw.qkey),
        }
    }
}

impl RouteBuilder {
    /// Finds the device and the path for datagrams. Waits.
    ///
    /// # Errors
    ///
    /// As for [`resolve`](Self::resolve).
    pub fn resolve_datagrams(self) -> Result<DatagramRoute> {
        let (identifier, channel) = self.begin(PortSpace::UDP)?.find()?;
        Ok(DatagramRoute { identifier, channel })
    }
}

/// The device and the path that lead to a service for datagrams.
#[derive(Debug)]
pub struct DatagramRoute {
    identifier: Identifier,
    channel: EventChannel,
}

impl DatagramRoute {
    /// The device, open. See [`Identifier::context`]: everything that was resolved to one device gives the same one.
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

    /// Makes a queue pair of this device send and receive.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::activate`].
    pub fn activate<'a>(&self, queue_pair: QueuePair<'a, Ud, Reset>) -> Result<QueuePair<'a, Ud>> {
        self.identifier.activate(queue_pair)
    }

    /// Asks the service for its queue pair, and sends up to 180 bytes along. Waits for the answer; returns it with what came
    /// along, over InfiniBand and RoCE always 136 bytes, filled with zeros.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`](crate::Error::Rejected), [`Error::Connection`](crate::Error::Connection) if there is no such
    /// service; [`Error::TimedOut`](crate::Error::TimedOut); and as for [`Identifier::look_up`].
    #[doc(alias = "rdma_connect")]
    pub fn look_up(
        self,
        private_data: &[u8],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<(DatagramPeer, Vec<u8>)> {
        let deadline = Deadline::after(timeout);
        let mut asking = self.start_look_up(private_data)?;
        loop {
            if let Some(found) = asking.try_finish()? {
                return Ok(found);
            }
            if !asking.channel.wait(&deadline)? {
                return Err(deadline.missed("the answer of the datagram service", PEER_IS_SILENT));
            }
        }
    }

    /// As [`look_up`](Self::look_up), without waiting.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::look_up`].
    pub fn start_look_up(self, private_data: &[u8]) -> Result<LookingUp> {
        let Self { identifier, channel } = self;
        identifier.look_up(private_data)?;
        Ok(LookingUp { identifier: Some(identifier), channel })
    }
}

/// A service that was asked for its queue pair.
///
/// As a file descriptor it becomes readable when [`try_finish`](Self::try_finish) has something to do.
#[derive(Debug)]
#[must_use = "the question is given up when this is dropped; `try_finish` has the answer"]
pub struct LookingUp {
    identifier: Option<Identifier>,
    channel: EventChannel,
}

impl LookingUp {
    /// The answer and what came along, `None` if there is none yet. Never waits.
    ///
    /// # Errors
    ///
    /// As for [`DatagramRoute::look_up`]; [`Error::Invalid`](crate::Error::Invalid) after it has finished.
    pub fn try_finish(&mut self) -> Result<Option<(DatagramPeer, Vec<u8>)>> {
        while let Some(event) = self.channel.try_event()? {
            if event.kind() == EventKind::ADDRESS_CHANGED {
                continue;
            }
            drop(self.identifier.take().ok_or_else(finished)?);
            let answer = event.expect(EventKind::ESTABLISHED)?;
            let peer = answer.datagram_peer().cloned().ok_or_else(finished)?;
            return Ok(Some((peer, answer.into_private_data())));
        }
        Ok(None)
    }
}

impl AsFd for LookingUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Answers those who look for a datagram queue pair at an address and port.
///
/// As a file descriptor it becomes readable when somebody asks. Several threads may take requests at a time.
#[derive(Debug)]
pub struct DatagramListener {
    identifier: Identifier,
    channel: EventChannel,
}

impl DatagramListener {
    /// Listens at an address; port 0 takes a free one. The port numbers are not those of [`Listener`](super::Listener)s.
    ///
    /// # Errors
    ///
    /// As for [`Listener::bind`](super::Listener::bind).
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let channel = EventChannel::create()?;
        let identifier = Identifier::create(&channel, PortSpace::UDP)?;
        identifier.bind(address)?;
        identifier.listen(128)?;
        Ok(Self { identifier, channel })
    }

    /// Where it listens, with the port that it was given.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.identifier.local_address()
    }

    /// The next request, `None` if there is none now. Never waits.
    ///
    /// # Errors
    ///
    /// [`Error::Connection`](crate::Error::Connection) if the device of this address was removed.
    pub fn try_next(&self) -> Result<Option<DatagramRequest>> {
        while let Some(mut event) = self.channel.try_event()? {
            if let Some(identifier) = event.take_request() {
                let private_data = event.into_private_data();
                return Ok(Some(DatagramRequest { identifier, private_data }));
            }
            if event.kind() == EventKind::DEVICE_REMOVAL {
                return Err(event.into());
            }
        }
        Ok(None)
    }

    /// Waits for the next request, for ever with `None`.
    ///
    /// # Errors
    ///
    /// As for [`try_next`](Self::try_next), and [`Error::TimedOut`](crate::Error::TimedOut).
    pub fn next(&self, timeout: impl Into<Option<Duration>>) -> Result<DatagramRequest> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(request) = self.try_next()? {
                return Ok(request);
            }
            if !self.channel.wait(&deadline)? {
                return Err(deadline.missed("waiting for somebody to ask", NOBODY_CAME));
            }
        }
    }
}

impl AsFd for DatagramListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Somebody who asks for a datagram queue pair. Dropping it says no.
#[derive(Debug)]
#[must_use = "the peer is refused when this is dropped"]
pub struct DatagramRequest {
    identifier: Identifier,
    private_data: Vec<u8>,
}

impl DatagramRequest {
    /// What was sent along; over InfiniBand and RoCE always 180 bytes, filled with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The device that it came by, open. See [`Identifier::context`].
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

    /// The address of who asks.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.identifier.peer_address()
    }

    /// Makes a queue pair of this device send and receive. One serves any number of requests.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::activate`].
    pub fn activate<'a>(&self, queue_pair: QueuePair<'a, Ud, Reset>) -> Result<QueuePair<'a, Ud>> {
        self.identifier.activate(queue_pair)
    }

    /// Tells the queue pair, which [`activate`](Self::activate) made ready, and up to 136 bytes.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::answer`].
    #[doc(alias = "rdma_accept")]
    pub fn answer(self, queue_pair: &QueuePair<'_, Ud>, private_data: &[u8]) -> Result<()> {
        self.identifier.answer(queue_pair, private_data)
    }

    /// Says no, and tells why in up to 136 bytes.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::reject`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.identifier.reject(private_data)
    }
}

impl Event {
    /// Where to send datagrams to: in the answer of a service, and when a multicast group was joined.
    #[must_use]
    pub fn datagram_peer(&self) -> Option<&DatagramPeer> {
        self.datagram_peer.as_ref()
    }
}
