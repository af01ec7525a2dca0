//! One transfer over several EFA devices: each lane has a context, a domain, a queue, a peer and a region of its own.
//!
//! More devices are what raises the bandwidth of large transfers. Choose those that are near to the GPU or the memory
//! that the bytes are in, not the first of the list.
//!
//! ```text
//! cargo run --example efa_multi_lane
//! ```

use std::{process::ExitCode, sync::Arc};

use efa::{EfaCapabilities, Peer, Srd};
use example_support::{
    AnyError, World, check_pattern, efa_devices, efa_peer, pattern, report, run, wait,
};
use ibverbs::{
    Access, CompletionQueue, Device, DeviceSelector, MemoryRegion, ProtectionDomain, QueueKey,
    QueuePair, RemoteMemory,
};

/// How many bytes each lane writes.
const PART: usize = 512 << 10;
/// The longest piece of a part.
const PIECE: u32 = 64 << 10;
/// What every queue pair accepts.
const KEY: QueueKey = QueueKey(0x1234);

fn main() -> ExitCode {
    report(run(2, rank))
}

/// All that one device takes. Each part keeps what it was made of alive, so that they lie in one struct.
struct Lane {
    pair: QueuePair<'static, Srd>,
    peer: Peer<'static>,
    domain: Arc<ProtectionDomain<'static>>,
    queue: Arc<CompletionQueue<'static>>,
    piece: u32,
}

impl Lane {
    /// A lane over a device of this rank, to the same lane of the other rank.
    fn open(world: &World, device: &Device) -> Result<Self, AnyError> {
        let context = Arc::new(device.open()?);
        let attributes = efa::query_device(&context)?;
        attributes.require(EfaCapabilities::RDMA_WRITE)?;
        let port = context.local_port(&DeviceSelector::default())?;
        let domain = Arc::new(ProtectionDomain::allocate(&context)?);
        let queue = Arc::new(CompletionQueue::create(&context, 64)?);
        let pair = efa::queue_pair::<Srd>(&domain, &queue, &queue).prepare(&port, KEY)?;
        let peer = efa_peer(world, &domain, &port, &pair, KEY)?;
        Ok(Self { pair, peer, domain, queue, piece: attributes.max_rdma_size().min(PIECE) })
    }
}

fn rank(world: &World) -> Result<(), AnyError> {
    let devices = efa_devices(world)?;
    // Both ranks need as many lanes: each side may have more devices than the other.
    let count = u32::try_from(devices.len())?.to_be_bytes();
    let theirs = <[u8; 4]>::try_from(world.exchange_with_peer(&count)?.as_slice())?;
    let count = devices.len().min(u32::from_be_bytes(theirs) as usize);
    let lanes = devices[..count]
        .iter()
        .map(|device| Lane::open(world, device))
        .collect::<Result<Vec<_>, AnyError>>()?;

    if world.rank() == 0 {
        let regions = lanes
            .iter()
            .enumerate()
            .map(|(index, lane)| {
                let part = pattern(index as u64, PART);
                MemoryRegion::register(&lane.domain, part, Access::LOCAL_WRITE)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let targets = world.broadcast(1, &[])?;
        let targets = targets.chunks(RemoteMemory::LENGTH).map(RemoteMemory::from_bytes);
        // Every lane is posted before the first completion is waited for.
        let mut posted = Vec::new();
        for ((lane, region), target) in lanes.iter().zip(&regions).zip(targets) {
            let to = target?.at(0)?;
            let mut writes: Vec<_> =
                efa::write_wrs(region, .., &to, &lane.peer, lane.piece)?.collect();
            lane.pair.post_send(&mut writes)?;
            posted.push(writes.len());
        }
        for (lane, count) in lanes.iter().zip(posted) {
            for _ in 0..count {
                wait(world, "the completion of a write", &lane.queue, |_| ())?;
            }
        }
        world.say(format!("{count} lanes have written {PART} bytes each"));
        world.barrier()?;
    } else {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let regions = lanes
            .iter()
            .map(|lane| MemoryRegion::register(&lane.domain, vec![0_u8; PART], access))
            .collect::<Result<Vec<_>, _>>()?;
        // One address and one key for each lane: keys are of one device.
        let handles: Vec<_> =
            regions.iter().flat_map(|region| region.remote().to_bytes()).collect();
        world.broadcast(1, &handles)?;
        world.barrier()?;
        for (index, region) in regions.into_iter().enumerate() {
            check_pattern(index as u64, &region.into_buffer()?)?;
        }
        world.say(format!("verified all {} bytes of {count} lanes", count * PART));
    }
    world.barrier()?;
    Ok(())
}
