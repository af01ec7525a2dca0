//! The way to a peer.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use super::{
    Connecting, Connection, EventChannel, EventKind, Identifier, Parameters, PortSpace,
    channel::{Deadline, PEER_IS_SILENT},
    parameters::DEFAULT_TIMEOUT,
    progress::finished,
};
use crate::{Context, Initialized, PortNumber, QueuePair, Rc, Reset, Result};

/// The device and the path that lead to a peer. Nothing has been sent to the peer's connection manager yet.
#[derive(Debug)]
pub struct Route {
    identifier: Identifier,
    channel: EventChannel,
}

impl Route {
    /// Begins to look for the way to the address and port of a peer.
    pub fn to(peer: SocketAddr) -> RouteBuilder {
        RouteBuilder { peer, source: None, type_of_service: None, timeout: Some(DEFAULT_TIMEOUT) }
    }

    /// The device, open. See [`Identifier::context`]: all connections of one device give the same one.
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

    /// Connects to the peer. Waits for its answer, at most the time-out of the parameters.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`](crate::Error::Rejected) with the reason and what the peer sent along; [`Error::Connection`](crate::Error::Connection) if it cannot be reached;
    /// [`Error::TimedOut`](crate::Error::TimedOut); and as for [`Identifier::connect`]. The queue pair is dropped then.
    #[doc(alias = "rdma_connect")]
    pub fn connect<'a>(
        self,
        queue_pair: QueuePair<'a, Rc, Initialized>,
        parameters: &Parameters,
    ) -> Result<Connection<'a>> {
        self.start_connect(queue_pair, parameters)?.finish()
    }

    /// As [`connect`](Self::connect), without waiting.
    ///
    /// # Errors
    ///
    /// As for [`Identifier::connect`].
    pub fn start_connect<'a>(
        self,
        queue_pair: QueuePair<'a, Rc, Initialized>,
        parameters: &Parameters,
    ) -> Result<Connecting<'a>> {
        Connecting::ask(self.identifier, self.channel, queue_pair, parameters)
    }
}

/// Where to, and how to look for the way.
#[derive(Debug, Clone)]
#[must_use = "nothing is looked for before `resolve`"]
pub struct RouteBuilder {
    peer: SocketAddr,
    source: Option<SocketAddr>,
    type_of_service: Option<u8>,
    timeout: Option<Duration>,
}

impl RouteBuilder {
    /// The address of this side, and with it the device; the one that the routing table has if not set. Port 0 takes a free
    /// one.
    pub fn from(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// The type of service of the packets, for RoCE v2 the DSCP in the upper six bits.
    pub fn type_of_service(mut self, value: u8) -> Self {
        self.type_of_service = Some(value);
        self
    }

    /// How long to look; 10 seconds if not set, for ever with `None`.
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Finds the device and the path. Waits.
    ///
    /// # Errors
    ///
    /// [`Error::Connection`](crate::Error::Connection) if the address does not answer, or no RDMA device leads there; [`Error::TimedOut`](crate::Error::TimedOut); and as
    /// for [`EventChannel::create`] and [`Identifier::resolve_address`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve(self) -> Result<Route> {
        self.start()?.finish()
    }

    /// As [`resolve`](Self::resolve), without waiting.
    ///
    /// # Errors
    ///
    /// As for [`EventChannel::create`] and [`Identifier::resolve_address`].
    pub fn start(self) -> Result<Resolving> {
        self.begin(PortSpace::TCP)
    }

    pub(super) fn begin(self, ports: PortSpace) -> Result<Resolving> {
        let Self { peer, source, type_of_service, timeout } = self;
        let channel = EventChannel::create()?;
        let identifier = Identifier::create(&channel, ports)?;
        if let Some(value) = type_of_service {
            identifier.set_type_of_service(value)?;
        }
        let deadline = Deadline::after(timeout);
        identifier.resolve_address_until(source, peer, &deadline)?;
        Ok(Resolving { identifier: Some(identifier), channel, deadline })
    }
}

/// A way that is being looked for.
///
/// As a file descriptor it becomes readable when [`try_finish`](Self::try_finish) has something to do.
#[derive(Debug)]
#[must_use = "the search ends when this is dropped; `try_finish` has the route"]
pub struct Resolving {
    identifier: Option<Identifier>,
    channel: EventChannel,
    deadline: Deadline,
}

impl Resolving {
    /// The route if it is found, `None` if not yet. Never waits.
    ///
    /// # Errors
    ///
    /// [`Error::Connection`](crate::Error::Connection) if there is none; [`Error::Invalid`](crate::Error::Invalid) after it
    /// has finished.
    pub fn try_finish(&mut self) -> Result<Option<Route>> {
        let found = self.try_find()?;
        Ok(found.map(|(identifier, channel)| Route { identifier, channel }))
    }

    /// Waits until the route is found.
    ///
    /// # Errors
    ///
    /// As for [`try_finish`](Self::try_finish), and [`Error::TimedOut`](crate::Error::TimedOut).
    pub fn finish(self) -> Result<Route> {
        let (identifier, channel) = self.find()?;
        Ok(Route { identifier, channel })
    }

    /// The identifier whose route is known, with its channel.
    pub(super) fn try_find(&mut self) -> Result<Option<(Identifier, EventChannel)>> {
        while let Some(event) = self.channel.try_event()? {
            let identifier = self.identifier.as_ref().ok_or_else(finished)?;
            match event.kind() {
                EventKind::ADDRESS_CHANGED => {}
                EventKind::ADDRESS_RESOLVED => {
                    event.expect(EventKind::ADDRESS_RESOLVED)?;
                    identifier.resolve_route_until(&self.deadline)?;
                }
                _ => {
                    event.expect(EventKind::ROUTE_RESOLVED)?;
                    let identifier = self.identifier.take().ok_or_else(finished)?;
                    return Ok(Some((identifier, self.channel.again())));
                }
            }
        }
        Ok(None)
    }

    pub(super) fn find(mut self) -> Result<(Identifier, EventChannel)> {
        loop {
            if let Some(found) = self.try_find()? {
                return Ok(found);
            }
            if !self.channel.wait(&self.deadline)? {
                return Err(self
                    .deadline
                    .missed("looking for the way to the peer", PEER_IS_SILENT));
            }
        }
    }
}

impl AsFd for Resolving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
