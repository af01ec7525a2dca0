//! Shared receive queues: receives that many queue pairs take from.
#![expect(unsafe_code, reason = "owns an ibv_srq")]

use std::{ptr, ptr::NonNull};

use crate::{
    Error, Parent, PostError, ProtectionDomain, RecvWr, Result, Verb,
    error::verb,
    queue_pair::{
        builder::check_segments,
        post::{link_receives, refused},
    },
};

/// A queue of receives for any number of queue pairs of one domain: a message to one of them takes the next.
///
/// Queue pairs made with it ([`QueuePairBuilder::shared_receive_queue`](crate::QueuePairBuilder::shared_receive_queue)) borrow or share
/// it. Their receives complete in the completion queue of the queue pair that the message came to.
///
/// # Examples
///
/// Many queue pairs, one store of receives:
///
/// ```
/// use ibverbs::{
///     CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, Rc, RecvWr, Reset,
///     SharedReceiveQueue,
/// };
///
/// fn serve<'a>(
///     domain: &'a ProtectionDomain<'a>,
///     queue: &'a CompletionQueue<'a>,
///     shared: &'a SharedReceiveQueue<'a>,
///     memory: &MemoryRegion<'_, Vec<u8>>,
/// ) -> Result<Vec<QueuePair<'a, Rc, Reset>>, Box<dyn std::error::Error>> {
///     for slot in 0..memory.len() / 4096 {
///         let into = memory.segment(slot * 4096..(slot + 1) * 4096)?;
///         shared.post_receive(&mut [RecvWr::to(slot as u64, into)])?;
///     }
///     let make = |_| domain.queue_pair(queue, queue).shared_receive_queue(shared).create();
///     Ok((0..8).map(make).collect::<ibverbs::Result<_>>()?)
/// }
/// ```
#[derive(Debug)]
pub struct SharedReceiveQueue<'a> {
    /// From a creating verb on `domain`, whose context has `post_srq_recv`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_srq>,
    /// What the device gave, at least what was asked for.
    max_segments: u32,
    domain: Parent<'a, ProtectionDomain<'a>>,
}

/// How large a shared receive queue should be.
#[derive(Debug, Clone, Copy)]
pub struct SharedReceiveQueueOptions {
    max_requests: u32,
    max_segments: u32,
}

impl SharedReceiveQueueOptions {
    /// A queue for this many receives, of one segment each.
    #[must_use]
    #[doc(alias = "max_wr")]
    pub const fn new(max_requests: u32) -> Self {
        Self { max_requests, max_segments: 1 }
    }

    /// How many segments a receive can have, at least 1; 1 if not set.
    #[must_use]
    #[doc(alias = "max_sge")]
    pub const fn max_segments(self, max_segments: u32) -> Self {
        Self { max_segments, ..self }
    }

    pub(crate) fn to_raw(self) -> Result<rdma_sys::ibv_srq_attr> {
        let Self { max_requests, max_segments } = self;
        check_segments("the number of segments of a receive", max_segments)?;
        Ok(rdma_sys::ibv_srq_attr { max_wr: max_requests, max_sge: max_segments, srq_limit: 0 })
    }
}

/// What the device says about a shared receive queue. See `ibv_query_srq(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceiveQueueAttributes {
    /// How many receives it holds.
    pub max_requests: u32,
    /// How many segments a receive can have.
    pub max_segments: u32,
    /// How few receives raise the limit event; 0 if none will.
    pub limit: u32,
}

impl ProtectionDomain<'_> {
    /// Makes a shared receive queue that borrows this domain. Enters the kernel, allocates.
    ///
    /// Use [`SharedReceiveQueue::create`] with an `Arc` for one that can be stored beside its domain.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for receives without segments; [`Error::Verb`], `EINVAL` or `ENOMEM` over the device's limits, `EOPNOTSUPP` or `ENOSYS` if it has no shared receive
    /// queues. See `ibv_create_srq(3)`.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_shared_receive_queue(
        &self,
        options: SharedReceiveQueueOptions,
    ) -> Result<SharedReceiveQueue<'_>> {
        SharedReceiveQueue::create(self, options)
    }
}

