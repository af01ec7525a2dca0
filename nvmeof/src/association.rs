//! Bringing a controller up: from the admin queue's Connect to I/O queues that are ready.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    CommandSet, Error, Options, Result,
    session::{self, Identity},
    sync_queue::SyncQueue,
    transport::{Channel, ChannelParameters, Transport},
    wire::{
        admin::{self, IDENTIFY_BYTES, IdentifyStructure},
        fabrics::{self, ConnectData},
        features::{EventConfiguration, Feature, HostBehavior, QueueCounts, set_feature},
        identify::IdentifyController,
        identify_nvm::IdentifyNvm,
        property::{Capabilities, Configuration, ControllerStatus, Property, Version},
    },
};

/// Entries of every admin queue: the most that any target has to take.
const ADMIN_ENTRIES: u16 = 32;

/// The most in-capsule data used: more would take memory for every command of every queue.
const MAX_IN_CAPSULE: u64 = 16 * 1024;

/// A controller that is up.
#[derive(Debug)]
pub(crate) struct Association {
    pub(crate) admin: SyncQueue,
    pub(crate) channels: Vec<Box<dyn Channel>>,
    pub(crate) limits: Limits,
    pub(crate) identify: IdentifyController,
}

/// What this association can do; another one, with the same target, may differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The controller's identifier.
    pub(crate) controller_id: u16,
    /// The version of the specification that the controller follows.
    pub(crate) version: Version,
    /// The most bytes of one command.
    pub(crate) max_transfer: u32,
    /// Bytes of data that fit into a command capsule.
    pub(crate) in_capsule_bytes: usize,
    /// Entries of each I/O queue; those of a queue that is connected are its channel's.
    pub(crate) queue_entries: u16,
    /// What the controller was enabled with.
    pub(crate) configuration: Configuration,
    /// What commands that move no blocks are limited to.
    pub(crate) nvm: IdentifyNvm,
    /// The most bytes of one Write Zeroes.
    pub(crate) max_write_zeroes: Option<u64>,
    /// Whether addresses and lengths have to be multiples of four.
    pub(crate) dword_aligned: bool,
    /// The three delays that a status can ask for before a retry.
    pub(crate) retry_delays: [Duration; 3],
}

/// Connects and brings the controller up.
pub(crate) fn establish(
    transport: &dyn Transport,
    identity: &Identity,
    options: &Options,
) -> Result<Association> {
    let parameters = ChannelParameters {
        queue: 0,
        controller_id: 0,
        entries: ADMIN_ENTRIES,
        in_capsule_bytes: 0,
        timeout: options.connect_timeout,
    };
    let keep_alive = options.keep_alive.unwrap_or(Duration::ZERO);
    let (mut admin, controller_id) = session::open(
        transport,
        &parameters,
        identity,
        ConnectData::ANY_CONTROLLER,
        keep_alive,
        options.connect_timeout,
    )?;
    let capabilities = Capabilities(get(&mut admin, Property::CAPABILITIES)?);
    let version = Version(low_half(get(&mut admin, Property::VERSION)?));
    let is_discovery = identity.subsystem.is_discovery();
    // What a controller has beside the NVM command set, or in its place, is told by each namespace.
    if !is_discovery && !capabilities.has_nvm_command_set() && !capabilities.has_io_command_sets() {
        return Err(Error::Unsupported {
            what: "this controller",
            reason: "it does not have the NVM command set",
        });
    }
    let configuration =
        Configuration::enabled(capabilities.min_page_size()).select(capabilities.command_sets());
    enable(&mut admin, configuration, capabilities.timeout())?;

    let page = session::fetch(
        transport,
        &mut admin,
        "identify controller",
        admin::identify(IdentifyStructure::CONTROLLER, 0),
        IDENTIFY_BYTES,
    )?;
    let identify = IdentifyController::parse(&page)?;
    if !identify.sgl_support.has_sgl() || !identify.sgl_support.has_keyed() {
        return Err(Error::Unsupported {
            what: "this controller",
            reason: "it does not understand keyed data blocks, without which nothing moves over \
                     RDMA",
        });
    }
    // 2 and 3: discovery and administrative controllers have no I/O queues.
    let has_io = !is_discovery && matches!(identify.controller_type, 0 | 1);
    let nvm = if has_io { command_limits(transport, &mut admin)? } else { IdentifyNvm::UNLIMITED };
    let joined = Joined { controller_id, version, capabilities, configuration };
    let limits = limits(&joined, &identify, nvm, options);
    allow_retry_delays(transport, &mut admin, &identify)?;
    start_signs_of_life(&mut admin, &identify, options.keep_alive)?;

    let channels = if has_io {
        open_queues(transport, identity, options, &mut admin, &limits)?
    } else {
        Vec::new()
    };
    Ok(Association { admin, channels, limits, identify })
}

