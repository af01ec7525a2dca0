//! Making a completion queue.
#![expect(unsafe_code, reason = "calls the creating verbs")]

use std::{ffi::c_int, ptr, ptr::NonNull, time::Duration};

use super::{CompletionQueue, poller::Extended};
use crate::{
    CompletionChannel, CompletionFields, CompletionQueueId, Context, Error, Parent, Result, Verb,
    error::verb,
};

/// How long `wait` polls before it sleeps, if nothing else was asked for: about what going to sleep and
/// waking up costs.
pub(super) const SPIN: Duration = Duration::from_micros(20);

/// How large a completion queue should be, and how it tells that it has news.
#[derive(Debug)]
#[must_use = "nothing is made before `create`"]
pub struct CompletionQueueBuilder<'a> {
    context: Parent<'a, Context>,
    capacity: u32,
    channel: Option<Parent<'a, CompletionChannel<'a>>>,
    vector: u32,
    spin: Duration,
    fields: Option<CompletionFields>,
    ignore_overrun: bool,
}

impl Context {
    /// Begins a queue for at least `capacity` completions that borrows this context.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn make(context: &ibverbs::Context) -> ibverbs::Result<()> {
    /// use std::time::Duration;
    ///
    /// let channel = context.create_completion_channel()?;
    /// let queue = context.completion_queue(64).channel(&channel).create()?;
    /// let mut slots = ibverbs::Completion::slots::<16>();
    /// let finished = queue.wait(&mut slots, Duration::from_secs(1))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn completion_queue(&self, capacity: u32) -> CompletionQueueBuilder<'_> {
        CompletionQueue::builder(self, capacity)
    }
}

impl<'a> CompletionQueue<'a> {
    /// Begins a completion queue on a context, borrowed (`&context`) or shared (`&Arc<Context>`).
    pub fn builder(
        context: impl Into<Parent<'a, Context>>,
        capacity: u32,
    ) -> CompletionQueueBuilder<'a> {
        CompletionQueueBuilder {
            context: context.into(),
            capacity,
            channel: None,
            vector: 0,
            spin: SPIN,
            fields: None,
            ignore_overrun: false,
        }
    }
}

impl<'a> CompletionQueueBuilder<'a> {
    /// Where it raises its events, borrowed or shared. Without one it cannot be waited for.
    pub fn channel(mut self, channel: impl Into<Parent<'a, CompletionChannel<'a>>>) -> Self {
        self.channel = Some(channel.into());
        self
    }

    /// Which of the device's [interrupt vectors](Context::completion_vectors) its events use; 0 if not
    /// set. Queues of different vectors are served by different CPUs.
    #[doc(alias = "comp_vector")]
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// How long [`wait`](CompletionQueue::wait) polls before it sleeps; 20 µs if not set. Zero saves the CPU,
    /// more saves the wake-up.
    pub fn spin(mut self, duration: Duration) -> Self {
        self.spin = duration;
        self
    }

    /// Makes an extended queue, whose [poller](CompletionQueue::poller) reads these fields, such as timestamps.
    ///
    /// Where the classic fields are enough, the classic queue is the faster and the more widely tested one. Devices
    /// without extended queues refuse these; nothing falls back unasked. The provider of software RoCE in rdma-core 44
    /// loses completions when it is polled in the usual way, so that those devices are polled one completion at a
    /// time.
    #[doc(alias = "wc_flags")]
    pub fn fields(mut self, fields: CompletionFields) -> Self {
        self.fields = Some(fields);
        self
    }

    /// Lets completions that find no room be lost instead of breaking the queue. Makes an extended queue.
    #[doc(alias = "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN")]
    pub fn ignore_overrun(mut self) -> Self {
        self.ignore_overrun = true;
        self.fields.get_or_insert(CompletionFields::empty());
        self
    }

    /// Makes the queue. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the channel is of another device; [`Error::OutOfRange`] for a vector that the device does
    /// not have; [`Error::Unsupported`], or [`Error::Verb`] with `EOPNOTSUPP`, if it has no extended queues or not all
    /// of the fields; [`Error::Verb`], `EINVAL` over the device's limit. See `ibv_create_cq(3)`, `ibv_create_cq_ex(3)`.
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create(self) -> Result<CompletionQueue<'a>> {
        let vectors = self.context.completion_vectors();
        if self.vector > 0 {
            let last = u64::from(vectors.saturating_sub(1));
            Error::check("the completion vector", self.vector.into(), 0, last)?;
        }
        if let Some(channel) = &self.channel
            && channel.context().as_raw() != self.context.as_raw()
        {
            return Err(Error::Invalid {
                what: "a completion queue and its channel are of different contexts".into(),
                remedy: "make both of them from one `Context`",
            });
        }
        let id = CompletionQueueId::next();
        match self.fields {
            None => {
                let raw = self.create_classic(id)?;
                Ok(CompletionQueue::own(raw, id, self.spin, self.channel, self.context))
            }
            Some(fields) => {
                let raw = self.create_extended(id, fields)?;
                let (channel, context) = (self.channel, self.context);
                let mut queue = CompletionQueue::own(raw.cast(), id, self.spin, channel, context);
                // If this fails, dropping the queue destroys it.
                queue.extended = Some(Extended::new(&queue, raw, fields)?);
                Ok(queue)
            }
        }
    }

    fn raw_channel(&self) -> *mut rdma_sys::ibv_comp_channel {
        self.channel.as_ref().map_or(ptr::null_mut(), |channel| channel.as_raw())
    }

    fn create_classic(&self, id: CompletionQueueId) -> Result<NonNull<rdma_sys::ibv_cq>> {
        let (verb, create) = verb!(self.context.library(), ibv_create_cq)?;
        let capacity = c_int::try_from(self.capacity).unwrap_or(c_int::MAX);
        let vector = c_int::try_from(self.vector).unwrap_or(c_int::MAX);
        let user_data = ptr::without_provenance_mut(id.user_data());
        let (context, channel) = (self.context.as_raw(), self.raw_channel());
        // SAFETY: context and channel are held; a null channel asks for no events, and nobody follows the
        // user data.
        verb.object(unsafe { create(context, capacity, user_data, channel, vector) })
    }

    fn create_extended(
        &self,
        id: CompletionQueueId,
        fields: CompletionFields,
    ) -> Result<NonNull<rdma_sys::ibv_cq_ex>> {
        let verb = Verb::new("ibv_create_cq_ex");
        let overrun =
            if self.ignore_overrun { rdma_sys::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN } else { 0 };
        // Failures name their queue pair; C has no flag for the operation, which is always there.
        let wanted = (fields | CompletionFields::QUEUE_PAIR) - CompletionFields::OPERATION;
        let mut attributes = rdma_sys::ibv_cq_init_attr_ex {
            cqe: self.capacity,
            cq_context: ptr::without_provenance_mut(id.user_data()),
            channel: self.raw_channel(),
            comp_vector: self.vector,
            wc_flags: wanted.bits(),
            comp_mask: if overrun == 0 { 0 } else { rdma_sys::IBV_CQ_INIT_ATTR_MASK_FLAGS },
            flags: overrun,
            parent_domain: ptr::null_mut(),
        };
        // SAFETY: context and channel are held, and the struct says which fields it has.
        let raw = unsafe { rdma_sys::ibv_create_cq_ex(self.context.as_raw(), &raw mut attributes) };
        verb.object(verb.find(raw)?)
    }
}
