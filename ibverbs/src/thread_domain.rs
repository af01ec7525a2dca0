//! Queue pairs that one thread uses, so that the provider takes no lock for them.
//!
//! A thread domain is a promise to the provider: what belongs to it is used by one thread at a time. Here the
//! compiler keeps it. The domain and its queue pairs are neither `Send` nor `Sync`, since providers let queue pairs of
//! one domain share a doorbell without a lock: they stay in the thread that made the domain.
#![expect(unsafe_code, reason = "owns an ibv_td and a parent domain")]

use std::{fmt, marker::PhantomData, ptr::NonNull};

use crate::{
    CompletionQueue, ConnectOptions, Connected, Initialized, LocalPort, Operations, Parent,
    PostError, Posting, PostsReceives, PostsSends, ProtectionDomain, QpInfo, QueuePair,
    QueuePairBuilder, QueuePairNumber, ReadyToSend, Receiving, RecvWr, Reset, Result, SendWr,
    Transport, Verb,
};

/// Kept in the thread that made it.
type InThread = PhantomData<*const ()>;

/// Where queue pairs without locks are made: a protection domain as one thread sees it.
///
/// Regions and completion queues are made from the protection domain and the context as always.
///
/// # Examples
///
/// ```
/// use ibverbs::{
///     CompletionQueue, ConnectOptions, LocalPort, ProtectionDomain, QpInfo, Rc, Segment, SendWr,
///     ThreadDomain,
/// };
///
/// fn work(
///     domain: &ProtectionDomain<'_>,
///     queue: &CompletionQueue<'_>,
///     port: &LocalPort,
///     exchange: impl FnOnce(QpInfo) -> QpInfo,
///     bytes: Segment<'_>,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     // In the thread that posts: neither can leave it.
///     let thread = ThreadDomain::allocate(domain)?;
///     let pair = thread.queue_pair::<Rc>(queue, queue).create()?;
///     let peer = exchange(pair.endpoint(port));
///     let pair = pair.connect(&peer, &ConnectOptions::new(port))?;
///     pair.post_send(&mut [SendWr::send(bytes).signaled()])?;
///     Ok(())
/// }
/// ```
pub struct ThreadDomain<'a> {
    /// The parent domain, which queue pairs are made in. Dropped before the parts it is made of.
    parent: ProtectionDomain<'a>,
    /// Held for the parent domain.
    _thread: Thread<'a>,
    in_thread: InThread,
}

impl<'a> ThreadDomain<'a> {
    /// Makes a thread domain over a protection domain, borrowed or shared. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has none. See `ibv_alloc_td(3)`,
    /// `ibv_alloc_parent_domain(3)`.
    #[doc(alias = "ibv_alloc_td")]
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn allocate(domain: impl Into<Parent<'a, ProtectionDomain<'a>>>) -> Result<Self> {
        let thread = Thread::allocate(domain.into())?;
        let verb = Verb::new("ibv_alloc_parent_domain");
        let mut attributes = rdma_sys::ibv_parent_domain_init_attr {
            pd: thread.domain.as_raw(),
            td: thread.raw.as_ptr(),
            ..Default::default()
        };
        let context = thread.domain.context().as_raw();
        // SAFETY: context, domain and thread domain are held, and no optional field is named.
        let raw = unsafe { rdma_sys::ibv_alloc_parent_domain(context, &raw mut attributes) };
        let raw = verb.object(verb.find(raw)?)?;
        // SAFETY: just made on this context; `ibv_dealloc_pd` frees parent domains too.
        let parent = unsafe { ProtectionDomain::from_raw(raw, thread.domain.context_parent()) };
        Ok(Self { parent, _thread: thread, in_thread: PhantomData })
    }

    /// Begins a queue pair of this thread, whose completion queues are borrowed or shared (`&Arc<…>`).
    pub fn queue_pair<T: Transport>(
        &'a self,
        send_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
        receive_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
    ) -> ThreadQueuePairBuilder<'a, T> {
        let builder = QueuePair::builder(&self.parent, send_queue, receive_queue);
        ThreadQueuePairBuilder { builder, in_thread: PhantomData }
    }
}

impl fmt::Debug for ThreadDomain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ThreadDomain").field(self.parent.context().device()).finish()
    }
}

/// Owns an `ibv_td`.
struct Thread<'a> {
    /// From `ibv_alloc_td` on the context of `domain`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_td>,
    domain: Parent<'a, ProtectionDomain<'a>>,
}

