//! Completion channels: sleeping until a completion queue has news.
//!
//! The laws of this module:
//!
//! 1. An event is acknowledged in the call that takes it, so that no destructor of a queue waits for
//!    somebody who forgot to.
//! 2. An event names its queue by number, never by pointer: the queue may be gone when it is read.
//! 3. One thread at a time sleeps on the descriptor for all that wait for queues of the channel. It counts each
//!    event that it takes for the queue it is of, then wakes the others. Nobody else takes an event meanwhile,
//!    since it would sleep on.
#![expect(unsafe_code, reason = "owns an ibv_comp_channel")]

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    Context, Parent, Result,
    descriptor::{self, Deadline},
    error::verb,
};

/// Where completion queues tell that they have news, so that a thread or an event loop can sleep until then.
///
/// Several queues can share one. Its descriptor can be read when an event is there ([`AsFd`]); it is non-blocking,
/// and belongs into any `poll`, `epoll` or runtime:
///
/// 1. [arm](crate::CompletionQueue::request_notification) the queue,
/// 2. poll it once more, since what finished before it was armed raises no event,
/// 3. if it is empty, wait until the descriptor can be read,
/// 4. take the events with [`try_next_event`](Self::try_next_event) until there is none, and begin again.
///
/// ```no_run
/// # use std::os::fd::AsFd;
/// # fn readable(descriptor: impl AsFd) {}
/// # fn run(queue: &ibverbs::CompletionQueue<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// use ibverbs::Notification;
///
/// let channel = queue.channel().ok_or("made without a channel")?;
/// let mut slots = ibverbs::Completion::slots::<16>();
/// loop {
///     queue.request_notification(Notification::Any)?;
///     loop {
///         let found = queue.poll(&mut slots)?;
///         if found.is_empty() {
///             break;
///         }
///         for completion in found {
///             println!("request {} is done", completion.outcome()?.id());
///         }
///     }
///     // Whatever waits here: `poll(2)`, `epoll`, `io_uring`, or any runtime.
///     readable(channel.as_fd());
///     channel.drain_events()?;
/// }
/// # }
/// ```
///
/// [`CompletionQueue::wait`](crate::CompletionQueue::wait) does all that, and tokio is served by the feature `tokio`.
/// `wait` takes the events of every queue of the
/// channel, so that a channel should be used either by `wait` or by hand. The descriptor itself must not be read from: an
/// event that is taken so is never acknowledged, and dropping its queue would wait for that for ever.
#[derive(Debug)]
pub struct CompletionChannel<'a> {
    /// From `ibv_create_comp_channel` on `context`, its descriptor non-blocking; freed only by drop.
    raw: NonNull<rdma_sys::ibv_comp_channel>,
    state: Mutex<State>,
    /// The state has changed, for whoever waits for queues of the channel.
    changed: Condvar,
    context: Parent<'a, Context>,
}

#[derive(Debug, Default)]
struct State {
    /// A thread sleeps on the descriptor.
    listening: bool,
    /// How many events were taken, for each queue of the channel.
    taken: BTreeMap<CompletionQueueId, u64>,
}

impl Context {
    /// Makes a completion channel that borrows this context. Enters the kernel, allocates, and takes a
    /// file descriptor.
    ///
    /// Use [`CompletionChannel::create`] with an `Arc` for one that can be stored beside its context.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb), `EMFILE` if there are too many open files. See
    /// `ibv_create_comp_channel(3)`.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_completion_channel(&self) -> Result<CompletionChannel<'_>> {
        CompletionChannel::create(self)
    }
}

impl<'a> CompletionChannel<'a> {
    /// Makes a completion channel on a context, borrowed (`&context`) or shared (`&Arc<Context>`).
    ///
    /// # Errors
    ///
    /// As for [`Context::create_completion_channel`].
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create(context: impl Into<Parent<'a, Context>>) -> Result<Self> {
        let context = context.into();
        let (verb, create) = verb!(context.library(), ibv_create_comp_channel)?;
        // SAFETY: the context is open as long as `context` is held.
        let raw = verb.object(unsafe { create(context.as_raw()) })?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        let channel = Self { raw, state, changed, context };
        descriptor::set_non_blocking(channel.as_fd())?;
        Ok(channel)
    }