impl<'a> SharedReceiveQueue<'a> {
    /// Makes a shared receive queue in a domain, borrowed (`&domain`) or shared (`&Arc<ProtectionDomain>`).
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::create_shared_receive_queue`].
    #[doc(alias = "ibv_create_srq")]
    pub fn create(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        options: SharedReceiveQueueOptions,
    ) -> Result<Self> {
        let domain = domain.into();
        let (verb, create) = verb!(domain.context().library(), ibv_create_srq)?;
        let attr = options.to_raw()?;
        let mut attributes = rdma_sys::ibv_srq_init_attr { attr, ..Default::default() };
        // SAFETY: the domain is held.
        let raw = verb.object(unsafe { create(domain.as_raw(), &raw mut attributes) })?;
        // SAFETY: just made in this domain.
        unsafe { Self::from_new(raw, attributes.attr.max_sge, domain) }
    }

    /// Takes over a new queue; destroys it if nothing could be posted to it.
    ///
    /// # Safety
    ///
    /// `raw` was made in `domain`, and nobody else destroys it.
    pub(crate) unsafe fn from_new(
        raw: NonNull<rdma_sys::ibv_srq>,
        max_segments: u32,
        domain: Parent<'a, ProtectionDomain<'a>>,
    ) -> Result<Self> {
        let queue = Self { raw, max_segments, domain };
        let context = queue.domain.context().as_raw();
        // SAFETY: the context is open; its table is not changed any more.
        let post = unsafe { (*context).ops.post_srq_recv };
        Verb::new("ibv_post_srq_recv").find(post)?;
        Ok(queue)
    }

    /// Posts receives, in order. Costs as [`QueuePair::post_send`](crate::QueuePair::post_send).
    ///
    /// # Errors
    ///
    /// [`PostError`] with the first bad request. `ENOMEM` means that the queue is full. See `ibv_post_srq_recv(3)`.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post_receive(&self, batch: &mut [RecvWr<'_>]) -> Result<(), PostError> {
        let first = link_receives(batch, 0..=self.max_segments)?;
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: `raw` is live, and its context has the entry; the list ends with a null, lives in `batch`, and
        // names registered memory.
        let returned = unsafe { rdma_sys::ibv_post_srq_recv(self.as_raw(), first, &raw mut bad) };
        if returned == 0 {
            return Ok(());
        }
        let stride = size_of::<RecvWr<'_>>();
        Err(refused(Verb::new("ibv_post_srq_recv"), returned, bad.addr(), first.addr(), stride))
    }

    /// Its size and limit, as the device has them. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the device is gone. See `ibv_query_srq(3)`.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SharedReceiveQueueAttributes> {
        let (verb, query) = verb!(self.domain.context().library(), ibv_query_srq)?;
        let mut attributes = rdma_sys::ibv_srq_attr::default();
        // SAFETY: `raw` is live, and the struct is a valid place.
        verb.status(unsafe { query(self.as_raw(), &raw mut attributes) })?;
        let rdma_sys::ibv_srq_attr { max_wr, max_sge, srq_limit } = attributes;
        Ok(SharedReceiveQueueAttributes {
            max_requests: max_wr,
            max_segments: max_sge,
            limit: srq_limit,
        })
    }

    /// Asks for one event when fewer than `limit` receives are left; 0 takes that back. The event comes
    /// among the asynchronous ones of the context, once; set the limit again for the next.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EINVAL` if the limit is over the queue's size. See `ibv_modify_srq(3)`.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        let attributes = rdma_sys::ibv_srq_attr { srq_limit: limit, ..Default::default() };
        self.modify(attributes, rdma_sys::IBV_SRQ_LIMIT)
    }

    /// Makes it larger or smaller. Not every device can.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EINVAL` if more receives are outstanding or the device cannot. See `ibv_modify_srq(3)`.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&mut self, max_requests: u32) -> Result<()> {
        let attributes = rdma_sys::ibv_srq_attr { max_wr: max_requests, ..Default::default() };
        self.modify(attributes, rdma_sys::IBV_SRQ_MAX_WR)
    }

    fn modify(&self, mut attributes: rdma_sys::ibv_srq_attr, mask: u32) -> Result<()> {
        let (verb, modify) = verb!(self.domain.context().library(), ibv_modify_srq)?;
        let mask = mask.cast_signed();
        // SAFETY: `raw` is live, and the mask says which fields are set.
        verb.status(unsafe { modify(self.as_raw(), &raw mut attributes, mask) })
    }

    /// How many segments a receive can have.
    #[must_use]
    pub fn max_segments(&self) -> u32 {
        self.max_segments
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        &self.domain
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedReceiveQueue<'_> {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = verb!(self.domain.context().library(), ibv_destroy_srq) {
            // SAFETY: `raw` is live, and nothing reads it after this. While a leaked queue pair takes from it
            // the call is refused, ibv_create_srq(3).
            verb.log_refusal(unsafe { destroy(self.as_raw()) });
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for SharedReceiveQueue<'_> {}
// SAFETY: as for `Send`; each `&self` method is one verb.
unsafe impl Sync for SharedReceiveQueue<'_> {}

impl Error {
    /// Receives do not belong into a queue pair that takes them from elsewhere.
    #[cold]
    pub(crate) fn receives_are_shared() -> Self {
        Self::Invalid {
            what: "the queue pair takes its receives from a shared receive queue".into(),
            remedy: "post them to the `SharedReceiveQueue`",
        }
    }
}
