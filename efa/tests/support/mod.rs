//! Devices, queue pairs and memory of the guest's EFA devices.
pub(crate) mod memory_file;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use efa::{
    EfaCompletion, EndpointInfo, Failure, Peer, Poller, QueuePairBuilder, Srd,
    ibverbs::{
        Access, Completion, CompletionQueue, Context, DeviceSelector, LocalPort, MemoryRegion,
        ProtectionDomain, QueueKey, QueuePair, RemoteMemory,
    },
};

pub(crate) use crate::backend::{device, has_devices};

/// Far more than anything here takes, on a machine that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The key of every queue pair.
pub(crate) const KEY: QueueKey = QueueKey(0x1234);
/// The rights that tests give where they do not test rights.
pub(crate) const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// An open device with a domain and a completion queue.
pub(crate) struct Lane {
    pub(crate) context: Arc<Context>,
    pub(crate) port: LocalPort,
    pub(crate) domain: Arc<ProtectionDomain<'static>>,
    pub(crate) queue: Arc<CompletionQueue<'static>>,
}

impl Lane {
    /// Opens the device with this number.
    pub(crate) fn open(number: usize) -> Self {
        let context = Arc::new(device(number).open().unwrap());
        let port = context.local_port(&DeviceSelector::default()).unwrap();
        let domain = Arc::new(ProtectionDomain::allocate(&context).unwrap());
        let queue = Arc::new(CompletionQueue::create(&context, 256).unwrap());
        Self { context, port, domain, queue }
    }

    /// The same with a completion queue that tells sender GIDs and unsolicited writes.
    pub(crate) fn telling(number: usize) -> Self {
        let lane = Self::open(number);
        let queue = efa::completion_queue(&lane.context, 256).sender_gids().unsolicited();
        Self { queue: Arc::new(queue.create().unwrap()), ..lane }
    }

    /// Begins an SRD queue pair.
    pub(crate) fn builder(&self) -> QueuePairBuilder<'static, Srd> {
        efa::queue_pair(&self.domain, &self.queue, &self.queue)
            .max_send_requests(64)
            .max_receive_requests(64)
    }

    /// An SRD queue pair that is ready.
    pub(crate) fn pair(&self) -> QueuePair<'static, Srd> {
        self.builder().prepare(&self.port, KEY).unwrap()
    }

    /// What peers need to reach a queue pair.
    pub(crate) fn endpoint(&self, pair: &QueuePair<'static, Srd>) -> EndpointInfo {
        EndpointInfo::new(pair, &self.port, KEY)
    }

    /// The way to a queue pair of another lane.
    pub(crate) fn peer(&self, other: &Self, pair: &QueuePair<'static, Srd>) -> Peer<'static> {
        // The bytes travel, as between machines.
        let info = EndpointInfo::from_bytes(&other.endpoint(pair).to_bytes()).unwrap();
        info.peer(&self.domain, &self.port).unwrap()
    }

    /// Registers memory with every right.
    pub(crate) fn memory(&self, bytes: Vec<u8>) -> MemoryRegion<'static, Vec<u8>> {
        self.memory_with(bytes, ALL)
    }

    /// Registers memory with some rights.
    pub(crate) fn memory_with(
        &self,
        bytes: Vec<u8>,
        access: Access,
    ) -> MemoryRegion<'static, Vec<u8>> {
        MemoryRegion::register(&self.domain, bytes, access).unwrap()
    }

    /// Takes `count` completions, in whatever order they come.
    pub(crate) fn completions(&self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut slots = Completion::slots::<16>();
        let deadline = Instant::now() + PATIENCE;
        while all.len() < count {
            all.extend_from_slice(self.queue.poll(&mut slots).unwrap());
            assert!(
                Instant::now() < deadline,
                "{} of {count} completions came: {all:?}",
                all.len()
            );
            thread::yield_now();
        }
        all
    }

    /// Takes `count` completions, each of which must be a success.
    pub(crate) fn successes(&self, count: usize) {
        for done in self.completions(count) {
            done.outcome().unwrap();
        }
    }

    /// Takes one completion.
    pub(crate) fn completion(&self) -> Completion {
        self.completions(1)[0]
    }

    /// Takes one completion, which must be a failure.
    pub(crate) fn failure(&self) -> Failure {
        Failure::from(self.completion().outcome().expect_err("a failure was expected"))
    }

    /// Makes sure that nothing completes for a while.
    pub(crate) fn expect_silence(&self) {
        let mut slots = Completion::slots::<1>();
        for _ in 0..20 {
            assert_eq!(self.queue.poll(&mut slots).unwrap().len(), 0);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Two queue pairs that know each other.
pub(crate) struct Both {
    pub(crate) near: Lane,
    pub(crate) far: Lane,
    pub(crate) near_pair: QueuePair<'static, Srd>,
    pub(crate) far_pair: QueuePair<'static, Srd>,
    /// The far queue pair, as the near side knows it.
    pub(crate) to_far: Peer<'static>,
    /// The near queue pair, as the far side knows it: RDMA needs it.
    pub(crate) _to_near: Peer<'static>,
}

impl Both {
    /// Queue pairs of the first two devices.
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// The same, each made with what `options` adds.
    pub(crate) fn with(
        options: impl Fn(QueuePairBuilder<'static, Srd>) -> QueuePairBuilder<'static, Srd>,
    ) -> Self {
        Self::between(Lane::open(0), Lane::open(1), options)
    }

    /// The same between given lanes.
    pub(crate) fn between(
        near: Lane,
        far: Lane,
        options: impl Fn(QueuePairBuilder<'static, Srd>) -> QueuePairBuilder<'static, Srd>,
    ) -> Self {
        let near_pair = options(near.builder()).prepare(&near.port, KEY).unwrap();
        let far_pair = options(far.builder()).prepare(&far.port, KEY).unwrap();
        Self::of(near, far, near_pair, far_pair)
    }

    /// Given queue pairs, which get to know each other.
    pub(crate) fn of(
        near: Lane,
        far: Lane,
        near_pair: QueuePair<'static, Srd>,
        far_pair: QueuePair<'static, Srd>,
    ) -> Self {
        let (to_far, _to_near) = (near.peer(&far, &far_pair), far.peer(&near, &near_pair));
        Self { near, far, near_pair, far_pair, to_far, _to_near }
    }
}

/// The handle of a region as it arrives at a peer.
pub(crate) fn published(memory: &MemoryRegion<'static, Vec<u8>>) -> RemoteMemory {
    RemoteMemory::from_bytes(&memory.remote().to_bytes()).unwrap()
}

/// Bytes of which no two neighbours and no two pages are alike.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    let byte = |at: usize| {
        let mixed = (at ^ seed << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
        u8::try_from(mixed & 0xff).unwrap()
    };
    (0..length).map(byte).collect()
}

/// Takes one completion off a queue that tells what only EFA knows.
pub(crate) fn told(queue: &CompletionQueue<'static>) -> EfaCompletion {
    let mut poller = Poller::of(queue).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let [completion, ..] = poller.poll().unwrap() {
            return *completion;
        }
        assert!(Instant::now() < deadline, "nothing came");
        thread::yield_now();
    }
}
