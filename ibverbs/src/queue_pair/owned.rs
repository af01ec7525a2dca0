//! Buffers that are moved into requests and come back with their completions.
//!
//! The laws of this module:
//!
//! 1. A buffer is in the hands of the user or in the list of its queue pair, never both. While it is in the list, a
//!    device may write it, and nobody can reach it.
//! 2. It leaves the list when the completion of its own request was polled, or when the queue pair was destroyed with
//!    success. Both end the device's access.
//! 3. The completion queue is made here and shown to nobody, so that no other request's completion can be
//!    mistaken for one of these.
//! 4. Forgetting the object leaks buffers. Dropping it destroys the queue pair first; then each buffer is deregistered
//!    before it is freed, as everywhere.

use std::{
    fmt,
    ops::RangeBounds,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
    time::Duration,
};

use super::{
    QueuePair,
    connect::ConnectOptions,
    endpoint::QpInfo,
    state::{Initialized, PostsReceives, ReadyToSend, Reset},
};
use crate::{
    Closed, Completion, CompletionChannel, CompletionQueue, Connected, Error, Finished, HostBuffer,
    LocalPort, Notification, OwnedBuffer, Parent, ProtectionDomain, QueuePairNumber, Receiving,
    RecvWr, RejectReason, Rejected, RemoteRead, RemoteSegment, RemoteWrite, Result, Segment,
    SendWr, Transport, WorkId, descriptor::Deadline, in_flight::InFlight,
};

/// A queue pair whose requests own their buffers.
///
/// A buffer is moved into a request and handed back by its completion, with plain `&mut [u8]` access in between. It has a
/// completion queue and a channel of its own. One thread at a time posts and waits; for many tasks see
/// `AsyncQueuePair` (feature `tokio`).
///
/// Costs a place in a list per request, besides what posting costs; nothing is allocated after it was made.
pub struct OwnedQueuePair<'a, T, B: HostBuffer, S = ReadyToSend> {
    /// Dropped before `work` (law 4).
    pair: QueuePair<'a, T, S>,
    work: Work<'a, B>,
    channel: Arc<CompletionChannel<'a>>,
}

/// What is outstanding.
struct Work<'a, B: HostBuffer> {
    sends: InFlight<OwnedBuffer<'a, B>>,
    receives: InFlight<OwnedBuffer<'a, B>>,
    found: Box<Found>,
}

/// Completions that were polled in one go.
struct Found {
    slots: [Completion; BATCH],
    /// `slots[next..filled]` are not handed out yet.
    next: usize,
    filled: usize,
}

/// Completions that are polled at a time.
const BATCH: usize = 16;

impl<'a, T: Transport, B: HostBuffer> OwnedQueuePair<'a, T, B, Reset> {
    /// Makes a queue pair with room for so many sends and receives in flight, and its completion queue and channel, in
    /// a domain, borrowed or shared (`&Arc<ProtectionDomain>`).
    ///
    /// # Errors
    ///
    /// As for [`QueuePairBuilder::create`](crate::QueuePairBuilder::create),
    /// [`CompletionQueue::create`] and [`CompletionChannel::create`].
    pub fn create(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        sends: u32,
        receives: u32,
    ) -> Result<Self> {
        let domain = domain.into();
        let context = domain.context_parent();
        let channel = Arc::new(CompletionChannel::create(context.again())?);
        let capacity = sends.saturating_add(receives).max(1);
        let queue = CompletionQueue::builder(context, capacity).channel(&channel).create()?;
        let queue = Arc::new(queue);
        let pair = QueuePair::builder(domain, &queue, &queue)
            .max_send_requests(sends)
            .max_receive_requests(receives)
            .create()?;
        let work = Work {
            sends: InFlight::with_capacity(sends),
            receives: InFlight::with_capacity(receives),
            found: Box::new(Found { slots: Completion::slots(), next: 0, filled: 0 }),
        };
        Ok(Self { pair, work, channel })
    }

