//! Two ranks, from their devices to the last row.

use std::{cell::Cell, fs, time::Duration};

use efa::Srd;
use example_support::{AnyError, Launcher, World};
use ibverbs::{Access, Context, LocalPort, PageAligned, Rc, RemoteMemory, Uc, Ud};
use serde_json::{Value, json};

use super::{
    bell::Bell,
    device::{self, DeviceKind},
    measure,
    memory::{Layout, Memory},
    options::{Metric, Options, Transport, Verb},
    plan::{Mistake, Plan},
    progress::Progress,
    report::Report,
    rig::{CONTROL, Rig},
    verify,
    wire::{Lane, SPARE_SENDS, Setup, Wire},
};

/// Inline bytes that latency asks for, as perftest does.
const LATENCY_INLINE: u32 = 220;

/// One rank, from beginning to end.
pub(crate) fn rank(world: &World, options: &Options, plan: &Plan) -> Result<(), AnyError> {
    if world.size() != 2 {
        return Err(format!("perf needs 2 ranks, there are {}", world.size()).into());
    }
    pin(world, options)?;
    agree(world, plan)?;
    let (device, stands_in) = device::find(world, options, plan)?;
    let kind = DeviceKind::of(&device, stands_in.is_some());
    let context = device.open()?;
    if plan.transport != Transport::Srd && efa::query_device(&context).is_ok() {
        // Its datagrams must all report, and it has no connections.
        let name = context.device().name();
        return Err(Mistake(format!("{name} is an EFA device: use -c SRD")).into());
    }
    let port = context.local_port(&device::selector(options)?)?;
    let session = Session { world, options, plan, context: &context, port: &port, kind, stands_in };
    match plan.transport {
        Transport::Rc => session.run::<Rc>(),
        Transport::Uc => session.run::<Uc>(),
        Transport::Ud => session.run::<Ud>(),
        Transport::Srd => session.run::<Srd>(),
    }
}

/// Keeps this thread on its processor.
fn pin(world: &World, options: &Options) -> Result<(), AnyError> {
    let Some(last) = options.pin.len().checked_sub(1) else { return Ok(()) };
    let cpu = options.pin[world.local_rank().min(last)];
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Mistake(format!("--pin {cpu}: there is no such processor")).into());
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| {
        format!("--pin {cpu}: {error}; `nproc` and `taskset -p $$` say which there are").into()
    })
}

/// Ends with an error that names the flags in which the two ranks differ.
fn agree(world: &World, plan: &Plan) -> Result<(), AnyError> {
    let ours = plan.agreement();
    let text = serde_json::to_vec(&ours)?;
    let theirs: Vec<(String, String)> = serde_json::from_slice(&world.exchange_with_peer(&text)?)?;
    let differing: Vec<String> = (ours.iter().zip(&theirs))
        .filter(|(ours, theirs)| ours.1 != theirs.1)
        .map(|((name, ours), (_, theirs))| format!("{name} ({ours} here, {theirs} there)"))
        .collect();
    if differing.is_empty() {
        return Ok(());
    }
    let differing = differing.join(", ");
    Err(Mistake(format!("the two sides were started with different options: {differing}")).into())
}

pub(crate) struct Session<'s> {
    world: &'s World,
    options: &'s Options,
    plan: &'s Plan,
    context: &'s Context,
    port: &'s LocalPort,
    kind: DeviceKind,
    stands_in: Option<String>,
}

