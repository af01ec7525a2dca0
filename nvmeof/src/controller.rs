//! A controller: what an initiator connects to, and the thread that keeps it connected.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ibverbs::{Access, HostBuffer, MemoryRegion, ProtectionDomain};

use crate::{
    Buffer, Error, Host, IoQueue, Memory, Namespace, Nqn, Options, Result, address,
    association::{self, Association},
    engine::Engine,
    error::Whole,
    namespace::Opened,
    pool::{Pool, no_queues},
    ranges::Deallocation,
    rdma::{DATA_ACCESS, Rdma, transport_error},
    request::Operation,
    session::{self, Identity},
    shared::{Liveness, Shared},
    transport::Transport,
    wire::{
        Command,
        admin::{self, IDENTIFY_BYTES, IdentifyStructure, LogPage},
        event::AsynchronousEvent,
        identify::IdentifyController,
        identify_namespace::parse_active_namespaces,
        identify_nvm::IdentifyNvm,
        log_page::{CHANGED_NAMESPACES_BYTES, ChangedNamespaces},
        property::Version,
    },
};

/// How often the controller's thread looks for events when nothing else wakes it.
const LOOK_FOR_EVENTS: Duration = Duration::from_millis(100);

/// How long a shutdown may take when a controller is closed.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// A connection to a controller of a subsystem: one admin queue and any number of I/O queues.
///
/// A thread sends keep-alives, receives events, and makes the connection anew when it is lost.
/// Namespaces and queues keep the connection while they live, even without the `Controller`.
#[derive(Debug)]
pub struct Controller {
    inner: Arc<Inner>,
}

/// What controller, namespaces and queues have in common; the last of them closes it.
#[derive(Debug)]
pub(crate) struct Inner {
    shared: Arc<Shared>,
    /// Where memory has to be registered; the same one for as long as this lives.
    domain: Option<Arc<ProtectionDomain<'static>>>,
    pool: Pool,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl Controller {
    /// Connects to a subsystem at an address, with the default [`Options`].
    ///
    /// `address` is a name or an address, IPv4 or IPv6, with the port after it if it is not 4420
    /// (`[address]:port` for IPv6). Waits until the controller is ready, or until an attempt took
    /// too long; names that resolve to several addresses are tried one after the other.
    ///
    /// # Errors
    ///
    /// [`Error::Resolve`] for a name that is not known; [`Error::Transport`] if no RDMA device leads
    /// there, or nobody listens; [`Error::Rejected`] or [`Error::ConnectRefused`] if the target does
    /// not want this host, or has no such subsystem; [`Error::AuthenticationRequired`];
    /// [`Error::TimedOut`].
    pub fn connect(address: &str, subsystem: &str) -> Result<Self> {
        Self::connect_with(address, Nqn::new(subsystem)?, Options::new())
    }

    /// As [`Controller::connect`], with options.
    ///
    /// # Errors
    ///
    /// As [`Controller::connect`], and [`Error::OutOfRange`] or [`Error::InvalidArgument`] for
    /// options that make no sense.
    pub fn connect_with(address: &str, subsystem: Nqn, options: Options) -> Result<Self> {
        let addresses = address::resolve(address, options.port)?;
        let transport = Arc::new(Rdma::new(addresses, &options));
        Self::connect_over(transport, subsystem, options)
    }

    /// Connects over a transport that is there already.
    pub(crate) fn connect_over(
        transport: Arc<dyn Transport>,
        subsystem: Nqn,
        options: Options,
    ) -> Result<Self> {
        check(&options)?;
        let host = match &options.host {
            Some(host) => host.clone(),
            None => Host::from_system()?,
        };
        let identity = Identity {
            host,
            subsystem,
            secret: options.secret.clone(),
            controller_secret: options.controller_secret.clone(),
        };
        let first = association::establish(&*transport, &identity, &options)?;
        let shared = Arc::new(Shared::new(transport, identity, options, first));
        let pool = Pool::new(&shared);
        let keeper = thread::Builder::new()
            .name("nvmeof-keeper".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || keep(&shared)
            })
            .map_err(|source| Error::Thread { source })?;
        let domain = shared.transport.protection_domain();
        let inner = Inner { shared, domain, pool, keeper: Mutex::new(Some(keeper)) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What the controller says about itself, as of the latest connection.
    #[must_use]
    pub fn identify(&self) -> Arc<IdentifyController> {
        self.inner.shared.identify()
    }

    /// What the controller says about the limits of its NVM command set, as of the latest connection: requests are cut
    /// at them. [`IdentifyNvm::UNLIMITED`] from one that has nothing to say of that.
    #[must_use]
    pub fn identify_nvm(&self) -> IdentifyNvm {
        self.inner.shared.limits().nvm
    }

    /// The version of the specification that the controller follows.
    #[must_use]
    pub fn version(&self) -> Version {
        self.inner.shared.limits().version
    }

    /// How many I/O queues were granted.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.inner.pool.len()
    }

    /// The most bytes of one command; longer requests become several.
    #[must_use]
    pub fn max_transfer(&self) -> u32 {
        self.inner.shared.limits().max_transfer
    }

    /// The most bytes that one command writes zeros to, if the controller has a limit beside the 65,536 blocks of
    /// every command; longer requests become several.
    #[must_use]
    pub fn max_write_zeroes(&self) -> Option<u64> {
        self.inner.shared.limits().max_write_zeroes
    }

    /// Bytes of a write that fit into its command; 0 if the target takes none there.
    #[must_use]
    pub fn in_capsule_bytes(&self) -> usize {
        self.inner.shared.limits().in_capsule_bytes
    }

    /// How many connections there were, the present one included. If the number is the same before a
    /// write and after the flush that is meant for it, the flush speaks for that write; after a new
    /// connection the target may have forgotten what it had acknowledged on the one before.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.inner.shared.associations()
    }

