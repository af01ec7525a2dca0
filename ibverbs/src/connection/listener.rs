//! Listening, and the requests that come in.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use super::{
    Connecting, Connection, Event, EventChannel, EventKind, Identifier, Parameters, PortSpace,
    channel::{Deadline, NOBODY_CAME},
};
use crate::{Context, Initialized, PortNumber, QueuePair, Rc, Reset, Result};

/// Takes connection requests at an address and port.
///
/// As a file descriptor it becomes readable when there is a request. Several threads may accept at a time.
///
/// # Examples
///
/// ```
/// use std::{net::SocketAddr, time::Duration};
///
/// use ibverbs::{
///     CompletionQueue, ProtectionDomain,
///     connection::{Listener, Parameters},
/// };
///
/// fn serve_one(address: SocketAddr) -> ibverbs::Result<()> {
///     let listener = Listener::bind(address)?;
///     let request = listener.accept(Duration::from_secs(60))?;
///     // What the request came in by: everything is made of that device.
///     let context = request.context()?;
///     let domain = ProtectionDomain::allocate(&*context)?;
///     let queue = CompletionQueue::create(&*context, 16)?;
///     let pair = request.initialize(domain.queue_pair(&queue, &queue).create()?)?;
///     // Receives are posted here, before the peer can send.
///     let connection = request.accept(pair, &Parameters::new())?;
///     drop(connection);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Listener {
    identifier: Identifier,
    channel: EventChannel,
}

impl Listener {
    /// Listens at an address; port 0 takes a free one, and the unspecified address (`0.0.0.0`, `[::]`) takes requests on all
    /// devices, `[::]` those by IPv4 too.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb), `EADDRINUSE` if the port is taken, `ENODEV` or `EADDRNOTAVAIL` if no device
    /// has the address; and as for [`EventChannel::create`]. See `rdma_bind_addr(3)`, `rdma_listen(3)`.
    #[doc(alias = "rdma_listen")]
    pub fn bind(address: SocketAddr) -> Result<Self> {
        Self::at(address).listen()
    }

    /// As [`bind`](Self::bind), with options.
    pub fn at(address: SocketAddr) -> ListenerBuilder {
        let (backlog, reuse_address, one_family_only) = (128, false, false);
        ListenerBuilder { address, backlog, reuse_address, one_family_only }
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
    /// [`Error::Connection`](crate::Error::Connection) if the device of this address was removed;
    /// [`Error::Verb`](crate::Error::Verb) with `EMFILE` if there are too many open files: each request has one.
    pub fn try_accept(&self) -> Result<Option<Request>> {
        while let Some(mut event) = self.channel.try_event()? {
            if let Some(identifier) = event.take_request() {
                return Request::new(identifier, event).map(Some);
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
    /// As for [`try_accept`](Self::try_accept), and [`Error::TimedOut`](crate::Error::TimedOut).
    pub fn accept(&self, timeout: impl Into<Option<Duration>>) -> Result<Request> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(request) = self.try_accept()? {
                return Ok(request);
            }
            if !self.channel.wait(&deadline)? {
                return Err(deadline.missed("waiting for a connection request", NOBODY_CAME));
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Where and how to listen.
#[derive(Debug, Clone)]
#[must_use = "nothing listens before `listen`"]
pub struct ListenerBuilder {
    address: SocketAddr,
    backlog: u32,
    reuse_address: bool,
    one_family_only: bool,
}

impl ListenerBuilder {
    /// How many requests may wait; 128 if not set. What comes in over that is not answered, and asks again.
    pub fn backlog(mut self, count: u32) -> Self {
        self.backlog = count;
        self
    }

    /// Takes the port although an ended connection still holds it.
    pub fn reuse_address(mut self) -> Self {
        self.reuse_address = true;
        self
    }

    /// Keeps `[::]` from taking requests by IPv4 too.
    pub fn one_family_only(mut self) -> Self {
        self.one_family_only = true;
        self
    }

    /// Listens.
    ///
    /// # Errors
    ///
    /// As for [`Listener::bind`].
    pub fn listen(self) -> Result<Listener> {
        let Self { address, backlog, reuse_address, one_family_only } = self;
        let channel = EventChannel::create()?;
        let identifier = Identifier::create(&channel, PortSpace::TCP)?;
        if reuse_address {
            identifier.set_reuse_address(true)?;
        }
        if one_family_only {
            identifier.set_one_family_only(true)?;
        }
        identifier.bind(address)?;
        identifier.listen(backlog)?;
        Ok(Listener { identifier, channel })
    }
}

/// A peer that asks for a connection. Dropping it says no.
///
/// It must be answered within about a minute, or the peer gives up.
#[derive(Debug)]
#[must_use = "the peer is refused when this is dropped"]
pub struct Request {
    identifier: Identifier,
    channel: EventChannel,
    private_data: Vec<u8>,
    offered_reads: u8,
    wanted_reads: u8,
}

impl Request {
    fn new(mut identifier: Identifier, event: Event) -> Result<Self> {
        // A channel of its own, so that one connection's events are not taken by another one's thread.
        let channel = EventChannel::create()?;
        identifier.migrate(&channel)?;
        let (offered_reads, wanted_reads) = (event.outgoing_reads(), event.incoming_reads());
        let private_data = event.into_private_data();
        Ok(Self { identifier, channel, private_data, offered_reads, wanted_reads })
    }

    /// What the peer sent along; over InfiniBand and RoCE always 56 bytes, filled with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// How many reads and atomics of this side the peer answers at a time.
    #[must_use]
    #[doc(alias = "initiator_depth")]
    pub fn offered_reads(&self) -> u8 {
        self.offered_reads
    }

    /// How many reads and atomics at a time the peer wants this side to answer.
    #[must_use]
    #[doc(alias = "responder_resources")]
    pub fn wanted_reads(&self) -> u8 {
        self.wanted_reads
    }

    /// The device that it came by, open. See [`Identifier::context`]: all connections of one device give the same one.
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

    /// The address of this side.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.identifier.local_address()
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.identifier.peer_address()
    }

    /// Makes a queue pair of this device take receives. Those that the peer will need at once are best posted now.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::initialize`].
    pub fn initialize<'a>(
        &self,
        queue_pair: QueuePair<'a, Rc, Reset>,
    ) -> Result<QueuePair<'a, Rc, Initialized>> {
        self.identifier.initialize(queue_pair)
    }

    /// Accepts the peer. Waits for its confirmation, at most the time-out of the parameters.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`](crate::Error::Rejected), [`Error::Connection`](crate::Error::Connection) or
    /// [`Error::TimedOut`](crate::Error::TimedOut) if the peer has given up; and as for [`Identifier::accept`]. The queue
    /// pair is dropped then.
    #[doc(alias = "rdma_accept")]
    pub fn accept<'a>(
        self,
        queue_pair: QueuePair<'a, Rc, Initialized>,
        parameters: &Parameters,
    ) -> Result<Connection<'a>> {
        self.start_accept(queue_pair, parameters)?.finish()
    }

    /// As [`accept`](Self::accept), without waiting.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::accept`].
    pub fn start_accept<'a>(
        self,
        queue_pair: QueuePair<'a, Rc, Initialized>,
        parameters: &Parameters,
    ) -> Result<Connecting<'a>> {
        let Self { identifier, channel, private_data, offered_reads: _, wanted_reads: _ } = self;
        Connecting::accept(identifier, channel, queue_pair, parameters, private_data)
    }

    /// Says no, and tells the peer why in up to 148 bytes.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::reject`]. The request is dropped, so that the peer is told without them.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.identifier.reject(private_data)
    }
}