impl Session<'_> {
    fn run<T: Wire>(&self) -> Result<(), AnyError> {
        let Self { world, plan, context, port, .. } = *self;
        let sizes = self.sizes()?;
        let longest = sizes.iter().max().copied().unwrap_or(1);
        let lanes = plan.lanes as usize;
        let domain = context.allocate_protection_domain()?;
        let channel = plan.events.then(|| context.create_completion_channel()).transpose()?;
        let queue = |capacity| {
            let builder = context.completion_queue(capacity);
            match &channel {
                Some(channel) => builder.channel(channel).create(),
                None => builder.create(),
            }
        };
        let sends = queue(plan.lanes * (plan.tx_depth + SPARE_SENDS))?;
        let receives = queue(plan.lanes * plan.rx_depth)?;
        let layout = Layout::new(lanes, longest)?;
        let mut memory = Memory::new(&domain, layout.total(), self.access(), plan.gpu)?;
        let control_access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let control_access = if T::CREDITS { control_access } else { Access::LOCAL_WRITE };
        let control = domain.register(PageAligned::new(lanes * CONTROL)?, control_access)?;
        let payload = verify::pattern(world.rank(), longest);
        for lane in 0..lanes {
            memory.write(layout.outbox(lane, longest).start, &payload)?;
        }

        let incoming = match plan.verb {
            Verb::Write | Verb::Send => Access::REMOTE_WRITE,
            Verb::Read => Access::REMOTE_READ,
            Verb::Atomic => Access::REMOTE_ATOMIC,
        };
        let setup = |inline| Setup {
            domain: &domain,
            sends: &sends,
            receives: &receives,
            port,
            plan,
            inline,
            incoming,
        };
        let Made { setup, unmet, told } = self.make::<T>(&setup)?;
        let others = self.tell(&told, &memory.remote()?, &control.remote())?;
        let Others { device: peer, told, remote, remote_control } = others;
        let lanes = (unmet.into_iter().zip(&told))
            .map(|(unmet, told)| T::meet(&setup, unmet, told))
            .collect::<Result<Vec<Lane<'_, T>>, _>>()?;

        let by_hand = world.launcher() == Launcher::ByHand;
        let initiator = world.rank() == usize::from(by_hand);
        let prints = by_hand || initiator;
        let progress = Progress::new(initiator);
        let rig = Rig {
            world,
            plan,
            lanes: &lanes,
            sends: &sends,
            receives: &receives,
            layout,
            longest,
            control: &control,
            remote,
            remote_control,
            payload: &payload,
            inline: setup.inline as usize,
            initiator,
            yields: self.kind != DeviceKind::Hardware || processors() < 3,
            bell: channel.as_ref().map(|channel| Bell::new(channel, &sends, &receives)),
            progress: &progress,
            pings: Cell::new(0),
            atomics: Cell::new(0),
        };
        let takes_messages = matches!(plan.verb, Verb::Send | Verb::Write);
        if takes_messages {
            for (number, lane) in lanes.iter().enumerate() {
                let mut batch = rig.receive_batch(&memory, number, plan.rx_depth)?;
                lane.pair.post_receive(&mut batch)?;
            }
        }
        let posting = lanes.first().map(|lane| lane.pair.posting());
        let about = self.about(&peer, posting, setup.inline, &sizes);
        let mut report = Report::new(about, self.options, prints);
        report.begin();
        for metric in &plan.metrics {
            for size in &sizes {
                let row = measure::size(&rig, &mut memory, *metric, *size)?;
                report.row(row);
            }
        }
        // Nobody tears down what the other still uses.
        world.barrier()?;
        report.end()
    }

    /// Makes the queue pairs. Where latency likes inline bytes and the device has not so many, without.
    fn make<'a, T: Wire>(
        &self,
        setup: &impl Fn(u32) -> Setup<'a>,
    ) -> Result<Made<'a, T>, AnyError> {
        let plan = self.plan;
        let asked = plan.inline;
        let wishes = plan.measures(Metric::Latency)
            && matches!(plan.verb, Verb::Write | Verb::Send)
            && plan.transport != Transport::Srd
            && plan.gpu.is_none();
        let wish = if wishes { LATENCY_INLINE } else { 0 };
        let mut setup_now = setup(asked.unwrap_or(wish));
        let (mut unmet, mut told) = (Vec::new(), Vec::new());
        for _ in 0..plan.lanes {
            let made = T::make(&setup_now).or_else(|error| {
                if asked.is_none() && wish > 0 && unmet.is_empty() {
                    setup_now = setup(0);
                    return T::make(&setup_now);
                }
                match asked {
                    Some(inline) if inline > 0 => Err(format!(
                        "{}; if the device has not that many inline bytes, give less than -I {inline}",
                        example_support::chain(error.as_ref())
                    )
                    .into()),
                    _ => Err(error),
                }
            });
            let (pair, bytes) = made?;
            unmet.push(pair);
            told.push(bytes);
        }
        Ok(Made { setup: setup_now, unmet, told })
    }

    /// What the other side may do with the memory.
    fn access(&self) -> Access {
        let others = match self.plan.verb {
            Verb::Write => Access::REMOTE_WRITE,
            Verb::Read => Access::REMOTE_READ,
            Verb::Send => Access::empty(),
            Verb::Atomic => Access::REMOTE_ATOMIC,
        };
        Access::LOCAL_WRITE | others
    }

    /// The sizes that both sides' devices can move; of a sweep those that they cannot are left out.
    fn sizes(&self) -> Result<Vec<usize>, AnyError> {
        let (most, why) = self.longest()?;
        let theirs = self.world.exchange_with_peer(&most.to_be_bytes())?;
        let theirs = <[u8; 8]>::try_from(theirs.as_slice()).map(u64::from_be_bytes)?;
        let most = most.min(theirs);
        let mut sizes = self.plan.sizes.clone();
        if self.plan.sweep {
            sizes.retain(|size| *size <= most);
        }
        if let Some(size) = sizes.iter().find(|size| **size > most) {
            return Err(Mistake(format!(
                "-s {size} is more than the {most} bytes of {why}: lower -s"
            ))
            .into());
        }
        Ok(sizes.into_iter().map(usize::try_from).collect::<Result<_, _>>()?)
    }

    /// The longest message of this side's device, and what limits it.
    fn longest(&self) -> Result<(u64, &'static str), AnyError> {
        let Self { plan, port, context, .. } = self;
        let mtu = plan.mtu.unwrap_or_else(|| port.attributes.active_mtu()).bytes() as u64;
        let message = u64::from(port.attributes.max_message_length());
        Ok(match (plan.transport, plan.verb) {
            (Transport::Ud, _) => (mtu, "a datagram, which has to fit the MTU"),
            (Transport::Srd, Verb::Send) => (message, "a message of this EFA device"),
            (Transport::Srd, _) => {
                let most = efa::query_device(context)?.max_rdma_size();
                (most.into(), "a read or write of this EFA device (max_rdma_size)")
            }
            _ => (message, "a message of this device"),
        })
    }

    /// Tells the other side where this one's queue pairs and memory are, and hears the same.
    fn tell(
        &self,
        told: &[Vec<u8>],
        memory: &RemoteMemory,
        control: &RemoteMemory,
    ) -> Result<Others, AnyError> {
        let ours = json!({
            "device": self.device(),
            "queue_pairs": told,
            "memory": memory.to_bytes().to_vec(),
            "control": control.to_bytes().to_vec(),
        });
        let theirs = self.world.exchange_with_peer(ours.to_string().as_bytes())?;
        let mut theirs: Value = serde_json::from_slice(&theirs)?;
        let mut part = |name: &str| theirs.get_mut(name).map(Value::take).unwrap_or_default();
        let memory: Vec<u8> = serde_json::from_value(part("memory"))?;
        let control: Vec<u8> = serde_json::from_value(part("control"))?;
        Ok(Others {
            device: part("device"),
            told: serde_json::from_value(part("queue_pairs"))?,
            remote: RemoteMemory::from_bytes(&memory)?,
            remote_control: RemoteMemory::from_bytes(&control)?,
        })
    }

    /// This side's device, for people and programs.
    fn device(&self) -> Value {
        let LocalPort { port, attributes, gid, .. } = self.port;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        json!({
            "name": self.context.device().name(),
            "kind": self.kind.name(),
            "host": host.trim(),
            "port": port.get(),
            "gid_index": gid.index,
            "gid": gid.gid.to_string(),
            "link_layer": attributes.link_layer().to_string(),
            "mtu": attributes.active_mtu().bytes(),
        })
    }

    /// What the report begins with.
    fn about(
        &self,
        peer: &Value,
        posting: Option<ibverbs::Posting>,
        inline: u32,
        sizes: &[usize],
    ) -> Value {
        let plan = self.plan;
        let metric = match plan.metrics.as_slice() {
            [Metric::Bandwidth] => "bandwidth",
            [Metric::Latency] => "latency",
            _ => "both",
        };
        let test = match (plan.verb, plan.atomic) {
            (Verb::Write, _) => "write",
            (Verb::Read, _) => "read",
            (Verb::Send, _) => "send",
            (Verb::Atomic, super::options::Atomic::FetchAndAdd) => "fetch-and-add",
            (Verb::Atomic, super::options::Atomic::CompareAndSwap) => "compare-and-swap",
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "device": self.device(),
            "peer": peer,
            "stands_in": self.stands_in,
            "test": test,
            "metric": metric,
            "transport": format!("{:?}", plan.transport).to_uppercase(),
            "back_end": match posting {
                Some(ibverbs::Posting::Classic) => "ibv_post_send",
                _ => "ibv_wr",
            },
            "options": {
                "sizes": sizes,
                "iterations": plan.iterations,
                "duration_seconds": plan.duration.as_ref().map(Duration::as_secs_f64),
                "queue_pairs": plan.lanes,
                "tx_depth": plan.tx_depth,
                "rx_depth": plan.rx_depth,
                "post_list": plan.post_list,
                "cq_mod": plan.cq_mod,
                "inline": inline,
                "bidirectional": plan.bidirectional,
                "events": plan.events,
                "verify": plan.verify,
                "memory": if plan.gpu.is_some() { "gpu" } else { "host" },
                "launcher": self.world.launcher().to_string(),
            },
        })
    }
}

/// Queue pairs that do not know their peers, and where they are reached.
struct Made<'a, T: Wire> {
    setup: Setup<'a>,
    unmet: Vec<T::Unmet<'a>>,
    told: Vec<Vec<u8>>,
}

/// What the other side told.
struct Others {
    device: Value,
    told: Vec<Vec<u8>>,
    remote: RemoteMemory,
    remote_control: RemoteMemory,
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