    /// Whether it is connected now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(self.inner.shared.liveness(), Liveness::Live(_))
    }

    /// Allocates zeroed memory that this controller can read from and write to. Registers it,
    /// which enters the kernel and pins the pages: keep buffers and use them again.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if the memory cannot be registered; the limit on locked memory is the
    /// usual cause.
    pub fn allocate(&self, length: usize) -> Result<Buffer> {
        self.inner.allocate(length)
    }

    /// The domain in which memory has to be registered for this controller's target to reach it,
    /// with local and remote writes for reading from a namespace, and remote reads for writing to
    /// one.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] if there never was a connection.
    pub fn protection_domain(&self) -> Result<Arc<ProtectionDomain<'static>>> {
        self.inner.shared.transport.protection_domain().ok_or(Error::Closed)
    }

    /// Registers a buffer of yours for reading and writing; [`ibverbs::MemoryRegion::into_buffer`]
    /// gives it back. Enters the kernel and pins the pages.
    ///
    /// # Errors
    ///
    /// As [`Controller::allocate`]. The buffer is dropped then.
    pub fn register<B: HostBuffer>(&self, buffer: B) -> Result<MemoryRegion<'static, B>> {
        let domain = self.protection_domain()?;
        MemoryRegion::register(&domain, buffer, DATA_ACCESS)
            .map_err(|error| transport_error("registering memory", 0, error))
    }

    /// Identifiers of the namespaces that can be used.
    ///
    /// # Errors
    ///
    /// [`Error::Command`], [`Error::ConnectionLost`] or [`Error::Malformed`].
    pub fn namespaces(&self) -> Result<Vec<u32>> {
        let mut all = Vec::new();
        loop {
            let above = all.last().copied().unwrap_or(0);
            let page = self.inner.identify(
                "identify active namespaces",
                IdentifyStructure::ACTIVE_NAMESPACES,
                above,
            )?;
            let part = parse_active_namespaces(&page)?;
            if part.first().is_some_and(|first| *first <= above) {
                return Err(Error::Malformed {
                    structure: "active namespace list",
                    field: "identifier",
                    found: part.first().copied().map_or(0, u64::from),
                    rule: "is not above the one that was asked for",
                });
            }
            let is_full = part.len() == 1024;
            all.extend(part);
            if !is_full || all.last().is_none_or(|last| *last >= admin::ALL_NAMESPACES - 1) {
                return Ok(all);
            }
        }
    }

    /// Opens a namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] with "Invalid Namespace or Format" or [`Error::InvalidArgument`] if there is
    /// no such namespace; [`Error::Unsupported`] if its blocks carry metadata that this crate does
    /// not handle; [`Error::ConnectionLost`].
    pub fn namespace(&self, id: u32) -> Result<Namespace> {
        let shared = &self.inner.shared;
        let lost = || shared.no_association("identify namespace");
        let Liveness::Live(association) = shared.liveness() else { return Err(lost()) };
        let commands = self.identify().optional_commands;
        let limits = shared.limits();
        let opened = Opened::read(id, commands, &limits, |operation, structure| {
            self.inner.identify(operation, structure, id)
        })?;
        let opened = shared.number_opening(association, opened).ok_or_else(lost)?;
        Ok(Namespace::new(Arc::clone(&self.inner), opened))
    }

    /// Takes an I/O queue for one owner. Blocking calls use the queues that are left, so that a
    /// program that does both asks for one queue more; it comes back when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if every queue is taken or in use, or there is none.
    pub fn take_queue<B: Memory>(&self) -> Result<IoQueue<B>> {
        if self.queues() == 0 {
            return Err(no_queues());
        }
        let (index, engine) = self.inner.pool.take().ok_or(Error::Unsupported {
            what: "one more I/O queue",
            reason: "every queue is taken or in use; ask for more with Options::io_queues",
        })?;
        Ok(IoQueue::new(Arc::clone(&self.inner), index, engine))
    }

    /// Waits up to `at_most` for something that the controller has to tell, such as
    /// [`AsynchronousEvent::NamespaceChanged`]. The last 64 events are kept.
    #[must_use]
    pub fn next_event(&self, at_most: Duration) -> Option<AsynchronousEvent> {
        let started = Instant::now();
        loop {
            if let Some(event) = self.inner.shared.take_event() {
                return Some(event);
            }
            let left = at_most.checked_sub(started.elapsed())?;
            self.inner.shared.wait(left.min(LOOK_FOR_EVENTS));
        }
    }

    /// Which namespaces changed since this was asked last. Asking makes the controller report the
    /// next change.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if the controller has no such list; [`Error::ConnectionLost`].
    pub fn changed_namespaces(&self) -> Result<ChangedNamespaces> {
        let length = CHANGED_NAMESPACES_BYTES;
        let command = admin::get_log_page(LogPage::CHANGED_NAMESPACES, length, 0, false);
        let page = self.inner.fetch("get changed namespace list", command, length)?;
        ChangedNamespaces::parse(&page)
    }

    /// Shuts the controller down and disconnects, whatever else still uses it; that ends with
    /// [`Error::Disconnected`]. Waits for two seconds at most, or for the attempt to reconnect that
    /// is under way. Dropping all that uses the controller does the same.
    pub fn close(self) {
        self.inner.close();
    }

    pub(crate) fn fetch(
        &self,
        operation: &'static str,
        command: Command,
        length: u32,
    ) -> Result<Vec<u8>> {
        self.inner.fetch(operation, command, length)
    }
}