impl<'a> Thread<'a> {
    fn allocate(domain: Parent<'a, ProtectionDomain<'a>>) -> Result<Self> {
        let verb = Verb::new("ibv_alloc_td");
        let mut attributes = rdma_sys::ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open as long as the domain is held.
        let raw = unsafe { rdma_sys::ibv_alloc_td(domain.context().as_raw(), &raw mut attributes) };
        Ok(Self { raw: verb.object(verb.find(raw)?)?, domain })
    }
}

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` is live, and nothing reads it after this. While a leaked parent domain is left the
        // call is refused, ibv_alloc_td(3).
        if let Some(returned) = unsafe { rdma_sys::ibv_dealloc_td(self.raw.as_ptr()) } {
            Verb::new("ibv_dealloc_td").log_refusal(returned);
        }
    }
}

/// How large a queue pair of one thread should be; see [`QueuePairBuilder`].
#[derive(Debug)]
#[must_use = "nothing is made before `create`"]
pub struct ThreadQueuePairBuilder<'a, T> {
    builder: QueuePairBuilder<'a, T>,
    in_thread: InThread,
}

impl<'a, T: Transport> ThreadQueuePairBuilder<'a, T> {
    fn with(self, set: impl FnOnce(QueuePairBuilder<'a, T>) -> QueuePairBuilder<'a, T>) -> Self {
        Self { builder: set(self.builder), in_thread: PhantomData }
    }

    /// See [`QueuePairBuilder::max_send_requests`].
    pub fn max_send_requests(self, count: u32) -> Self {
        self.with(|builder| builder.max_send_requests(count))
    }

    /// See [`QueuePairBuilder::max_receive_requests`].
    pub fn max_receive_requests(self, count: u32) -> Self {
        self.with(|builder| builder.max_receive_requests(count))
    }

    /// See [`QueuePairBuilder::max_send_segments`].
    pub fn max_send_segments(self, count: u32) -> Self {
        self.with(|builder| builder.max_send_segments(count))
    }

    /// See [`QueuePairBuilder::max_receive_segments`].
    pub fn max_receive_segments(self, count: u32) -> Self {
        self.with(|builder| builder.max_receive_segments(count))
    }

    /// See [`QueuePairBuilder::max_inline`].
    pub fn max_inline(self, bytes: u32) -> Self {
        self.with(|builder| builder.max_inline(bytes))
    }

    /// See [`QueuePairBuilder::posting`].
    pub fn posting(self, posting: Posting) -> Self {
        self.with(|builder| builder.posting(posting))
    }

    /// See [`QueuePairBuilder::operations`].
    pub fn operations(self, operations: Operations) -> Self {
        self.with(|builder| builder.operations(operations))
    }

    /// Makes the queue pair. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// As for [`QueuePairBuilder::create`].
    pub fn create(self) -> Result<ThreadQueuePair<'a, T, Reset>> {
        self.builder.create().map(ThreadQueuePair::new)
    }
}

/// A queue pair of one thread. Posting takes no lock of the provider.
#[derive(Debug)]
pub struct ThreadQueuePair<'a, T: Transport, S = ReadyToSend> {
    pair: QueuePair<'a, T, S>,
    in_thread: InThread,
}

impl<'a, T: Transport, S> ThreadQueuePair<'a, T, S> {
    fn new(pair: QueuePair<'a, T, S>) -> Self {
        Self { pair, in_thread: PhantomData }
    }

    /// Its number, which peers need.
    #[must_use]
    pub fn number(&self) -> QueuePairNumber {
        self.pair.number()
    }

    /// Moves it to its error state: everything posted completes as flushed. Enters the kernel.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::fail`].
    pub fn fail(&self) -> Result<()> {
        self.pair.fail()
    }
}

impl<T: Transport, S> ThreadQueuePair<'_, T, S> {
    /// What the peer needs to connect to it when it uses `port`.
    #[must_use]
    pub fn endpoint(&self, port: &LocalPort) -> QpInfo
    where
        T: Connected,
    {
        self.pair.endpoint(port)
    }
}

impl<'a, T: Transport> ThreadQueuePair<'a, T, Reset> {
    /// Makes it ready to send to the peer, and to receive from it.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`].
    pub fn connect(
        self,
        remote: &QpInfo,
        options: &ConnectOptions,
    ) -> Result<ThreadQueuePair<'a, T>>
    where
        T: Connected,
    {
        self.pair.connect(remote, options).map(ThreadQueuePair::new)
    }

    /// Makes it take receives, before the peer is known.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::initialize`].
    pub fn initialize(self, options: &ConnectOptions) -> Result<ThreadQueuePair<'a, T, Initialized>>
    where
        T: Connected,
    {
        self.pair.initialize(options).map(ThreadQueuePair::new)
    }
}

impl<'a, T: Transport> ThreadQueuePair<'a, T, Initialized> {
    /// Makes it ready to send to the peer, and to receive from it.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`].
    pub fn connect(
        self,
        remote: &QpInfo,
        options: &ConnectOptions,
    ) -> Result<ThreadQueuePair<'a, T>>
    where
        T: Connected,
    {
        self.pair.connect(remote, options).map(ThreadQueuePair::new)
    }
}

impl<T: Transport, S> ThreadQueuePair<'_, T, S> {
    /// Posts requests to the send queue, in order, behind one doorbell.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_send`].
    #[inline(always)]
    pub fn post_send(&self, batch: &mut [SendWr<'_, T>]) -> Result<(), PostError>
    where
        S: PostsSends,
    {
        self.pair.post_send(batch)
    }

    /// Posts requests to the receive queue, in order.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_receive`].
    #[inline]
    pub fn post_receive(&self, batch: &mut [RecvWr<'_>]) -> Result<(), PostError>
    where
        T: Receiving,
        S: PostsReceives,
    {
        self.pair.post_receive(batch)
    }
}