    /// Makes it ready to send and to receive, as [`QueuePair::connect`]. Receives should be posted before the peer
    /// sends: [`initialize`](Self::initialize) first, then post them.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`]. It is dropped then.
    pub fn connect(
        self,
        remote: &QpInfo,
        options: &ConnectOptions,
    ) -> Result<OwnedQueuePair<'a, T, B>>
    where
        T: Connected,
    {
        let Self { pair, work, channel } = self;
        Ok(OwnedQueuePair { pair: pair.connect(remote, options)?, work, channel })
    }

    /// Makes it take receives, before the peer is known.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::initialize`]. It is dropped then.
    pub fn initialize(
        self,
        options: &ConnectOptions,
    ) -> Result<OwnedQueuePair<'a, T, B, Initialized>>
    where
        T: Connected,
    {
        let Self { pair, work, channel } = self;
        Ok(OwnedQueuePair { pair: pair.initialize(options)?, work, channel })
    }
}

impl<'a, T: Transport, B: HostBuffer> OwnedQueuePair<'a, T, B, Initialized> {
    /// Makes it ready to send to the peer and to receive from it.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`]. It is dropped then, with the buffers of its receives.
    pub fn connect(
        self,
        remote: &QpInfo,
        options: &ConnectOptions,
    ) -> Result<OwnedQueuePair<'a, T, B>>
    where
        T: Connected,
    {
        let Self { pair, work, channel } = self;
        Ok(OwnedQueuePair { pair: pair.connect(remote, options)?, work, channel })
    }
}

impl<T: Transport, B: HostBuffer, S> OwnedQueuePair<'_, T, B, S> {
    /// What the peer needs to connect to it when it uses `port`.
    #[must_use]
    pub fn endpoint(&self, port: &LocalPort) -> QpInfo
    where
        T: Connected,
    {
        self.pair.endpoint(port)
    }
}

impl<'a, T: Transport, B: HostBuffer> OwnedQueuePair<'a, T, B> {
    /// Posts a request on a part of a buffer, which is moved into it. Any that the transport has: `request` makes
    /// it from the segment that it is given, which stands for the part. Only the request that is returned reaches
    /// the part: any other that names this segment fails.
    ///
    /// Does not wait and does not allocate. The number and the signal of the request are set here.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the buffer: the range does not lie inside of it, as many requests as there is room for are in
    /// flight, or posting was refused.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use ibverbs::*;
    /// # fn notify<'a>(
    /// #     pair: &mut OwnedQueuePair<'a, Rc, Vec<u8>>,
    /// #     buffer: OwnedBuffer<'a, Vec<u8>>,
    /// #     to: RemoteSegment,
    /// # ) -> Result<(), Rejected<'a, Vec<u8>>> {
    /// pair.post(buffer, ..64, |segment| SendWr::write_with_imm(segment, &to, 0xC0DE))?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_post_send")]
    pub fn post(
        &mut self,
        buffer: OwnedBuffer<'a, B>,
        range: impl RangeBounds<usize>,
        request: impl for<'s> FnOnce(Segment<'s>) -> SendWr<'s, T>,
    ) -> Result<WorkId, Rejected<'a, B>> {
        let made = buffer.request(range, request).map_err(RejectReason::Check);
        match made.and_then(|request| self.post_request(request)) {
            Ok(id) => {
                self.keep(buffer);
                Ok(id)
            }
            Err(reason) => Err(Rejected::new(buffer, reason)),
        }
    }

    /// Posts a request, whose buffer must then be [kept](Self::keep) before anything else happens.
    #[inline(always)]
    pub(crate) fn post_request(&mut self, request: SendWr<'_, T>) -> Result<WorkId, RejectReason> {
        let sends = &self.work.sends;
        let id = sends
            .next()
            .ok_or_else(|| RejectReason::full("the number of sends in flight", sends.len()))?;
        self.pair.post_send(&mut [request.id(id).signaled()])?;
        Ok(WorkId(id))
    }

    /// Keeps the buffer of the request that was just posted.
    #[inline]
    pub(crate) fn keep(&mut self, buffer: OwnedBuffer<'a, B>) {
        self.work.sends.insert(buffer);
    }

    /// Sends a whole buffer into the peer's next receive.
    ///
    /// # Errors
    ///
    /// As for [`post`](Self::post).
    pub fn post_send(&mut self, buffer: OwnedBuffer<'a, B>) -> Result<WorkId, Rejected<'a, B>>
    where
        T: Connected + Receiving,
    {
        self.post(buffer, .., |segment| SendWr::send(segment))
    }

    /// Writes a whole buffer into the peer's memory.
    ///
    /// # Errors
    ///
    /// As for [`post`](Self::post).
    pub fn post_write(
        &mut self,
        buffer: OwnedBuffer<'a, B>,
        to: &RemoteSegment,
    ) -> Result<WorkId, Rejected<'a, B>>
    where
        T: RemoteWrite + Connected + Receiving,
    {
        self.post(buffer, .., |segment| SendWr::write(segment, to))
    }

    /// Fills a whole buffer from the peer's memory. Not for iWARP devices, which want memory that the peer may
    /// write for that.
    ///
    /// # Errors
    ///
    /// As for [`post`](Self::post).
    pub fn post_read(
        &mut self,
        buffer: OwnedBuffer<'a, B>,
        from: &RemoteSegment,
    ) -> Result<WorkId, Rejected<'a, B>>
    where
        T: RemoteRead + Connected + Receiving,
    {
        self.post(buffer, .., |segment| SendWr::read(segment, from))
    }
}

