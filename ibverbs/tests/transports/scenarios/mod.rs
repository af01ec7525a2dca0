//! What must hold on every device, by either way of posting. The folder that includes this says which device.

mod attributes;
mod datagrams;
mod draining;
mod halves;
mod persistence;
mod shared_receives;
mod unreliable;
mod windows;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, Connected, Context, Device,
    DeviceSelector, LocalPort, MemoryRegion, Operations, Posting, ProtectionDomain, QueuePair,
    ReadyToSend, Receiving, Reset, Transport,
};

/// Longer than anything takes, on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Long enough for what should not come to come, if it came.
pub(crate) const A_WHILE: Duration = Duration::from_millis(300);

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

    pub(crate) fn queue(&self) -> Arc<CompletionQueue<'static>> {
        Arc::new(CompletionQueue::create(&self.context, 64).unwrap())
    }

    pub(crate) fn region(&self, bytes: Vec<u8>, access: Access) -> MemoryRegion<'static, Vec<u8>> {
        MemoryRegion::register(&self.domain, bytes, access).unwrap()
    }

    /// A queue pair with queues and memory of its own, made for all that its transport has in common.
    pub(crate) fn end<T: Transport>(&self, posting: Posting) -> End<T, Reset> {
        self.end_for(posting, Operations::COMMON).unwrap()
    }

    pub(crate) fn end_for<T: Transport>(
        &self,
        posting: Posting,
        operations: Operations,
    ) -> ibverbs::Result<End<T, Reset>> {
        let (sends, receives) = (self.queue(), self.queue());
        let pair = QueuePair::<T, Reset>::builder(&self.domain, &sends, &receives)
            .max_send_segments(4)
            .max_inline(64)
            .operations(operations)
            .posting(posting)
            .create()?;
        Ok(End { pair, sends, receives, memory: self.region(vec![0; 8192], ALL) })
    }

    /// Two queue pairs of this host, connected to each other.
    pub(crate) fn ends<T: Connected>(&self, posting: Posting) -> (End<T>, End<T>) {
        self.connect(self.end(posting), self.end(posting))
    }

    pub(crate) fn connect<T: Connected>(
        &self,
        a: End<T, Reset>,
        b: End<T, Reset>,
    ) -> (End<T>, End<T>) {
        let options = ConnectOptions::new(&self.port).access(ALL);
        let (to_a, to_b) = (a.pair.endpoint(&self.port), b.pair.endpoint(&self.port));
        let a = a.map(|pair| pair.connect(&to_b, options.clone()).unwrap());
        let b = b.map(|pair| pair.connect(&to_a, options).unwrap());
        (a, b)
    }
}

/// A queue pair, where its requests complete, and 8192 bytes that peers may use.
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

    pub(crate) fn bytes(&self, start: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.bytes().read(start, &mut bytes).unwrap();
        bytes
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