impl Inner {
    /// Runs one request to its end.
    pub(crate) fn run(
        &self,
        operation: Operation,
        memory: Option<&dyn Memory>,
        own: Option<Deallocation>,
    ) -> Result<()> {
        self.pool.run(operation, memory, own)
    }

    pub(crate) fn allocate(&self, length: usize) -> Result<Buffer> {
        self.shared.transport.allocate(length)
    }

    /// Makes sure that the target reaches memory that it is going to read.
    pub(crate) fn check_readable(&self, memory: &(impl Memory + ?Sized)) -> Result<()> {
        self.check_registration(memory, Access::REMOTE_READ)
    }

    /// Makes sure that the target reaches memory that it is going to write.
    pub(crate) fn check_writable(&self, memory: &(impl Memory + ?Sized)) -> Result<()> {
        self.check_registration(memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
    }

    fn check_registration(&self, memory: &(impl Memory + ?Sized), rights: Access) -> Result<()> {
        let Some(domain) = &self.domain else { return Ok(()) };
        memory.check_registration(domain, rights)
    }

    pub(crate) fn give_back(&self, index: usize, engine: Engine) {
        self.pool.give_back(index, engine);
    }

    fn identify(
        &self,
        operation: &'static str,
        structure: IdentifyStructure,
        namespace: u32,
    ) -> Result<Vec<u8>> {
        self.fetch(operation, admin::identify(structure, namespace), IDENTIFY_BYTES)
    }

    fn fetch(&self, operation: &'static str, command: Command, length: u32) -> Result<Vec<u8>> {
        // Before the queue is used: memory that cannot be registered is no fault of the connection.
        let page = session::Page::new(&*self.shared.transport, length)?;
        self.shared.with_admin(operation, |admin| page.fetch(admin, operation, command))
    }

    fn close(&self) {
        self.shared.close();
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper
            && keeper.join().is_err()
        {
            log::error!("the controller's thread panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

fn check(options: &Options) -> Result<()> {
    let range = |what, asked: u64, min, max| {
        if (min..=max).contains(&asked) {
            Ok(())
        } else {
            Err(Error::OutOfRange { what, asked, min, max })
        }
    };
    range("the entries of a queue", u64::from(options.queue_entries), 2, 1 << 15)?;
    range("the largest transfer in bytes", u64::from(options.max_transfer), 512, 1 << 31)?;
    let day = Duration::from_secs(24 * 3600);
    for (what, time) in [
        ("the time to connect in milliseconds", options.connect_timeout),
        ("the time of a command in milliseconds", options.command_timeout),
        ("the keep-alive time in milliseconds", options.keep_alive.unwrap_or(day)),
        ("the delay before reconnecting in milliseconds", options.reconnect.max_delay),
    ] {
        let least = u64::from(what != "the delay before reconnecting in milliseconds");
        let asked = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        range(what, asked, least, 24 * 3600 * 1000)?;
    }
    if options.controller_secret.is_some() && options.secret.is_none() {
        return Err(Error::InvalidArgument {
            what: "the controller's secret",
            given: "alone".to_owned(),
            rule: "needs the host's secret beside it",
        });
    }
    Ok(())
}

/// What the controller's thread does, until the controller is closed or given up.
fn keep(shared: &Shared) {
    while !shared.is_closed() {
        match shared.liveness() {
            Liveness::Live(association) => tend(shared, association),
            Liveness::Waiting => reconnect(shared),
            Liveness::Over => break,
        }
    }
    shared.end();
    let enabled = shared.limits().configuration;
    if let Some(mut admin) = shared.admin().take()
        && let Err(error) = association::shut_down(&mut admin, enabled, SHUTDOWN)
    {
        log::debug!("the controller was not shut down: {}", Whole(&error));
    }
}

/// Keeps a live association so until something changes.
fn tend(shared: &Shared, association: u64) {
    let mut next = Instant::now() + LOOK_FOR_EVENTS;
    let Some(mut guard) = shared.try_admin() else {
        // Whoever uses the admin queue keeps it alive meanwhile.
        shared.wait(Duration::from_millis(10));
        return;
    };
    if let Some(admin) = guard.as_mut() {
        let aborted: Result<()> = shared
            .take_aborts()
            .into_iter()
            .try_for_each(|(queue, command_id)| admin.abort(queue, command_id));
        if let Err(error) = aborted.and_then(|()| admin.drive()) {
            *guard = None;
            drop(guard);
            shared.lose(association, error);
            return;
        }
        while let Some(event) = admin.next_event() {
            shared.add_event(event);
        }
        if let Some(due) = admin.next_keep_alive() {
            next = next.min(due);
        }
    }
    drop(guard);
    let wait = next.saturating_duration_since(Instant::now());
    shared.wait_while(Liveness::Live(association), wait.max(Duration::from_millis(1)));
}

/// Tries to connect anew until that works, or until it is too late.
fn reconnect(shared: &Shared) {
    *shared.admin() = None;
    let policy = shared.options.reconnect;
    let lost_at = Instant::now();
    let mut failed_attempts = 0;
    while !shared.is_closed() {
        if lost_at.elapsed() >= policy.give_up_after {
            log::warn!("no attempt to reconnect is left");
            shared.end();
            return;
        }
        let attempt = association::establish(&*shared.transport, &shared.identity, &shared.options)
            .and_then(|mut association| {
                let stale = stale_openings(shared, &mut association)?;
                Ok((association, stale))
            });
        match attempt {
            Ok((association, stale)) => {
                log::info!("reconnected after {:?}", lost_at.elapsed());
                shared.revive(association, stale);
                return;
            }
            Err(error) => {
                failed_attempts += 1;
                log::info!("attempt {failed_attempts} to reconnect failed: {}", Whole(&error));
                let is_final =
                    matches!(error, Error::Authentication { .. } | Error::AuthenticationRequired);
                shared.note_failure(error);
                if is_final {
                    shared.end();
                    return;
                }
            }
        }
        let again = Instant::now() + policy.wait_after(failed_attempts);
        while Instant::now() < again && !shared.is_closed() {
            let left = again.saturating_duration_since(Instant::now());
            shared.wait(left.min(policy.give_up_after.saturating_sub(lost_at.elapsed())));
            if lost_at.elapsed() >= policy.give_up_after {
                break;
            }
        }
    }
}

/// Looks at every namespace that was opened, through a new association, and gives the openings
/// that do not fit any more.
fn stale_openings(shared: &Shared, association: &mut Association) -> Result<Vec<u32>> {
    let Association { admin, limits, identify, .. } = association;
    let mut stale = Vec::new();
    for namespace in shared.opened_namespaces() {
        let now = Opened::read(namespace, identify.optional_commands, limits, |name, structure| {
            let command = admin::identify(structure, namespace);
            session::fetch(&*shared.transport, admin, name, command, IDENTIFY_BYTES)
        });
        let now = match now {
            Err(error) if error.is_connection() => return Err(error),
            other => other.ok(),
        };
        stale.extend(shared.stale_openings(namespace, now.as_ref()));
    }
    Ok(stale)
}
