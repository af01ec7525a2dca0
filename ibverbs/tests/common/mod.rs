//! Two connected ends, on any device.

pub(crate) mod link;
pub(crate) mod orders;
pub(crate) mod transfers;

pub(crate) mod host;

use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, Posting, QpInfo, QueuePair, Rc,
    ReadyToSend, Reset,
};

pub(crate) use self::host::{ALL, Host, PATIENCE, pattern};

/// One end of a connection.
pub(crate) type End<S = ReadyToSend> = host::End<Rc, S>;

impl Host {
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

impl End<Reset> {
    pub(crate) fn connect(self, remote: &QpInfo, options: &ConnectOptions) -> End {
        self.map(|pair| pair.connect(remote, options).unwrap())
    }
}

/// Whether nothing has completed.
pub(crate) fn is_quiet(queue: &CompletionQueue<'_>) -> bool {
    queue.poll(&mut Completion::slots::<1>()).unwrap().is_empty()
}
