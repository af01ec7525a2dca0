//! An open device, a queue pair with its queues and memory, and waiting for completions: what all tests begin with.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ibverbs::{
    Access, Completion, CompletionQueue, Context, Device, DeviceSelector, LocalPort, MemoryRegion,
    ProtectionDomain, QueuePair, ReadyToSend, Receiving,
};

/// Longer than anything takes, on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Everything that a peer may do.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// An open device and what is made on it once.
pub(crate) struct Host {
    pub(crate) context: Arc<Context>,
    pub(crate) domain: Arc<ProtectionDomain<'static>>,
    pub(crate) port: LocalPort,
}

impl Host {
    pub(crate) fn open(device: &Device, selector: &DeviceSelector) -> Self {
        let context = Arc::new(device.open().unwrap());
        let domain = Arc::new(ProtectionDomain::allocate(&context).unwrap());
        let port = context.local_port(selector).unwrap();
        Self { context, domain, port }
    }

    pub(crate) fn queue(&self, capacity: u32) -> Arc<CompletionQueue<'static>> {
        Arc::new(CompletionQueue::create(&self.context, capacity).unwrap())
    }

    pub(crate) fn region(&self, bytes: Vec<u8>, access: Access) -> MemoryRegion<'static, Vec<u8>> {
        MemoryRegion::register(&self.domain, bytes, access).unwrap()
    }
}

/// A queue pair, where its requests complete, and memory that peers may use.
pub(crate) struct End<T, S = ReadyToSend> {
    pub(crate) pair: QueuePair<'static, T, S>,
    pub(crate) sends: Arc<CompletionQueue<'static>>,
    pub(crate) receives: Arc<CompletionQueue<'static>>,
    pub(crate) memory: MemoryRegion<'static, Vec<u8>>,
}

impl<T, S> End<T, S> {
    /// Carries the queue pair on to another state.
    pub(crate) fn map<N>(
        self,
        change: impl FnOnce(QueuePair<'static, T, S>) -> QueuePair<'static, T, N>,
    ) -> End<T, N> {
        let Self { pair, sends, receives, memory } = self;
        End { pair: change(pair), sends, receives, memory }
    }
}

impl<T: Receiving> End<T> {
    /// The next completion of a request to the send queue.
    pub(crate) fn sent(&self) -> Completion {
        next(&self.sends)
    }

    /// The next completion of a receive.
    pub(crate) fn received(&self) -> Completion {
        next(&self.receives)
    }
}

/// Waits for one completion.
pub(crate) fn next(queue: &CompletionQueue<'_>) -> Completion {
    within(queue, PATIENCE).expect("no completion came")
}

/// A completion, if one comes in that time.
pub(crate) fn within(queue: &CompletionQueue<'_>, time: Duration) -> Option<Completion> {
    let start = Instant::now();
    let mut slots = Completion::slots::<1>();
    loop {
        if let [completion] = queue.poll(&mut slots).unwrap() {
            return Some(*completion);
        }
        if start.elapsed() > time {
            return None;
        }
        thread::yield_now();
    }
}

/// Bytes that repeat seldom, different for each seed.
pub(crate) fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| {
            let [low, high, ..] = index.to_le_bytes();
            low.wrapping_mul(31) ^ high ^ seed
        })
        .collect()
}