impl<'a, T: Transport, B: HostBuffer, S> OwnedQueuePair<'a, T, B, S> {
    /// Posts a receive into a whole buffer, which is moved into it. Costs as [`post`](OwnedQueuePair::post).
    ///
    /// # Errors
    ///
    /// As for [`post`](OwnedQueuePair::post).
    #[doc(alias = "ibv_post_recv")]
    pub fn post_receive(&mut self, buffer: OwnedBuffer<'a, B>) -> Result<WorkId, Rejected<'a, B>>
    where
        T: Receiving,
        S: PostsReceives,
    {
        let Some(id) = self.work.receives.next() else {
            let reason =
                RejectReason::full("the number of receives in flight", self.work.receives.len());
            return Err(Rejected::new(buffer, reason));
        };
        let id = id | WorkId::RECEIVE;
        let posted = match buffer.region().segment(..) {
            Ok(segment) => {
                self.pair.post_receive(&mut [RecvWr::to(id, segment)]).map_err(RejectReason::Post)
            }
            Err(error) => Err(RejectReason::Check(error)),
        };
        match posted {
            Ok(()) => {
                self.work.receives.insert(buffer);
                Ok(WorkId(id))
            }
            Err(reason) => Err(Rejected::new(buffer, reason)),
        }
    }

    /// The next request that has finished, with its buffer; `None` if there is none. Never waits, never
    /// allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the completion queue broke, [`Error::UnknownWork`] if the device reports a request that is not
    /// outstanding; the next call goes on behind that.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Finished<'a, B>>> {
        let found = &mut *self.work.found;
        if found.next == found.filled {
            (found.next, found.filled) = (0, 0);
            found.filled = self.pair.send_queue().poll(&mut found.slots)?.len();
        }
        self.work.take()
    }

