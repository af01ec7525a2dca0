//! Identifiers: one end of a connection, or of one to be.
#![expect(unsafe_code, reason = "owns an rdma_cm_id")]

mod datagram;

use std::{
    ffi::{c_int, c_void},
    fmt,
    mem::offset_of,
    net::SocketAddr,
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use libc::sockaddr_storage;
use rdma_sys::rdma_cm_id;

use super::{
    Event, EventChannel, EventKind, Parameters,
    address::{self, RawAddress},
    call,
    channel::{Channel, Deadline},
    parameters::{Reads, private_length},
};
use crate::{
    Context, Devices, Error, Initialized, PortNumber, QueuePair, QueuePairState, Rc,
    ReadyToReceive, Reset, Result,
    queue_pair::{
        connect::{read_depth, receiver_not_ready_code},
        transition::Transition,
    },
};

/// One end of a connection: an address, then a device and a route, then a peer.
///
/// This is the connection manager's own interface, where every call returns at once and what came of it arrives as an
/// [`Event`] on the channel. [`Connection`](super::Connection) and [`Listener`](super::Listener) are simpler.
///
/// An identifier never owns a queue pair, as it can in C: it is told the number of one, and gives the attributes for each
/// of its state changes. So queue pair and identifier can be dropped in any order. Dropping the identifier ends the
/// connection, or rejects the request; it enters the kernel and may wait there for a moment.
pub struct Identifier {
    /// From `rdma_create_id` or a request, on `channel`; freed only by drop. `qp` in it is always null.
    raw: NonNull<rdma_cm_id>,
    number: IdentifierNumber,
    /// What the peer's request says about reads; all of them for an identifier that was created.
    offered: Reads,
    /// Held so that it outlives the identifier.
    channel: Arc<Channel>,
}

/// Tells identifiers apart in [`Event::identifier`]. Never given twice in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdentifierNumber(usize);

impl IdentifierNumber {
    pub(super) fn next() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The form in which librdmacm carries it; never dereferenced.
    fn to_user_data(self) -> *mut c_void {
        ptr::without_provenance_mut(self.0)
    }
}

/// Which ports an identifier's port number is one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortSpace(pub u32);

impl PortSpace {
    /// Reliable connections.
    pub const TCP: Self = Self(rdma_sys::RDMA_PS_TCP);
    /// Datagrams.
    pub const UDP: Self = Self(rdma_sys::RDMA_PS_UDP);
}

impl Identifier {
    /// Makes an identifier whose events arrive on `channel`. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the kernel is out of memory. See `rdma_create_id(3)`.
    #[doc(alias = "rdma_create_id")]
    pub fn create(channel: &EventChannel, ports: PortSpace) -> Result<Self> {
        let channel = Arc::clone(&channel.0);
        let number = IdentifierNumber::next();
        let (verb, create) = call!(channel.library(), rdma_create_id)?;
        let mut raw = ptr::null_mut();
        {
            let (place, user_data) = (&raw mut raw, number.to_user_data());
            let _held = channel.lock();
            // SAFETY: the channel is live, and `raw` is a valid place; the user data is a number.
            verb.status(unsafe { create(channel.as_raw(), place, user_data, ports.0) })?;
        }
        let raw = NonNull::new(raw).ok_or_else(|| verb.unsupported())?;
        Ok(Self { raw, number, offered: Reads { incoming: u8::MAX, outgoing: u8::MAX }, channel })
    }

    /// The identifier that came with a connection request.
    ///
    /// # Safety
    ///
    /// `raw` is from that event, on `channel`, and nobody else destroys it; the channel's lock is held.
    pub(super) unsafe fn of_request(
        raw: NonNull<rdma_cm_id>,
        channel: Arc<Channel>,
        offered: Reads,
    ) -> Self {
        let number = IdentifierNumber::next();
        // SAFETY: `raw` is live and not shared yet; until now it has the listener's number.
        unsafe { (*raw.as_ptr()).context = number.to_user_data() };
        Self { raw, number, offered, channel }
    }

    /// What its events call it.
    #[must_use]
    pub fn number(&self) -> IdentifierNumber {
        self.number
    }

    /// Finds the device that leads to `destination`, from `source` if there is one. Ends in
    /// [`EventKind::ADDRESS_RESOLVED`].
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `ENODEV` or `EADDRNOTAVAIL` if no device of this machine has the source address. See
    /// `rdma_resolve_addr(3)`.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        self.resolve_address_until(source, destination, &Deadline::after(timeout))
    }

    pub(super) fn resolve_address_until(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        deadline: &Deadline,
    ) -> Result<()> {
        let (verb, resolve) = call!(self.channel.library(), rdma_resolve_addr)?;
        let mut source = source.map(RawAddress::from);
        let source = source.as_mut().map_or(ptr::null_mut(), RawAddress::as_mut_ptr);
        let mut destination = RawAddress::from(destination);
        let timeout = deadline.for_the_kernel();
        let _held = self.channel.lock();
        // SAFETY: `raw` is live and the lock is held; both addresses are read in this call only.
        let returned = unsafe { resolve(self.as_raw(), source, destination.as_mut_ptr(), timeout) };
        verb.status(returned)
    }

    /// Finds the path to the peer's address, which is resolved. Ends in [`EventKind::ROUTE_RESOLVED`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] before the address is resolved. See `rdma_resolve_route(3)`.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        self.resolve_route_until(&Deadline::after(timeout))
    }

    pub(super) fn resolve_route_until(&self, deadline: &Deadline) -> Result<()> {
        let (verb, resolve) = call!(self.channel.library(), rdma_resolve_route)?;
        let timeout = deadline.for_the_kernel();
        let _held = self.channel.lock();
        self.bound_device()?;
        // SAFETY: `raw` is live and has a device, and the lock is held.
        verb.status(unsafe { resolve(self.as_raw(), timeout) })
    }

    /// Takes a local address; port 0 takes a free one, and the unspecified address one of every device.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EADDRINUSE` if the port is taken, `ENODEV` or `EADDRNOTAVAIL` if no device has the address.
    /// See `rdma_bind_addr(3)`.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let (verb, bind) = call!(self.channel.library(), rdma_bind_addr)?;
        let mut address = RawAddress::from(address);
        let _held = self.channel.lock();
        // SAFETY: `raw` is live and the lock is held; the address is read in this call only.
        verb.status(unsafe { bind(self.as_raw(), address.as_mut_ptr()) })
    }

    /// Takes connection requests from now on: each is an [`EventKind::CONNECT_REQUEST`]. If it is not bound, it takes a free
    /// port of every device.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EADDRINUSE` if another one listens there. See `rdma_listen(3)`.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let (verb, listen) = call!(self.channel.library(), rdma_listen)?;
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        let _held = self.channel.lock();
        // SAFETY: `raw` is live and the lock is held.
        verb.status(unsafe { listen(self.as_raw(), backlog) })
    }

    /// Makes a queue pair take receives, once this end has a device: after its address is resolved, or for a request at
    /// once. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no device yet or the queue pair is on another one; [`Error::Transition`]
    /// if the device refuses. The queue pair is dropped then.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn initialize<'a>(
        &self,
        queue_pair: QueuePair<'a, Rc, Reset>,
    ) -> Result<QueuePair<'a, Rc, Initialized>> {
        self.check_device(queue_pair.protection_domain().context())?;
        let change = self.change_to(QueuePairState::INITIALIZED)?;
        queue_pair.change(change)
    }

    /// Asks the peer for a connection with this queue pair. Ends in [`EventKind::CONNECT_RESPONSE`], or over iWARP
    /// [`EventKind::ESTABLISHED`]; then [`establish`](Self::establish).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no device yet or the queue pair is on another one; [`Error::OutOfRange`] for
    /// retries over 7 and private data over 255 bytes; [`Error::Verb`], `EINVAL` for private data over 56 bytes or before
    /// the route is resolved. See `rdma_connect(3)`.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        &self,
        queue_pair: &QueuePair<'_, Rc, Initialized>,
        parameters: &Parameters,
    ) -> Result<()> {
        let reads = self.reads(queue_pair.protection_domain().context(), parameters)?;
        let (verb, connect) = call!(self.channel.library(), rdma_connect)?;
        let mut raw = parameters.to_raw(reads)?;
        raw.qp_num = queue_pair.number().get();
        raw.srq = queue_pair.shared_receive_queue().is_some().into();
        let _held = self.channel.lock();
        // SAFETY: `raw` is live and has a device, and the lock is held; the parameters are copied.
        verb.status(unsafe { connect(self.as_raw(), &raw mut raw) })
    }

    /// Completes a connection that this side asked for, when the peer has accepted: makes the queue pair ready, and
    /// tells the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`], [`Error::Connection`] if the event is not that answer; [`Error::Transition`] if the device
    /// refuses what was agreed on. The queue pair is dropped then. See `rdma_establish(3)`.
    #[doc(alias = "rdma_establish")]
    pub fn establish<'a>(
        &self,
        queue_pair: QueuePair<'a, Rc, Initialized>,
        parameters: &Parameters,
        answer: Event,
    ) -> Result<QueuePair<'a, Rc>> {
        self.check_event(&answer)?;
        if answer.kind() == EventKind::ESTABLISHED && answer.status() == 0 {
            // iWARP: the kernel has made the queue pair ready, and the peer knows.
            return queue_pair.change(Transition::within());
        }
        answer.expect(EventKind::CONNECT_RESPONSE)?;
        let receiving = self.make_ready_to_receive(queue_pair, parameters, None)?;
        let queue_pair = receiving.change(self.change_to(QueuePairState::READY_TO_SEND)?)?;
        let (verb, establish) = call!(self.channel.library(), rdma_establish)?;
        let _held = self.channel.lock();
        // SAFETY: `raw` is live, and the lock is held.
        verb.status(unsafe { establish(self.as_raw()) })?;
        Ok(queue_pair)
    }

    /// Accepts a request with this queue pair, which takes what the peer sends from now on. Ends in
    /// [`EventKind::ESTABLISHED`]; then [`establish_accepted`](Self::establish_accepted).
    ///
    /// For the device it is ready to send as well, as with librdmacm's own queue pairs: a peer may end the connection
    /// before anybody here has seen that it began, and what it sent until then is received.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect), with at most 196 bytes of private data. The queue pair is dropped then. See
    /// `rdma_accept(3)`.
    #[doc(alias = "rdma_accept")]
    pub fn accept<'a>(
        &self,
        queue_pair: QueuePair<'a, Rc, Initialized>,
        parameters: &Parameters,
    ) -> Result<QueuePair<'a, Rc, ReadyToReceive>> {
        let reads = self.reads(queue_pair.protection_domain().context(), parameters)?;
        let (verb, accept) = call!(self.channel.library(), rdma_accept)?;
        let mut raw = parameters.to_raw(reads)?;
        raw.qp_num = queue_pair.number().get();
        raw.srq = queue_pair.shared_receive_queue().is_some().into();
        let queue_pair = self.make_ready_to_receive(queue_pair, parameters, Some(reads))?;
        // The connection manager has the attributes for this only until the connection ends. Its type says that
        // sending has to wait until the peer has confirmed.
        let sending = self.change_to(QueuePairState::READY_TO_SEND)?;
        let queue_pair = queue_pair.change(sending.outgoing_reads(reads.outgoing))?;
        let _held = self.channel.lock();
        // SAFETY: `raw` is live and has a device, and the lock is held; the parameters are copied.
        verb.status(unsafe { accept(self.as_raw(), &raw mut raw) })?;
        Ok(queue_pair)
    }

    /// Completes a connection that this side accepted, when the peer has confirmed: the queue pair can send.
    ///
    /// # Errors
    ///
    /// [`Error::Connection`] if the event is not that confirmation. The queue pair is dropped then.
    pub fn establish_accepted<'a>(
        &self,
        queue_pair: QueuePair<'a, Rc, ReadyToReceive>,
        confirmation: Event,
    ) -> Result<QueuePair<'a, Rc>> {
        self.check_event(&confirmation)?;
        confirmation.expect(EventKind::ESTABLISHED)?;
        queue_pair.change(Transition::within())
    }

    /// Tells the connection manager that data has arrived on a queue pair that waits for
    /// [`EventKind::ESTABLISHED`], which is proof enough (the asynchronous event `IBV_EVENT_COMM_EST` says so).
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if no connection is being accepted. See `rdma_notify(3)`.
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&self) -> Result<()> {
        let (verb, notify) = call!(self.channel.library(), rdma_notify)?;
        let _held = self.channel.lock();
        // SAFETY: `raw` is live, and the lock is held.
        verb.status(unsafe { notify(self.as_raw(), rdma_sys::IBV_EVENT_COMM_EST) })
    }

    /// Rejects a request, and tells the peer why in up to 148 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] over 255 bytes, [`Error::Verb`] with `EINVAL` over 148 bytes or if this is no request. See
    /// `rdma_reject(3)`.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let (verb, reject) = call!(self.channel.library(), rdma_reject)?;
        let length = private_length(private_data)?;
        let _held = self.channel.lock();
        // SAFETY: `raw` is live and the lock is held; so many bytes are copied.
        verb.status(unsafe { reject(self.as_raw(), private_data.as_ptr().cast(), length) })
    }

    /// Ends the connection, or answers the peer that has ended it. Ends in [`EventKind::DISCONNECTED`] on both sides.
    ///
    /// What is still posted goes on until the queue pair fails: call [`QueuePair::fail`] first.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] with `EINVAL` if it is not connected. See `rdma_disconnect(3)`.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        let (verb, disconnect) = call!(self.channel.library(), rdma_disconnect)?;
        let _held = self.channel.lock();
        // SAFETY: `raw` is live, and the lock is held.
        verb.status(unsafe { disconnect(self.as_raw()) })
    }

    /// Moves it to another channel, where its events arrive from now on, those that wait included.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the kernel refuses; it stays where it was. See `rdma_migrate_id(3)`.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        let (verb, migrate) = call!(self.channel.library(), rdma_migrate_id)?;
        if Arc::ptr_eq(&self.channel, &channel.0) {
            return Ok(());
        }
        // Two threads that migrate in opposite directions take the locks in the same order.
        let (from, to) = (&self.channel, &channel.0);
        let (first, second) =
            if Arc::as_ptr(from) < Arc::as_ptr(to) { (from, to) } else { (to, from) };
        {
            let _held = (first.lock(), second.lock());
            // SAFETY: `raw` and the channel are live, both locks are held, and every event was acknowledged under
            // the lock, so that the call waits for none.
            verb.status(unsafe { migrate(self.as_raw(), channel.as_raw()) })?;
        }
        self.channel = Arc::clone(&channel.0);
        Ok(())
    }

    /// Sets the type of service of its packets, for RoCE v2 the DSCP in the upper six bits; before the address is
    /// resolved.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the kernel refuses. See `rdma_set_option(3)`.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_type_of_service(&self, value: u8) -> Result<()> {
        self.set_option(rdma_sys::RDMA_OPTION_ID_TOS, value)
    }

    /// Lets it bind to a port that an ended connection still holds, or that others that say so too share; before it is
    /// bound.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if it is bound. See `rdma_set_option(3)`.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_address(&self, yes: bool) -> Result<()> {
        self.set_option(rdma_sys::RDMA_OPTION_ID_REUSEADDR, c_int::from(yes))
    }

    /// Keeps one that listens on the unspecified IPv6 address from taking IPv4 too; before it is bound.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if it is bound. See `rdma_set_option(3)`.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_one_family_only(&self, yes: bool) -> Result<()> {
        self.set_option(rdma_sys::RDMA_OPTION_ID_AFONLY, c_int::from(yes))
    }

    fn set_option<T: Copy>(&self, name: u32, mut value: T) -> Result<()> {
        let (verb, set) = call!(self.channel.library(), rdma_set_option)?;
        let name = c_int::try_from(name).map_err(|_| verb.unsupported())?;
        let level = c_int::try_from(rdma_sys::RDMA_OPTION_ID).map_err(|_| verb.unsupported())?;
        let place = (&raw mut value).cast();
        let _held = self.channel.lock();
        // SAFETY: `raw` is live and the lock is held; the value is copied, and its size passed on.
        verb.status(unsafe { set(self.as_raw(), level, name, place, size_of::<T>()) })
    }

    /// The address of this side, once it has one.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        let _held = self.channel.lock();
        // SAFETY: `raw` is live, and the lock is held.
        unsafe { address_at(self.as_raw(), LOCAL_ADDRESS) }
    }

    /// The address of the peer, once there is one.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        let _held = self.channel.lock();
        // SAFETY: `raw` is live, and the lock is held.
        unsafe { peer_of(self.as_raw()) }
    }

    /// The port of the device, once there is one.
    #[must_use]
    pub fn port(&self) -> Option<PortNumber> {
        let _held = self.channel.lock();
        // SAFETY: `raw` is live, and the lock is held.
        PortNumber::new(unsafe { (*self.as_raw()).port_num }).ok()
    }

    /// The device that leads to the peer, open.
    ///
    /// All identifiers of one device give the same context while any of it is in use, so that protection domains,
    /// regions and completion queues can be shared between connections. A context of the same device that was opened by
    /// other means, with [`Device::open`](crate::Device::open), serves as well.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no device yet; as for [`Device::open`](crate::Device::open) if it cannot be opened.
    pub fn context(&self) -> Result<Arc<Context>> {
        static OPEN: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());
        let device = {
            let _held = self.channel.lock();
            self.bound_device()?
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|context| context.strong_count() > 0);
        // An open context keeps its device's address from being given to another device.
        let same = |context: &Arc<Context>| context.device().as_raw() == device.as_ptr();
        if let Some(context) = open.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(context);
        }
        let devices = Devices::of(self.channel.library())?;
        let Some(device) = devices.iter().find(|found| found.as_raw() == device.as_ptr()) else {
            return Err(Error::NoDevice {
                wanted: "that the connection manager has resolved the address to".to_owned(),
                present: devices.iter().map(|device| device.name().to_owned()).collect(),
                remedy: "it was removed meanwhile; resolve the address again",
            });
        };
        let context = Arc::new(device.open()?);
        open.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// The C object, valid as long as this is. Calls on it must not run while this crate is in one for the same channel.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    /// The device it is bound to. The lock must be held.
    fn bound_device(&self) -> Result<NonNull<rdma_sys::ibv_device>> {
        // SAFETY: `raw` is live, and the lock is held.
        let context = unsafe { (*self.as_raw()).verbs };
        let device = NonNull::new(context).and_then(|context| {
            // SAFETY: librdmacm keeps its context open as long as an identifier is bound to it.
            NonNull::new(unsafe { (*context.as_ptr()).device })
        });
        device.ok_or_else(|| Error::Invalid {
            what: "this end of a connection has no device yet".into(),
            remedy: "resolve the address, and wait for the event that says so",
        })
    }

    /// Queue pairs must be on the device that leads to the peer; which context it was opened by does not matter.
    fn check_device(&self, context: &Context) -> Result<()> {
        let _held = self.channel.lock();
        if self.bound_device()?.as_ptr() == context.device().as_raw() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "the queue pair is on another device than the one that leads to the peer".into(),
            remedy: "make its domain and its completion queues from `context()` of this connection",
        })
    }

    fn check_event(&self, event: &Event) -> Result<()> {
        if event.identifier() == self.number {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "the event is of another identifier".into(),
            remedy: "compare `Event::identifier` with `Identifier::number`",
        })
    }

    /// How many reads this side says it has under way: what is asked for, or else what the device has, and never more
    /// than the peer's request offers.
    fn reads(&self, context: &Context, parameters: &Parameters) -> Result<Reads> {
        self.check_device(context)?;
        let limits = context.query_device()?;
        let incoming =
            parameters.incoming_reads.unwrap_or_else(|| read_depth(limits.max_incoming_reads()));
        let outgoing =
            parameters.outgoing_reads.unwrap_or_else(|| read_depth(limits.max_outgoing_reads()));
        Ok(Reads {
            incoming: incoming.min(self.offered.incoming),
            outgoing: outgoing.min(self.offered.outgoing),
        })
    }

    fn make_ready_to_receive<'a>(
        &self,
        queue_pair: QueuePair<'a, Rc, Initialized>,
        parameters: &Parameters,
        reads: Option<Reads>,
    ) -> Result<QueuePair<'a, Rc, ReadyToReceive>> {
        let timer = receiver_not_ready_code(parameters.receiver_not_ready_timer);
        let change = self.change_to(QueuePairState::READY_TO_RECEIVE)?;
        let change =
            change.agreed(parameters.access.bits(), timer, reads.map(|reads| reads.incoming));
        queue_pair.change(change)
    }

    /// The change of state with the attributes that the connection manager has for it.
    fn change_to(&self, state: QueuePairState) -> Result<Transition> {
        let (verb, fill) = call!(self.channel.library(), rdma_init_qp_attr)?;
        let mut attributes = rdma_sys::ibv_qp_attr { qp_state: state.0, ..Default::default() };
        let mut mask = 0;
        let _held = self.channel.lock();
        // SAFETY: `raw` is live, the lock is held, and both are valid places.
        verb.status(unsafe { fill(self.as_raw(), &raw mut attributes, &raw mut mask) })?;
        Ok(Transition::given(attributes, mask.cast_unsigned()))
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = call!(self.channel.library(), rdma_destroy_id) {
            let held = self.channel.lock();
            // SAFETY: `raw` is live, the lock is held, and nothing reads it after this. It has no queue pair, and every
            // event was acknowledged under the lock, so that the call waits for none.
            let returned = unsafe { destroy(self.as_raw()) };
            // A logger is the program's code.
            drop(held);
            verb.log_refusal(returned);
        }
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identifier")
            .field("number", &self.number.0)
            .field("local", &self.local_address())
            .field("peer", &self.peer_address())
            .finish_non_exhaustive()
    }
}

