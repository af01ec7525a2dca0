//! Connections by IP address and port, through librdmacm.
//!
//! The connection manager finds the device and the path that lead to an address, exchanges the numbers of queue pairs
//! together with up to 56 bytes of private data, and tells each side when the other one is gone. Its tests run
//! over RoCE; InfiniBand and iWARP follow its manual. librdmacm is opened on first use.
//!
//! | step | server | client |
//! |---|---|---|
//! | begin | [`Listener::bind`] | [`Route::to`] … [`resolve`](RouteBuilder::resolve) |
//! | a peer | [`Listener::accept`] gives a [`Request`] | a [`Route`] |
//! | its device | [`Request::context`] | [`Route::context`] |
//! | a queue pair of the caller's making that takes receives | [`Request::initialize`] | [`Route::initialize`] |
//! | connect | [`Request::accept`] | [`Route::connect`] |
//! | transfer | [`Connection::queue_pair`] | [`Connection::queue_pair`] |
//!
//! For datagrams, [`DatagramListener`] tells the number and the key of a queue pair to whoever finds it by
//! [`resolve_datagrams`](RouteBuilder::resolve_datagrams) and [`look_up`](DatagramRoute::look_up), and [`MulticastGroup`] joins a
//! group.
//!
//! Each step that waits has a form that does not (`start…`, then `try_finish`) on an object that is a file descriptor. With
//! the feature `tokio` that object can be awaited.
//! Below that are [`EventChannel`] and [`Identifier`], the connection manager's own objects.
//!
//! Queue pairs are made as everywhere in this crate, with the sizes, the way of posting and the completion queues that the
//! caller wants, and connected through the manager (what its manual calls an external queue pair). They belong to the
//! caller and never to an identifier, so that nothing here must be dropped before something else.

mod address;
mod channel;
mod datagram;
mod event;
mod identifier;
mod listener;
mod multicast;
mod parameters;
mod progress;
mod reason;
mod route;
#[cfg(feature = "tokio")]
mod tokio;

pub use channel::EventChannel;
pub use datagram::{DatagramListener, DatagramPeer, DatagramRequest, DatagramRoute, LookingUp};
pub use event::{Event, EventKind};
pub use identifier::{Identifier, IdentifierNumber, PortSpace};
pub use listener::{Listener, ListenerBuilder, Request};
pub use multicast::{MemberKind, MulticastGroup};
pub use parameters::Parameters;
pub use progress::Connecting;
pub use reason::RejectReason;
pub use route::{Resolving, Route, RouteBuilder};
#[cfg(feature = "tokio")]
pub use tokio::Progress;

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use crate::{Context, QueuePair, Rc, Reset, Result};
use channel::Deadline;

/// A function of librdmacm by its C name, together with its [`Verb`](crate::Verb).
macro_rules! call {
    ($library:expr, $name:ident) => {{
        let verb = $crate::Verb::new(stringify!($name));
        let table = $library.connection_manager().map_err($crate::Error::from);
        table.and_then(|table| verb.find(table.$name)).map(|function| (verb, function))
    }};
}
use call;

/// An established connection: a queue pair that is ready, and the means to learn that the peer is gone.
///
/// `Connection<'static>` keeps its domain and its completion queues alive itself. Dropping it destroys the queue pair and
/// tells the peer.
///
/// As a file descriptor it becomes readable when something has happened; [`try_event`](Self::try_event) tells what.
#[derive(Debug)]
pub struct Connection<'a> {
    queue_pair: QueuePair<'a, Rc>,
    identifier: Identifier,
    channel: EventChannel,
    private_data: Vec<u8>,
}

impl<'a> Connection<'a> {
    /// Connects to `peer` with a queue pair that `make` makes on the device that leads there. Waits, at most the time-out of
    /// the parameters for each of the two steps.
    ///
    /// [`Route`] does the same in steps, so that receives can be posted before the peer can send.
    ///
    /// # Errors
    ///
    /// As for [`RouteBuilder::resolve`], `make` and [`Route::connect`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use ibverbs::{CompletionQueue, ProtectionDomain, QueuePair};
    /// use ibverbs::connection::{Connection, Parameters};
    ///
    /// let peer = "192.0.2.7:4420".parse()?;
    /// let connection = Connection::connect(peer, &Parameters::new(), |context| {
    ///     let domain = Arc::new(ProtectionDomain::allocate(context)?);
    ///     let queue = Arc::new(CompletionQueue::create(context, 64)?);
    ///     QueuePair::builder(domain, &queue, &queue).max_send_requests(32).create()
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(
        peer: SocketAddr,
        parameters: &Parameters,
        make: impl FnOnce(&Arc<Context>) -> Result<QueuePair<'a, Rc, Reset>>,
    ) -> Result<Self> {
        let route = Route::to(peer).timeout(parameters.timeout).resolve()?;
        let queue_pair = route.initialize(make(&route.context()?)?)?;
        route.connect(queue_pair, parameters)
    }

    /// The queue pair, ready to send and to receive.
    #[must_use]
    pub fn queue_pair(&self) -> &QueuePair<'a, Rc> {
        &self.queue_pair
    }

    /// What the peer sent along with its request or its answer.
    ///
    /// Over InfiniBand and RoCE these are 56 bytes of a request and 196 of an answer, filled with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
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

    /// Ends the connection: what is still posted completes as flushed, and the peer is told. Does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`](crate::Error::Transition), [`Error::Verb`](crate::Error::Verb) if the device is gone. See `rdma_disconnect(3)`.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        self.queue_pair.fail()?;
        self.identifier.disconnect()
    }

    /// What has happened to the connection since, `None` if nothing. Never waits.
    ///
    /// When the peer has ended it ([`EventKind::DISCONNECTED`]), the queue pair is put into its error state, so that what
    /// is still posted completes as flushed, and the peer is answered.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the channel is broken.
    pub fn try_event(&self) -> Result<Option<Event>> {
        let event = self.channel.try_event()?;
        if event.as_ref().is_some_and(|event| event.kind() == EventKind::DISCONNECTED) {
            self.queue_pair.fail()?;
            // Only the first of both sides to say so needs the answer, and it does not wait for it.
            if let Err(error) = self.identifier.disconnect() {
                log::debug!("the peer had the answer already: {error}");
            }
        }
        Ok(event)
    }

    /// Waits until the connection has ended, whichever side ended it; for ever with `None`.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`](crate::Error::TimedOut) if it still stands then; [`Error::Connection`](crate::Error::Connection) if the device was removed.
    pub fn wait_disconnected(&self, timeout: impl Into<Option<Duration>>) -> Result<()> {
        let deadline = Deadline::after(timeout);
        loop {
            while let Some(event) = self.try_event()? {
                match event.kind() {
                    EventKind::DISCONNECTED | EventKind::TIME_WAIT_OVER => return Ok(()),
                    EventKind::DEVICE_REMOVAL => return Err(event.into()),
                    _ => {}
                }
            }
            if !self.channel.wait(&deadline)? {
                return Err(deadline.missed(
                    "the end of the connection",
                    "end it with `disconnect`, or wait longer",
                ));
            }
        }
    }

    /// Its parts. Dropping the identifier ends the connection.
    #[must_use]
    pub fn into_parts(self) -> (QueuePair<'a, Rc>, Identifier, EventChannel) {
        let Self { queue_pair, identifier, channel, private_data: _ } = self;
        (queue_pair, identifier, channel)
    }
}

impl AsFd for Connection<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