/// Tells the controller that it is not needed any more, and waits for it a while. What it was enabled with must not
/// change while it is.
pub(crate) fn shut_down(
    admin: &mut SyncQueue,
    enabled: Configuration,
    wait: Duration,
) -> Result<()> {
    set(admin, Property::CONFIGURATION, u64::from(enabled.normal_shutdown().0))?;
    let deadline = Instant::now() + wait;
    while Instant::now() < deadline {
        let status = ControllerStatus(low_half(get(admin, Property::STATUS)?));
        if status.is_shutdown_complete() || status.is_fatal() {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn enable(admin: &mut SyncQueue, configuration: Configuration, timeout: Duration) -> Result<()> {
    // Targets that say zero mean "at once", which a busy machine need not keep.
    let patience = timeout.max(Duration::from_secs(1));
    set(admin, Property::CONFIGURATION, u64::from(configuration.0))?;
    let deadline = Instant::now() + patience;
    loop {
        let status = ControllerStatus(low_half(get(admin, Property::STATUS)?));
        if status.is_fatal() {
            return Err(Error::ControllerFailed { condition: "reported a fatal error" });
        }
        if status.is_ready() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::ControllerFailed {
                condition: "did not become ready within the time that it names",
            });
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// What the limits of commands that move no blocks are. Controllers need not have any, or need not know the structure.
fn command_limits(transport: &dyn Transport, admin: &mut SyncQueue) -> Result<IdentifyNvm> {
    let operation = "identify controller of the NVM command set";
    let command = admin::identify(IdentifyStructure::CONTROLLER_COMMAND_SET, 0);
    match session::fetch(transport, admin, operation, command, IDENTIFY_BYTES) {
        Ok(page) => IdentifyNvm::parse(&page),
        Err(Error::Command { status, .. }) => {
            log::debug!("the controller tells no limits of the NVM command set: {status}");
            Ok(IdentifyNvm::UNLIMITED)
        }
        Err(error) => Err(error),
    }
}

/// What is known of a controller before it is asked what it is.
struct Joined {
    controller_id: u16,
    version: Version,
    capabilities: Capabilities,
    configuration: Configuration,
}

fn limits(
    joined: &Joined,
    identify: &IdentifyController,
    nvm: IdentifyNvm,
    options: &Options,
) -> Limits {
    let Joined { controller_id, version, capabilities, configuration } = *joined;
    let max_transfer = identify
        .max_transfer_bytes(capabilities.min_page_size())
        .map_or(u32::MAX, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX))
        .min(options.max_transfer);
    let in_capsule = options.in_capsule_data
        && identify.sgl_support.has_offset()
        && identify.in_capsule_offset_units == 0;
    let in_capsule_bytes =
        if in_capsule { identify.in_capsule_bytes().min(MAX_IN_CAPSULE) } else { 0 };
    let most_entries = u16::try_from(capabilities.max_queue_entries()).unwrap_or(u16::MAX);
    let outstanding = match identify.max_outstanding_commands {
        0 => u16::MAX,
        most => most,
    };
    Limits {
        controller_id,
        version,
        max_transfer,
        in_capsule_bytes: usize::try_from(in_capsule_bytes).unwrap_or(0),
        queue_entries: options.queue_entries.min(most_entries).min(outstanding).max(2),
        configuration,
        nvm,
        max_write_zeroes: nvm.max_write_zeroes_bytes(capabilities.min_page_size()),
        dword_aligned: identify.sgl_support.needs_dword_alignment(),
        // Up to hours can be asked for; a request that may be sent again is, within its own time.
        retry_delays: identify.retry_delays.map(|units| {
            let delay = Duration::from_millis(100).saturating_mul(u32::from(units));
            delay.min(options.command_timeout)
        }),
    }
}

/// Lets statuses ask for a delay before a retry. A controller that has delays names none before it knows that the host keeps
/// them.
fn allow_retry_delays(
    transport: &dyn Transport,
    admin: &mut SyncQueue,
    identify: &IdentifyController,
) -> Result<()> {
    if identify.retry_delays == [0; 3] {
        return Ok(());
    }
    let buffer = transport.allocate(HostBehavior::BYTES)?;
    buffer.write_at(0, &HostBehavior { retry_delays: true }.to_bytes())?;
    let command = set_feature(Feature::HOST_BEHAVIOR_SUPPORT, 0)
        .data(session::descriptor(&buffer, HostBehavior::BYTES));
    let status = admin.complete("set host behavior support", command)?.status;
    if !status.is_success() {
        log::info!("the controller will not ask for delays before retries: {status}");
    }
    Ok(())
}

/// Turns on events and keep-alives, as far as the controller has them.
fn start_signs_of_life(
    admin: &mut SyncQueue,
    identify: &IdentifyController,
    keep_alive: Option<Duration>,
) -> Result<()> {
    let wanted = EventConfiguration::NAMESPACE_CHANGED
        | EventConfiguration::FIRMWARE_ACTIVATION
        | EventConfiguration::ASYMMETRIC_ACCESS
        | EventConfiguration::DISCOVERY_LOG;
    let events = identify.events & wanted;
    if !events.is_empty() {
        let command = set_feature(Feature::ASYNCHRONOUS_EVENT_CONFIGURATION, events.bits());
        admin.execute("set asynchronous event configuration", CommandSet::Admin, command)?;
        admin.request_events()?;
    }
    if let Some(time) = keep_alive {
        if identify.keep_alive_granularity == 0 {
            log::info!("the controller has no keep-alive; a silent loss will not be noticed");
        } else {
            admin.keep_alive(time);
        }
    }
    Ok(())
}

fn open_queues(
    transport: &dyn Transport,
    identity: &Identity,
    options: &Options,
    admin: &mut SyncQueue,
    limits: &Limits,
) -> Result<Vec<Box<dyn Channel>>> {
    if options.io_queues == 0 {
        return Ok(Vec::new());
    }
    let wanted = QueueCounts::both(options.io_queues);
    let command = set_feature(Feature::NUMBER_OF_QUEUES, wanted.to_dword());
    let completion = admin.execute("set number of queues", CommandSet::Admin, command)?;
    let granted = QueueCounts::from_dword(completion.dword0()).pairs();
    let count = u32::from(options.io_queues).min(granted);
    if count < u32::from(options.io_queues) {
        log::info!("the target grants {count} of {} I/O queues", options.io_queues);
    }
    (1..=u16::try_from(count).unwrap_or(u16::MAX))
        .map(|queue| {
            let parameters = ChannelParameters {
                queue,
                controller_id: limits.controller_id,
                entries: limits.queue_entries,
                in_capsule_bytes: limits.in_capsule_bytes,
                timeout: options.connect_timeout,
            };
            let (queue, _) = session::open(
                transport,
                &parameters,
                identity,
                limits.controller_id,
                Duration::ZERO,
                options.connect_timeout,
            )?;
            admin.drive()?;
            Ok(queue.into_channel())
        })
        .collect()
}

fn get(admin: &mut SyncQueue, property: Property) -> Result<u64> {
    let command = fabrics::property_get(property);
    Ok(admin.execute("property get", CommandSet::Fabrics, command)?.result)
}

fn set(admin: &mut SyncQueue, property: Property, value: u64) -> Result<()> {
    let command = fabrics::property_set(property, value);
    admin.execute("property set", CommandSet::Fabrics, command).map(|_| ())
}

fn low_half(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