// SAFETY: each call on the C object, and each read of it, is made with the channel's lock held.
unsafe impl Send for Identifier {}
// SAFETY: as for `Send`.
unsafe impl Sync for Identifier {}

/// The number that an identifier was given.
///
/// # Safety
///
/// `raw` is live, and was made by this module.
pub(super) unsafe fn number_of(raw: *const rdma_cm_id) -> IdentifierNumber {
    // SAFETY: as the caller promises; librdmacm never changes the user data.
    IdentifierNumber(unsafe { (*raw).context }.addr())
}

/// The peer's address, if there is one.
///
/// # Safety
///
/// `raw` is live, and the lock of its channel is held.
pub(super) unsafe fn peer_of(raw: *const rdma_cm_id) -> Option<SocketAddr> {
    // SAFETY: as the caller promises.
    let address = unsafe { address_at(raw, PEER_ADDRESS) };
    // One that listens has a peer of zeros.
    address.filter(|address| address.port() != 0 || !address.ip().is_unspecified())
}

/// Where an identifier has this side's address: a union of all kinds of `sockaddr`.
const LOCAL_ADDRESS: usize = offset_of!(rdma_cm_id, route.addr.__bindgen_anon_1);
/// Where an identifier has the peer's address, in the same form.
const PEER_ADDRESS: usize = offset_of!(rdma_cm_id, route.addr.__bindgen_anon_2);

/// # Safety
///
/// `raw` is live, the lock of its channel is held, and `offset` is one of the above.
unsafe fn address_at(raw: *const rdma_cm_id, offset: usize) -> Option<SocketAddr> {
    const { assert!(align_of::<rdma_cm_id>().is_multiple_of(align_of::<sockaddr_storage>())) };
    const { assert!(LOCAL_ADDRESS.is_multiple_of(align_of::<sockaddr_storage>())) };
    const { assert!(PEER_ADDRESS.is_multiple_of(align_of::<sockaddr_storage>())) };
    let storage = raw.wrapping_byte_add(offset).cast::<sockaddr_storage>();
    // SAFETY: as the caller promises, nobody writes to it now; the largest member of the union is this struct.
    address::parse(unsafe { &*storage })
}
