//! What one SRD write and one receive cost, as a program to count instructions in.
//!
//! Two queue pairs of an EFA device, real or in software inside this process. Each round posts `--depth` requests
//! behind one doorbell and polls for all. With `--raw` it makes the calls that a C program makes, through the bare
//! bindings; the difference of the two is what this project adds.
//!
//! ```text
//! cargo build --release --example efa_data_path_cost
//! valgrind --tool=callgrind efa_data_path_cost [--raw] [--op write|receive] [--rounds N] [--depth N]
//! ```
#![expect(
    unsafe_code,
    clippy::print_stderr,
    reason = "the bare calls, to compare with, and a program that says what went wrong"
)]

use std::{env, hint::black_box, process::ExitCode, ptr};

use efa::{EndpointInfo, Peer, Srd};
use example_support::AnyError;
use ibverbs::{
    Access, Completion, CompletionQueue, Context, DeviceSelector, Devices, LocalPort, MemoryRegion,
    ProtectionDomain, QueueKey, QueuePair, RecvWr, SendWr,
};
use rdma_sys as c;
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
    raw: bool,
    receives: bool,
    rounds: u32,
    depth: u32,
}

impl Options {
    fn parse() -> Result<Self, AnyError> {
        let mut options = Self { raw: false, receives: false, rounds: 1000, depth: 16 };
        let mut arguments = env::args().skip(1);
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--raw" => options.raw = true,
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
    match (options.raw, options.receives) {
        (false, false) => test.write(&options),
        (true, false) => test.write_raw(&options),
        (false, true) => test.receive(&options),
        (true, true) => test.receive_raw(&options),
    }
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

    #[inline(never)]
    fn write_raw(&self, options: &Options) -> Result<(), AnyError> {
        let remote = self.memory.remote();
        let (address, rkey) = (remote.address() + LENGTH as u64, remote.key().0);
        let lkey = self.memory.local_key().0;
        let peer = self.to_far.endpoint();
        let (number, key) = (peer.number.get(), peer.queue_key.0);
        let handle = self.to_far.address_handle().as_raw();
        let library = self.near.protection_domain().context().library();
        let view = library.verbs().ibv_qp_to_qp_ex.ok_or("no extended posting")?;
        // SAFETY: the queue pair is live and was made for extended posting.
        let qp = unsafe { view(self.near.as_raw()) };
        let mut slots = [c::ibv_wc::default(); 16];
        let length = black_box(u32::try_from(LENGTH)?);
        for _ in 0..options.rounds {
            // SAFETY: as above.
            unsafe { c::ibv_wr_start(qp) };
            for id in 0..options.depth {
                // SAFETY: between start and complete.
                unsafe { (*qp).wr_id = id.into() };
                // SAFETY: as above.
                unsafe { (*qp).wr_flags = c::IBV_SEND_SIGNALED };
                // SAFETY: as above.
                unsafe { c::ibv_wr_rdma_write(qp, rkey, address) };
                // SAFETY: as above; the handle is live.
                unsafe { c::ibv_wr_set_ud_addr(qp, handle, number, key) };
                // SAFETY: as above; the region is live.
                unsafe { c::ibv_wr_set_sge(qp, lkey, self.memory.address(), length) };
            }
            // SAFETY: after a start.
            if unsafe { c::ibv_wr_complete(qp) } != 0 {
                return Err("ibv_wr_complete failed".into());
            }
            drain_raw(self.sent, &mut slots, options.depth)?;
        }
        Ok(())
    }

    /// Posts receives; the messages that fill them are posted in the same way in both cases.
    #[inline(never)]
    fn receive(&self, options: &Options) -> Result<(), AnyError> {
        let into = self.memory.segment(..LENGTH)?;
        let mut batch: Vec<_> = (0..options.depth).map(|id| RecvWr::to(id.into(), into)).collect();
        let mut slots = Completion::slots::<16>();
        for _ in 0..options.rounds {
            self.far.post_receive(&mut batch)?;
            self.fill(options.depth)?;
            drain(self.received, &mut slots, options.depth)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn receive_raw(&self, options: &Options) -> Result<(), AnyError> {
        let (addr, lkey) = (self.memory.address(), self.memory.local_key().0);
        let length = u32::try_from(LENGTH)?;
        let depth = options.depth as usize;
        let mut segments = vec![c::ibv_sge { addr, length, lkey }; depth];
        let mut batch: Vec<_> = (0..depth)
            .map(|id| c::ibv_recv_wr {
                wr_id: id as u64,
                next: ptr::null_mut(),
                sg_list: &raw mut segments[id],
                num_sge: 1,
            })
            .collect();
        let mut slots = [c::ibv_wc::default(); 16];
        for _ in 0..options.rounds {
            // As C programs do, the list is linked each time.
            for id in 1..depth {
                batch[id - 1].next = &raw mut batch[id];
            }
            let mut bad = ptr::null_mut();
            // SAFETY: the queue pair is live, and the list and its segments are.
            let code =
                unsafe { c::ibv_post_recv(self.far.as_raw(), &raw mut batch[0], &raw mut bad) };
            if code != 0 {
                return Err("ibv_post_recv failed".into());
            }
            self.fill(options.depth)?;
            drain_raw(self.received, &mut slots, options.depth)?;
        }
        Ok(())
    }

    fn fill(&self, depth: u32) -> Result<(), AnyError> {
        let from = self.memory.segment(LENGTH..)?;
        for id in 0..depth {
            let send = SendWr::<Srd>::send_with_imm_to(from, self.to_far.destination(), id);
            self.near.post_send(&mut [send])?;
        }
        drain_raw(self.sent, &mut [c::ibv_wc::default(); 16], depth)
    }
}

fn drain(
    queue: &CompletionQueue<'_>,
    slots: &mut [Completion],
    count: u32,
) -> Result<(), AnyError> {
    let mut left = count as usize;
    while left > 0 {
        for completion in queue.poll(slots)? {
            black_box(completion.outcome().map_err(efa::Failure::from)?.id());
            left -= 1;
        }
    }
    Ok(())
}

fn drain_raw(
    queue: &CompletionQueue<'_>,
    slots: &mut [c::ibv_wc],
    count: u32,
) -> Result<(), AnyError> {
    let (mut left, room) = (i32::try_from(count)?, i32::try_from(slots.len())?);
    while left > 0 {
        // SAFETY: the queue is live, and there is that much room.
        let found = unsafe { c::ibv_poll_cq(queue.as_raw(), room, slots.as_mut_ptr()) };
        for completion in &slots[..usize::try_from(found)?] {
            if completion.status != c::IBV_WC_SUCCESS {
                return Err("a request failed".into());
            }
            black_box(completion.wr_id);
        }
        left -= found;
    }
    Ok(())
}
