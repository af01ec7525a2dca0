//! What one SRD write and one receive cost, as a program to count instructions in.
//!
//! Two queue pairs of an EFA device, real or in software inside this process. Each round posts `--depth` requests
//! behind one doorbell and polls for all; with `--op receive` it posts receives and the messages that fill them.
//! `benches/c/efa_data_path_cost.c` is the same program in C.
//!
//! ```text
//! cargo build --release --example efa_data_path_cost
//! efa_data_path_cost [--op write|receive] [--rounds N] [--depth N]
//! ```
#![expect(clippy::print_stderr, reason = "a program that says what went wrong")]

use std::{env, process::ExitCode};

use efa::{EndpointInfo, Peer, Srd};
use example_support::AnyError;
use ibverbs::{
    Access, Completion, CompletionQueue, Context, DeviceSelector, Devices, LocalPort, MemoryRegion,
    ProtectionDomain, QueueKey, QueuePair, RecvWr, SendWr,
};
use soft_device::SoftDevice;

const KEY: QueueKey = QueueKey(1);
const LENGTH: usize = 64;

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("efa_data_path_cost: {}", example_support::chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

struct Options {
    receives: bool,
    rounds: u32,
    depth: u32,
}

impl Options {
    fn parse() -> Result<Self, AnyError> {
        let mut options = Self { receives: false, rounds: 1000, depth: 16 };
        let mut arguments = env::args().skip(1);
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--op" => options.receives = value()? == "receive",
                "--rounds" => options.rounds = value()?.parse()?,
                "--depth" => options.depth = value()?.parse()?,
                _ => return Err(format!("unknown argument {flag}").into()),
            }
        }
        Ok(options)
    }
}

fn measure() -> Result<(), AnyError> {
    let options = Options::parse()?;
    let software = SoftDevice::builder().efa(|_| ()).build();
    let devices = efa::devices().unwrap_or_default();
    let device = match devices.first() {
        Some(device) => device.clone(),
        None => {
            let list = Devices::of(soft_device::library())?;
            list.by_name(software.name()).ok_or("the device is not in its list")?.clone()
        }
    };
    let context = device.open()?;
    let port = context.local_port(&DeviceSelector::default())?;
    let domain = context.allocate_protection_domain()?;
    let capacity = options.depth * 2;
    let (sent, received) = (queue(&context, capacity)?, queue(&context, capacity)?);
    let near = pair(&domain, &sent, &port, options.depth)?;
    let far = pair(&domain, &received, &port, options.depth)?;
    let endpoint = |pair: &QueuePair<'_, Srd>| EndpointInfo::new(pair, &port, KEY);
    let to_far = endpoint(&far).peer(&domain, &port)?;
    let _to_near = endpoint(&near).peer(&domain, &port)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = domain.register(vec![0_u8; 2 * LENGTH], access)?;
    let test = Test { near: &near, far: &far, sent: &sent, received: &received, to_far, memory };
    if options.receives { test.receive(&options) } else { test.write(&options) }
}

fn queue(context: &Context, capacity: u32) -> Result<CompletionQueue<'_>, ibverbs::Error> {
    context.create_completion_queue(capacity)
}

fn pair<'a>(
    domain: &'a ProtectionDomain<'a>,
    queue: &'a CompletionQueue<'a>,
    port: &LocalPort,
    depth: u32,
) -> efa::Result<QueuePair<'a, Srd>> {
    efa::queue_pair::<Srd>(domain, queue, queue)
        .max_send_requests(depth)
        .max_receive_requests(depth)
        .prepare(port, KEY)
}

struct Test<'a> {
    near: &'a QueuePair<'a, Srd>,
    far: &'a QueuePair<'a, Srd>,
    sent: &'a CompletionQueue<'a>,
    received: &'a CompletionQueue<'a>,
    to_far: Peer<'a>,
    memory: MemoryRegion<'a, Vec<u8>>,
}

impl Test<'_> {
    #[inline(never)]
    fn write(&self, options: &Options) -> Result<(), AnyError> {
        let to = self.memory.remote().part(LENGTH as u64..2 * LENGTH as u64)?;
        let from = self.memory.segment(..LENGTH)?;
        let request =
            |id: u32| SendWr::<Srd>::write_to(from, &to, self.to_far.destination()).id(id.into());
        let mut batch: Vec<_> = (0..options.depth).map(request).collect();
        let mut slots = Completion::slots::<16>();
        for _ in 0..options.rounds {
            self.near.post_send(&mut batch)?;
            drain(self.sent, &mut slots, options.depth)?;
        }
        Ok(())
    }

    /// Posts receives, and the messages that fill them.
    #[inline(never)]
    fn receive(&self, options: &Options) -> Result<(), AnyError> {
        let (into, from) = (self.memory.segment(..LENGTH)?, self.memory.segment(LENGTH..)?);
        let mut receives: Vec<_> =
            (0..options.depth).map(|id| RecvWr::to(id.into(), into)).collect();
        let message =
            |id| SendWr::<Srd>::send_with_imm_to(from, self.to_far.destination(), id).id(id.into());
        let mut messages: Vec<_> = (0..options.depth).map(message).collect();
        let mut slots = Completion::slots::<16>();
        for _ in 0..options.rounds {
            self.far.post_receive(&mut receives)?;
            self.near.post_send(&mut messages)?;
            drain(self.sent, &mut slots, options.depth)?;
            drain(self.received, &mut slots, options.depth)?;
        }
        Ok(())
    }
}

#[inline(always)]
fn drain(
    queue: &CompletionQueue<'_>,
    slots: &mut [Completion; 16],
    count: u32,
) -> Result<(), AnyError> {
    let mut left = count as usize;
    while left > 0 {
        let found = queue.poll(slots)?;
        for completion in found {
            completion.outcome().map_err(efa::Failure::from)?;
        }
        left -= found.len();
    }
    Ok(())
}
