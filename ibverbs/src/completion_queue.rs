//! Completion queues: where a device reports the work requests it has finished.
#![expect(unsafe_code, reason = "owns an ibv_cq")]

pub(crate) mod builder;
pub(crate) mod poller;
mod wait;

use std::{
    ffi::c_int,
    ptr::NonNull,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::{
    Completion, CompletionChannel, CompletionFields, CompletionQueueId, Context, Error, Parent,
    Result, Verb, error::verb,
};

pub use wait::Notification;

/// Finished work requests, oldest first. Queue pairs borrow or share it.
///
/// There must be room for every completion that can be outstanding: a queue that overflows breaks, and with
/// it its queue pairs.
///
/// A queue that was made with [`fields`](crate::CompletionQueueBuilder::fields) is an extended one: besides
/// [`poll`](Self::poll) it has a [`poller`](Self::poller) that reads what those name. Queue pairs take either.
#[derive(Debug)]
pub struct CompletionQueue<'a> {
    /// From a creating verb on `context`, not single-threaded; freed only by drop.
    raw: NonNull<rdma_sys::ibv_cq>,
    /// What C keeps with the queue.
    id: CompletionQueueId,
    capacity: AtomicU32,
    /// One resize at a time, so that `capacity` is what the last one gave.
    resizing: Mutex<()>,
    /// How long `wait` polls before it sleeps.
    spin: Duration,
    /// Only if `raw` is the first part of an `ibv_cq_ex` that has the entries for its fields.
    extended: Option<poller::Extended>,
    channel: Option<Parent<'a, CompletionChannel<'a>>>,
    context: Parent<'a, Context>,
}

impl Context {
    /// Makes a queue for at least `capacity` completions that borrows this context; the device may
    /// round up. Enters the kernel, allocates.
    ///
    /// Use [`CompletionQueue::create`] with an `Arc` for one that can be stored beside its context, and
    /// [`completion_queue`](Self::completion_queue) for one that can be waited for.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb), `EINVAL` over the device's limit. See `ibv_create_cq(3)`.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_completion_queue(&self, capacity: u32) -> Result<CompletionQueue<'_>> {
        CompletionQueue::create(self, capacity)
    }
}

impl<'a> CompletionQueue<'a> {
    /// Makes a completion queue on a context, borrowed (`&context`) or shared (`&Arc<Context>`).
    ///
    /// # Errors
    ///
    /// As for [`Context::create_completion_queue`].
    #[doc(alias = "ibv_create_cq")]
    pub fn create(context: impl Into<Parent<'a, Context>>, capacity: u32) -> Result<Self> {
        Self::builder(context, capacity).create()
    }

    /// Takes over an extended queue that a vendor's own verb made, such as `efadv_create_cq`.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the provider lacks an entry for one of `fields`. The queue is destroyed then.
    ///
    /// # Safety
    ///
    /// `raw` is a live queue of `context`, made with `channel` if there is one and with at least `fields`, not
    /// single-threaded, not armed yet, and nobody else destroys it.
    pub unsafe fn from_raw(
        raw: NonNull<rdma_sys::ibv_cq_ex>,
        fields: CompletionFields,
        channel: Option<Parent<'a, CompletionChannel<'a>>>,
        context: impl Into<Parent<'a, Context>>,
    ) -> Result<Self> {
        let id = CompletionQueueId::next();
        // SAFETY: `raw` is live, and nobody reads the field before the queue is armed.
        unsafe { (*raw.as_ptr()).cq_context = std::ptr::without_provenance_mut(id.user_data()) };
        let mut queue = Self::own(raw.cast(), id, builder::SPIN, channel, context.into());
        queue.extended = Some(poller::Extended::new(&queue, raw, fields)?);
        Ok(queue)
    }

    /// Owns a queue whose user data is `id`.
    fn own(
        raw: NonNull<rdma_sys::ibv_cq>,
        id: CompletionQueueId,
        spin: Duration,
        channel: Option<Parent<'a, CompletionChannel<'a>>>,
        context: Parent<'a, Context>,
    ) -> Self {
        if let Some(channel) = &channel {
            channel.add(id);
        }
        let capacity = AtomicU32::new(capacity_of(raw));
        let resizing = Mutex::default();
        Self { raw, id, capacity, resizing, spin, extended: None, channel, context }
    }

