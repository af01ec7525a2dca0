//! Two connected ends, on any device.

pub(crate) mod link;
pub(crate) mod orders;
pub(crate) mod transfers;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, Context, Device, DeviceSelector,
    LocalPort, MemoryRegion, Posting, ProtectionDomain, QpInfo, QueuePair, Rc, ReadyToSend, Reset,
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

    /// A queue pair with queues and memory of its own.
    pub(crate) fn end(&self, shape: Shape) -> End<Reset> {
        let (sends, receives) = (self.queue(64), self.queue(64));
        let mut builder = QueuePair::<Rc, Reset>::builder(&self.domain, &sends, &receives)
            .max_send_requests(32)
            .max_receive_requests(32)
            .max_send_segments(4)
            .max_receive_segments(4)
            .max_inline(64);
        if let Some(posting) = shape.posting {
            builder = builder.posting(posting);
        }
        let pair = builder.create().unwrap();
        let memory = self.region(vec![0; shape.memory], shape.access);
        End { pair, sends, receives, memory }
    }

    /// Two ends on this host, connected to each other.
    pub(crate) fn ends(&self, shape: Shape) -> (End, End) {
        let options = ConnectOptions::new(&self.port).access(ALL);
        self.ends_with(shape, &options)
    }

    pub(crate) fn ends_with(&self, shape: Shape, options: &ConnectOptions) -> (End, End) {
        let (a, b) = (self.end(shape), self.end(shape));
        let (to_a, to_b) = (a.pair.endpoint(&self.port), b.pair.endpoint(&self.port));
        (a.connect(&to_b, options), b.connect(&to_a, options))
    }
}

/// How an end is made.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) posting: Option<Posting>,
    pub(crate) memory: usize,
    pub(crate) access: Access,
}

impl Default for Shape {
    fn default() -> Self {
        Self { posting: None, memory: 8192, access: ALL }
    }
}

impl From<Posting> for Shape {
    fn from(posting: Posting) -> Self {
        Self { posting: Some(posting), ..Self::default() }
    }
}

/// One end of a connection.
pub(crate) struct End<S = ReadyToSend> {
    pub(crate) pair: QueuePair<'static, Rc, S>,
    pub(crate) sends: Arc<CompletionQueue<'static>>,
    pub(crate) receives: Arc<CompletionQueue<'static>>,
    pub(crate) memory: MemoryRegion<'static, Vec<u8>>,
}

impl End<Reset> {
    pub(crate) fn connect(self, remote: &QpInfo, options: &ConnectOptions) -> End {
        let Self { pair, sends, receives, memory } = self;
        End { pair: pair.connect(remote, options.clone()).unwrap(), sends, receives, memory }
    }
}

impl End {
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
    let start = Instant::now();
    let mut slots = Completion::slots::<1>();
    loop {
        if let [completion] = queue.poll(&mut slots).unwrap() {
            return *completion;
        }
        assert!(start.elapsed() < PATIENCE, "no completion came");
        thread::yield_now();
    }
}

/// Whether nothing has completed.
pub(crate) fn is_quiet(queue: &CompletionQueue<'_>) -> bool {
    queue.poll(&mut Completion::slots::<1>()).unwrap().is_empty()
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
