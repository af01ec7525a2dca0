//! All soft devices of the process and every object on them, behind one lock.
//!
//! One lock makes each verb one step: a transfer touches two queue pairs, their completion queues
//! and the regions on both sides, and deregistration waits for it because it needs the lock too.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use rdma_sys as c;

use crate::{
    address::{AddressHandle, Membership},
    channel::Channel,
    cm::Manager,
    completion_counter::CompletionCounter,
    completion_queue::CompletionQueue,
    context::Context,
    control::Control,
    device::Description,
    device_memory::DeviceMemory,
    dma::Attachment,
    domain::{Domain, ThreadDomain},
    errno::Outcome,
    memory::{KeyTable, Piece},
    pair::{Lingering, QueuePair},
    shared_receive::SharedReceive,
    slab::Slab,
    steering::{Flow, FlowCounters},
    verb::Verb,
    work_queue::{IndirectionTable, WorkQueue},
    xrc::XrcDomain,
};

/// Everything there is.
pub(crate) struct Fabric {
    pub(crate) devices: Vec<Device>,
    pub(crate) ports: u32,
    pub(crate) contexts: Slab<Context>,
    pub(crate) domains: Slab<Domain>,
    pub(crate) keys: KeyTable,
    pub(crate) channels: Slab<Channel>,
    pub(crate) queues: Slab<CompletionQueue>,
    pub(crate) pairs: Slab<QueuePair>,
    pub(crate) shared: Slab<SharedReceive>,
    pub(crate) addresses: Slab<AddressHandle>,
    pub(crate) threads: Slab<ThreadDomain>,
    pub(crate) xrc_domains: Slab<XrcDomain>,
    pub(crate) memories: Slab<DeviceMemory>,
    pub(crate) attachments: Slab<Attachment>,
    pub(crate) counters: Slab<CompletionCounter>,
    pub(crate) flows: Slab<Flow>,
    /// The flows by rank: the first one of a port that wants a frame gets it.
    pub(crate) rules: Vec<u32>,
    pub(crate) flow_counters: Slab<FlowCounters>,
    pub(crate) work_queues: Slab<WorkQueue>,
    pub(crate) tables: Slab<IndirectionTable>,
    pub(crate) cm: Manager,
    /// Who is in which multicast group.
    pub(crate) members: Vec<Membership>,
    /// Receivers that failed while a message came, to be put into error once its sender is done.
    pub(crate) broken: Vec<(u32, c::ibv_event_type)>,
    /// Queue pairs whose oldest request waits for its peer.
    pub(crate) waiting: Vec<u32>,
    /// Queue pairs whose requests are to be done out of order, once there are a few.
    pub(crate) lingering: Vec<Lingering>,
    /// Completion queues whose event waits for more completions.
    pub(crate) moderated: Vec<u32>,
    /// Scratch space of a transfer, kept so that none is allocated for each.
    pub(crate) scratch: Scratch,
    /// The Ethernet frame on its way, and the stretch that it is cut out of, kept as `scratch` is.
    pub(crate) frame: Vec<u8>,
    pub(crate) stretch: Vec<u8>,
    timer_runs: bool,
}

/// A device, listed or not.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) description: Description,
    pub(crate) control: Control,
    pub(crate) listed: bool,
}

/// The two sides of one transfer, and who is to be tried again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) from: Vec<Piece>,
    pub(crate) to: Vec<Piece>,
    pub(crate) woken: Vec<u32>,
}

static FABRIC: Mutex<Fabric> = Mutex::new(Fabric {
    devices: Vec::new(),
    ports: 0,
    contexts: Slab::starting_at(1),
    domains: Slab::starting_at(1),
    keys: KeyTable::new(),
    channels: Slab::starting_at(1),
    queues: Slab::starting_at(1),
    // 0 and 1 are the management queue pairs of a port.
    pairs: Slab::starting_at(17),
    shared: Slab::starting_at(1),
    addresses: Slab::starting_at(1),
    threads: Slab::starting_at(1),
    xrc_domains: Slab::starting_at(1),
    memories: Slab::starting_at(1),
    attachments: Slab::starting_at(1),
    counters: Slab::starting_at(1),
    flows: Slab::starting_at(1),
    rules: Vec::new(),
    flow_counters: Slab::starting_at(1),
    work_queues: Slab::starting_at(1),
    tables: Slab::starting_at(1),
    cm: Manager::new(),
    members: Vec::new(),
    broken: Vec::new(),
    waiting: Vec::new(),
    lingering: Vec::new(),
    moderated: Vec::new(),
    scratch: Scratch { from: Vec::new(), to: Vec::new(), woken: Vec::new() },
    frame: Vec::new(),
    stretch: Vec::new(),
    timer_runs: false,
});

/// Tells the timer thread that there is an earlier moment to wake up at.
static EARLIER: Condvar = Condvar::new();

/// Takes the lock.
pub(crate) fn fabric() -> MutexGuard<'static, Fabric> {
    FABRIC.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fabric {
    /// Counts a call and tells whether a test wants it refused.
    pub(crate) fn enter(&mut self, device: u32, verb: Verb) -> Outcome {
        self.control(device).map_or(Ok(()), |control| control.enter(verb))
    }

    pub(crate) fn device(&self, number: u32) -> Option<&Device> {
        self.devices.get(usize::try_from(number).ok()?)
    }

    pub(crate) fn device_mut(&mut self, number: u32) -> Option<&mut Device> {
        self.devices.get_mut(usize::try_from(number).ok()?)
    }

    pub(crate) fn control(&mut self, device: u32) -> Option<&mut Control> {
        self.device_mut(device).map(|device| &mut device.control)
    }

    /// Notes that a caller broke a rule that would hang or corrupt another library.
    pub(crate) fn violation(&mut self, device: u32, text: String) {
        if let Some(control) = self.control(device) {
            control.violations.push(text);
        }
    }

    /// Does what time has made due: ends waits that are over, delivers completions held back. A
    /// device that is polled gets on with its work as well.
    pub(crate) fn expire(&mut self, polled: Option<u32>) {
        self.stop_lingering(polled);
        let holds = self.devices.iter().any(|device| device.control.holds());
        if holds || !self.waiting.is_empty() || !self.moderated.is_empty() {
            let now = Instant::now();
            self.end_moderation(now);
            self.release_due(now);
            self.end_waits(now);
        }
    }

    /// Makes sure that `expire` runs at the next due moment, whoever polls or not.
    pub(crate) fn watch_the_clock(&mut self) {
        if !self.timer_runs {
            let spawned = thread::Builder::new().name("soft-device-timer".into()).spawn(keep_time);
            self.timer_runs = spawned.is_ok();
        }
        EARLIER.notify_one();
    }

    fn next_due(&self) -> Option<Instant> {
        let waits = self.waiting.iter().filter_map(|&number| self.pairs.get(number)?.wait_ends());
        let holds = self.devices.iter().filter_map(|device| device.control.next_due());
        let events = self.moderated.iter().filter_map(|&queue| self.event_due(queue));
        let lingers = self.lingering.iter().map(|each| each.until);
        waits.chain(holds).chain(events).chain(lingers).min()
    }
}

/// The timer thread: one for the process, started by the first wait.
fn keep_time() {
    let mut fabric = fabric();
    loop {
        fabric.expire(None);
        fabric = match fabric.next_due() {
            None => EARLIER.wait(fabric).unwrap_or_else(PoisonError::into_inner),
            Some(due) => {
                let pause = due.saturating_duration_since(Instant::now());
                EARLIER.wait_timeout(fabric, pause).unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}