    /// Takes up to `slots.len()` completions off the queue; never waits, never allocates.
    ///
    /// Returns the slots that were filled, none if nothing has finished. A request that failed is an
    /// entry like any other; [`Completion::outcome`] tells.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the queue itself broke. See `ibv_poll_cq(3)`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn wait(queue: &ibverbs::CompletionQueue<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut slots = ibverbs::Completion::slots::<16>();
    /// for completion in queue.poll(&mut slots)? {
    ///     println!("request {} is done", completion.outcome()?.id());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll<'s>(&self, slots: &'s mut [Completion]) -> Result<&'s [Completion]> {
        let filled = self.fill(slots)?;
        Ok(&slots[..filled])
    }

    /// Fills slots from the first on; returns how many, at most as many as there are.
    #[inline]
    pub(crate) fn fill(&self, slots: &mut [Completion]) -> Result<usize> {
        let room = c_int::try_from(slots.len()).unwrap_or(c_int::MAX);
        let entries = slots.as_mut_ptr().cast::<rdma_sys::ibv_wc>();
        // SAFETY: `raw` is live, its context has the entry, and `entries` has `room` places of this layout;
        // ibv_poll_cq(3) writes as many as it returns.
        let returned = unsafe { rdma_sys::ibv_poll_cq(self.raw.as_ptr(), room, entries) };
        match usize::try_from(returned) {
            Ok(filled) if filled <= slots.len() => Ok(filled),
            _ => Err(poll_failure(returned)),
        }
    }

    /// How many completions fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Makes room for at least `capacity` completions, more or fewer than before; those that are in the queue
    /// stay. Enters the kernel, allocates; other threads may poll meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EINVAL` over the device's limit or below the completions that are in the queue,
    /// `EOPNOTSUPP` if the device cannot. The queue is as it was then. See `ibv_resize_cq(3)`.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, capacity: u32) -> Result<()> {
        let (verb, resize) = verb!(self.context.library(), ibv_resize_cq)?;
        let capacity = c_int::try_from(capacity).unwrap_or(c_int::MAX);
        let _one = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `raw` is live.
        verb.status(unsafe { resize(self.as_raw(), capacity) })?;
        self.capacity.store(capacity_of(self.raw), Ordering::Relaxed);
        Ok(())
    }

    /// Lets the device collect completions before it raises an event: until there are `count`, or until the
    /// oldest waits for `period`, rounded up to microseconds, at most 65 535 of either. Zeros turn it off.
    ///
    /// It saves interrupts and costs latency; polling sees each completion at once. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a longer period, [`Error::Unsupported`] or [`Error::Verb`] with `EOPNOTSUPP` if the
    /// device cannot. See `ibv_modify_cq(3)`.
    #[doc(alias = "ibv_modify_cq")]
    pub fn modify_moderation(&self, count: u16, period: Duration) -> Result<()> {
        let microseconds = period.as_nanos().div_ceil(1000);
        let Ok(cq_period) = u16::try_from(microseconds) else {
            let asked = u64::try_from(microseconds).unwrap_or(u64::MAX);
            return Error::check(
                "the moderation period in microseconds",
                asked,
                0,
                u16::MAX.into(),
            );
        };
        let mut attributes = rdma_sys::ibv_modify_cq_attr {
            attr_mask: rdma_sys::IBV_CQ_ATTR_MODERATE,
            moderate: rdma_sys::ibv_moderate_cq { cq_count: count, cq_period },
        };
        let verb = Verb::new("ibv_modify_cq");
        // SAFETY: `raw` is live, and the mask says which attribute is set.
        let returned = unsafe { rdma_sys::ibv_modify_cq(self.as_raw(), &raw mut attributes) };
        verb.status(verb.find(returned)?)
    }

    /// The number by which events name this queue.
    #[must_use]
    pub fn id(&self) -> CompletionQueueId {
        self.id
    }

    /// Where it raises its events, if it was made with a channel.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel<'a>> {
        self.channel.as_deref()
    }

    /// The device it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_cq {
        self.raw.as_ptr()
    }
}

/// How many completions fit a queue; only while nobody resizes it.
fn capacity_of(raw: NonNull<rdma_sys::ibv_cq>) -> u32 {
    // SAFETY: `raw` is live; only resizing changes the field.
    u32::try_from(unsafe { (*raw.as_ptr()).cqe }).unwrap_or(0)
}

#[cold]
fn poll_failure(returned: c_int) -> Error {
    let verb = Verb::new("ibv_poll_cq");
    // A count over the room that was given is as broken as a negative one.
    let returned = if returned > 0 { -libc::EIO } else { returned };
    verb.count(returned).map_or_else(|error| error, |_| verb.unsupported())
}

impl Drop for CompletionQueue<'_> {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = verb!(self.context.library(), ibv_destroy_cq) {
            // SAFETY: `raw` is live, and nothing reads it after this. While a leaked queue pair reports
            // here the call is refused, ibv_create_cq(3). It waits for no event: each is acknowledged in
            // the call that takes it.
            verb.log_refusal(unsafe { destroy(self.as_raw()) });
        }
        if let Some(channel) = &self.channel {
            channel.remove(self.id);
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for CompletionQueue<'_> {}
// SAFETY: as for `Send`; each `&self` method is one verb, or takes turns.
unsafe impl Sync for CompletionQueue<'_> {}