    /// As [`poll`](Self::poll), but waits for up to `timeout`, in the way of
    /// [`CompletionQueue::wait`].
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll) and [`CompletionQueue::wait`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Finished<'a, B>>> {
        let found = &mut *self.work.found;
        if found.next == found.filled {
            (found.next, found.filled) = (0, 0);
            found.filled = self.pair.send_queue().wait(&mut found.slots, timeout)?.len();
        }
        self.work.take()
    }

    /// How many requests other than receives can be outstanding.
    #[must_use]
    pub fn room_for_sends(&self) -> usize {
        self.work.sends.capacity()
    }

    /// How many requests other than receives are outstanding.
    #[must_use]
    pub fn sends_in_flight(&self) -> usize {
        self.work.sends.len()
    }

    /// How many requests are outstanding: posted and not handed back.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.work.sends.len() + self.work.receives.len()
    }

    /// Where it raises its events.
    #[cfg(feature = "tokio")]
    pub(crate) fn channel(&self) -> &Arc<CompletionChannel<'a>> {
        &self.channel
    }

    /// Its number, which peers need.
    #[must_use]
    pub fn number(&self) -> QueuePairNumber {
        self.pair.number()
    }

    /// The domain it belongs to, where its buffers must be registered.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        self.pair.protection_domain()
    }

    /// Moves it to its error state: what is outstanding finishes as flushed. Enters the kernel.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::fail`].
    pub fn fail(&self) -> Result<()> {
        self.pair.fail()
    }

    /// Ends it and gives every buffer back: moves the queue pair to its error state, takes what finishes within
    /// `timeout`, and destroys it, which ends the rest.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if destroying is refused. Then all is dropped, and buffers are freed only when they could be
    /// deregistered.
    pub fn close(mut self, timeout: Duration) -> Result<Closed<'a, B>> {
        let deadline = Deadline::after(timeout);
        let mut finished = Vec::with_capacity(self.in_flight());
        // A device that is gone, or a queue that broke, cannot be drained; destroying ends the requests as well.
        let drained = self.fail();
        while drained.is_ok() && self.in_flight() > 0 {
            let left = deadline.remaining().unwrap_or(Duration::MAX);
            match self.wait(left) {
                Ok(Some(work)) => finished.push(work),
                Err(Error::UnknownWork { .. }) => {}
                Ok(None) | Err(_) => break,
            }
        }
        let Self { pair, mut work, channel: _ } = self;
        pair.close().map_err(|refused| refused.error)?;
        let mut unfinished = work.sends.drain();
        unfinished.append(&mut work.receives.drain());
        Ok(Closed { finished, unfinished })
    }

    /// Arms it for an event loop that watches its descriptor ([`AsFd`]). Then [`poll`](Self::poll) to the end, and
    /// wait until the descriptor can be read; see [`CompletionChannel`].
    ///
    /// # Errors
    ///
    /// As for [`CompletionQueue::request_notification`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_notification(&self) -> Result<()> {
        self.pair.send_queue().request_notification(Notification::Any)
    }

    /// Takes the events that made its descriptor readable; returns how many.
    ///
    /// # Errors
    ///
    /// As for [`CompletionChannel::drain_events`].
    pub fn drain_events(&self) -> Result<usize> {
        self.channel.drain_events()
    }
}

impl<'a, B: HostBuffer> Work<'a, B> {
    #[inline(always)]
    fn take(&mut self) -> Result<Option<Finished<'a, B>>> {
        let found = &mut *self.found;
        let Some(completion) = found.slots[..found.filled].get(found.next) else { return Ok(None) };
        found.next += 1;
        let completion = *completion;
        let id = completion.id();
        let list = if id & WorkId::RECEIVE == 0 { &mut self.sends } else { &mut self.receives };
        let buffer = list.remove(id & !WorkId::RECEIVE).map_err(|_| Error::UnknownWork { id })?;
        Ok(Some(Finished { id: WorkId(id), buffer, completion }))
    }
}

/// Can be read when something may have finished, once [`request_notification`] was called. For event loops; see
/// [`CompletionChannel`].
///
/// [`request_notification`]: OwnedQueuePair::request_notification
impl<T: Transport, B: HostBuffer, S> AsFd for OwnedQueuePair<'_, T, B, S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl<T: Transport, B: HostBuffer, S> AsRawFd for OwnedQueuePair<'_, T, B, S> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<T: Transport, B: HostBuffer, S> fmt::Debug for OwnedQueuePair<'_, T, B, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedQueuePair")
            .field("pair", &self.pair)
            .field("sends", &self.work.sends.len())
            .field("receives", &self.work.receives.len())
            .finish_non_exhaustive()
    }
}