    /// Waits for an event, takes it and acknowledges it: the number of the queue that has news.
    ///
    /// Enters the kernel. The queue must have been armed, and is not any more.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the device is gone. See `ibv_get_cq_event(3)`.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn next_event(&self) -> Result<CompletionQueueId> {
        loop {
            if let Some(queue) = self.try_next_event()? {
                return Ok(queue);
            }
            descriptor::wait_readable(self.as_fd(), Deadline::NEVER)?;
        }
    }

    /// As [`next_event`](Self::next_event), but returns `None` where that would wait, and while a thread sleeps in
    /// [`CompletionQueue::wait`](crate::CompletionQueue::wait), to which all events go then.
    ///
    /// # Errors
    ///
    /// As for [`next_event`](Self::next_event).
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn try_next_event(&self) -> Result<Option<CompletionQueueId>> {
        let mut state = self.state();
        if state.listening {
            return Ok(None);
        }
        let queue = self.take_event()?;
        if let Some(queue) = queue {
            self.count(&mut state, queue);
            self.changed.notify_all();
        }
        Ok(queue)
    }

    /// Takes every event that is there; returns how many.
    ///
    /// # Errors
    ///
    /// As for [`next_event`](Self::next_event).
    pub fn drain_events(&self) -> Result<usize> {
        let mut count = 0;
        while self.try_next_event()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// The device it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The C object, valid as long as this is. Events taken through it by hand are lost to this.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_comp_channel {
        self.raw.as_ptr()
    }

    fn take_event(&self) -> Result<Option<CompletionQueueId>> {
        let (verb, get) = verb!(self.context.library(), ibv_get_cq_event)?;
        let (_, acknowledge) = verb!(self.context.library(), ibv_ack_cq_events)?;
        let (mut queue, mut user_data) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: `raw` is live, and both are valid places.
        let returned = unsafe { get(self.as_raw(), &raw mut queue, &raw mut user_data) };
        match verb.status(returned) {
            Ok(()) => {}
            Err(error) if error.errno() == Some(libc::EAGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: destroying a queue waits until its events are acknowledged, ibv_get_cq_event(3), and
        // this one is not yet; the field is constant.
        let number = unsafe { (*queue).cq_context }.addr();
        // SAFETY: as above; this is the one event that was taken.
        unsafe { acknowledge(queue, 1) };
        Ok(Some(CompletionQueueId(number)))
    }

    /// Counts events for a queue from now on.
    pub(crate) fn add(&self, queue: CompletionQueueId) {
        self.state().taken.insert(queue, 0);
    }

    /// Forgets a queue.
    pub(crate) fn remove(&self, queue: CompletionQueueId) {
        self.state().taken.remove(&queue);
    }

    /// How many events of a queue were taken.
    pub(crate) fn taken(&self, queue: CompletionQueueId) -> u64 {
        self.state().taken.get(&queue).copied().unwrap_or(0)
    }

    /// Sleeps until more than `seen` events of a queue were taken, by whomever; `false` at the deadline.
    pub(crate) fn sleep(
        &self,
        queue: CompletionQueueId,
        seen: u64,
        deadline: Deadline,
    ) -> Result<bool> {
        let mut state = self.state();
        loop {
            if state.taken.get(&queue).is_none_or(|taken| *taken != seen) {
                return Ok(true);
            }
            if deadline.has_passed() {
                return Ok(false);
            }
            if state.listening {
                state = self.until_changed(state, deadline);
                continue;
            }
            state.listening = true;
            drop(state);
            let outcome = self.listen(deadline);
            state = self.state();
            state.listening = false;
            // Wakes those whose events were just counted, and one that listens next.
            self.changed.notify_all();
            outcome?;
        }
    }

    /// Sleeps on the descriptor, then takes every event.
    fn listen(&self, deadline: Deadline) -> Result<()> {
        descriptor::wait_readable(self.as_fd(), deadline)?;
        while let Some(queue) = self.take_event()? {
            self.count(&mut self.state(), queue);
        }
        Ok(())
    }

    fn until_changed<'s>(
        &self,
        state: MutexGuard<'s, State>,
        deadline: Deadline,
    ) -> MutexGuard<'s, State> {
        match deadline.remaining() {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(left) => {
                let woken = self.changed.wait_timeout(state, left);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    fn count(&self, state: &mut State, queue: CompletionQueueId) {
        if let Some(taken) = state.taken.get_mut(&queue) {
            *taken += 1;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for CompletionChannel<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `raw` is live, and the field is constant.
        let descriptor = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is closed with this, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl AsRawFd for CompletionChannel<'_> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for CompletionChannel<'_> {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = verb!(self.context.library(), ibv_destroy_comp_channel) {
            // SAFETY: `raw` is live and nothing reads it after this. While a leaked queue reports here
            // the call is refused, ibv_create_comp_channel(3).
            verb.log_refusal(unsafe { destroy(self.as_raw()) });
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for CompletionChannel<'_> {}
// SAFETY: as for `Send`; what is ours is behind a lock.
unsafe impl Sync for CompletionChannel<'_> {}

/// Which completion queue an event is of. No two queues of a process ever have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompletionQueueId(usize);

impl CompletionQueueId {
    /// One that no queue has had.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number that C keeps with the queue.
    pub(crate) const fn from_user_data(number: usize) -> Self {
        Self(number)
    }

    pub(crate) const fn user_data(self) -> usize {
        self.0
    }
}

impl fmt::Display for CompletionQueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
