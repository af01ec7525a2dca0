//! The writes of examples/data_path_cost.rs through the crate `sideway`: two reliable connections in one process.
//!
//! ```text
//! bench-sideway [--dev NAME] [--gid N] [--iters N] [--warmup N] [--mode single|batch] [--depth N] [--size N]
//! ```

use std::{env, error::Error, sync::Arc, time::Instant};

use sideway::ibverbs::{
    AccessFlags,
    address::AddressHandleAttribute,
    completion::{ExtendedCompletionQueue, PollCompletionQueueError, WorkCompletionStatus},
    device::{DeviceInfo, DeviceList},
    device_context::DeviceContext,
    memory_region::MemoryRegion,
    protection_domain::ProtectionDomain,
    queue_pair::{
        ExtendedQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState,
        SendOperationFlags, SetScatterGatherEntry, WorkRequestFlags,
    },
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Options {
    device: Option<String>,
    gid: u8,
    iterations: u64,
    warmup: u64,
    depth: u32,
    size: usize,
}

impl Options {
    fn parse() -> Result<Self> {
        let device = env::var("RDMA_DEVICE").ok();
        let gid = env::var("RDMA_GID_INDEX").map_or(Ok(0), |text| text.parse())?;
        let mut options =
            Self { device, gid, iterations: 1_000_000, warmup: 10_000, depth: 64, size: 8 };
        let mut is_batch = false;
        let mut words = env::args().skip(1);
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--dev" => options.device = Some(value),
                "--gid" => options.gid = value.parse()?,
                "--iters" => options.iterations = value.parse()?,
                "--warmup" => options.warmup = value.parse()?,
                "--depth" => options.depth = value.parse()?,
                "--size" => options.size = value.parse()?,
                "--mode" => is_batch = value == "batch",
                _ => return Err(format!("unknown argument {flag}").into()),
            }
        }
        if !is_batch {
            options.depth = 1;
        }
        Ok(options)
    }
}

fn main() -> Result<()> {
    let options = Options::parse()?;
    let list = DeviceList::new()?;
    let wanted = |name: String| options.device.as_ref().is_none_or(|device| *device == name);
    let device = list.iter().find(|device| wanted(device.name())).ok_or("no such device")?;
    let context = device.open()?;
    let domain = context.alloc_pd()?;
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
    let (source, target) = (vec![0xa5_u8; options.size], vec![0_u8; options.size]);
    // SAFETY: the memory lives as long as this function, which ends after the regions.
    let from = unsafe { domain.reg_mr(source.as_ptr() as usize, options.size, access) }?;
    // SAFETY: as above.
    let to = unsafe { domain.reg_mr(target.as_ptr() as usize, options.size, access) }?;
    let sent = queue(&context, &options)?;
    let unused = queue(&context, &options)?;
    let mut sender = pair(&domain, &sent, &unused, &options)?;
    let mut receiver = pair(&domain, &unused, &unused, &options)?;
    connect(&context, &mut receiver, sender.qp_number(), &options)?;
    connect(&context, &mut sender, receiver.qp_number(), &options)?;

    let rounds = |count: u64| count.div_ceil(options.depth.into());
    run(&mut sender, &sent, &from, &to, options.depth, rounds(options.warmup))?;
    let start = Instant::now();
    run(&mut sender, &sent, &from, &to, options.depth, rounds(options.iterations))?;
    let elapsed = start.elapsed().as_nanos() as f64;
    let operations = rounds(options.iterations) * u64::from(options.depth);
    println!("sideway ns_per_op={:.1}", elapsed / operations as f64);
    if std::hint::black_box(&target).iter().any(|byte| *byte != 0xa5) {
        return Err("the payload did not arrive".into());
    }
    Ok(())
}

fn queue(context: &Arc<DeviceContext>, options: &Options) -> Result<Arc<ExtendedCompletionQueue>> {
    Ok(context.create_cq_builder().setup_cqe((2 * options.depth).max(16)).build_ex()?)
}

fn pair(
    domain: &Arc<ProtectionDomain>,
    sends: &Arc<ExtendedCompletionQueue>,
    receives: &Arc<ExtendedCompletionQueue>,
    options: &Options,
) -> Result<ExtendedQueuePair> {
    let mut builder = domain.create_qp_builder();
    builder.setup_max_send_wr(options.depth.max(16)).setup_max_recv_wr(16);
    builder.setup_max_send_sge(1).setup_max_recv_sge(1);
    builder.setup_send_cq(Arc::clone(sends)).setup_recv_cq(Arc::clone(receives));
    builder.setup_send_ops_flags(SendOperationFlags::Write);
    Ok(builder.build_ex()?)
}

fn connect(
    context: &DeviceContext,
    pair: &mut ExtendedQueuePair,
    peer: u32,
    options: &Options,
) -> Result<()> {
    let port = context.query_port(1)?;
    let gid = context.query_gid(1, options.gid.into())?;
    let mut attributes = QueuePairAttribute::new();
    attributes.setup_state(QueuePairState::Init).setup_pkey_index(0).setup_port(1);
    attributes.setup_access_flags(AccessFlags::LocalWrite | AccessFlags::RemoteWrite);
    pair.modify(&attributes)?;

    let mut address = AddressHandleAttribute::new();
    address.setup_dest_lid(port.lid()).setup_port(1).setup_service_level(0);
    address.setup_grh_src_gid_index(options.gid).setup_grh_dest_gid(&gid).setup_grh_hop_limit(64);
    let mut attributes = QueuePairAttribute::new();
    attributes.setup_state(QueuePairState::ReadyToReceive).setup_path_mtu(port.active_mtu());
    attributes.setup_dest_qp_num(peer).setup_rq_psn(0).setup_max_dest_read_atomic(1);
    attributes.setup_min_rnr_timer(12).setup_address_vector(&address);
    pair.modify(&attributes)?;

    let mut attributes = QueuePairAttribute::new();
    attributes.setup_state(QueuePairState::ReadyToSend).setup_sq_psn(0).setup_timeout(14);
    attributes.setup_retry_cnt(7).setup_rnr_retry(7).setup_max_read_atomic(1);
    Ok(pair.modify(&attributes)?)
}

fn run(
    sender: &mut ExtendedQueuePair,
    sent: &ExtendedCompletionQueue,
    from: &MemoryRegion,
    to: &MemoryRegion,
    depth: u32,
    rounds: u64,
) -> Result<()> {
    let length = u32::try_from(from.region_len())?;
    for _ in 0..rounds {
        let mut guard = sender.start_post_send();
        for id in 0..depth {
            let request = guard.construct_wr(id.into(), WorkRequestFlags::Signaled);
            let write = request.setup_write(to.rkey(), to.get_ptr() as u64);
            // SAFETY: the region is live, and nothing else uses its memory.
            unsafe { write.setup_sge(from.lkey(), from.get_ptr() as u64, length) };
        }
        guard.post()?;
        let mut left = depth;
        while left > 0 {
            match sent.start_poll() {
                Ok(poller) => {
                    for completion in poller {
                        if completion.status() != WorkCompletionStatus::Success as u32 {
                            return Err(format!("status {}", completion.status()).into());
                        }
                        left -= 1;
                    }
                }
                Err(PollCompletionQueueError::CompletionQueueEmpty) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
