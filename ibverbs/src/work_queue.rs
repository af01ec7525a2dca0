//! Work queues: receives without a queue pair of their own, which a table spreads frames over.
#![expect(unsafe_code, reason = "owns an ibv_wq")]

use std::{
    fmt, ptr,
    ptr::NonNull,
    sync::{Mutex, PoisonError},
};

use crate::{
    CompletionQueue, Error, Parent, PostError, ProtectionDomain, RecvWr, Result, Verb,
    error::DEVICE_LIMIT,
    queue_pair::{
        builder::check_segments,
        post::{link_receives, refused},
    },
};

/// A queue of receives for Ethernet frames. An [`IndirectionTable`](crate::IndirectionTable) has one or more of them, and an
/// [`RssQueuePair`](crate::RssQueuePair) gives each frame to one: so several threads receive, each from its own queue.
///
/// It is ready from the start. Its receives complete in its completion queue; which number their completions have for a
/// queue pair is up to the device, so give the requests of different queues different ids where they share a completion
/// queue.
///
/// Not tried on hardware: on the software device only.
pub struct WorkQueue<'a> {
    /// From `ibv_create_wq` in `domain`, with the entry for posting; freed only by drop.
    raw: NonNull<rdma_sys::ibv_wq>,
    /// What this side brought it to; one change at a time.
    state: Mutex<WorkQueueState>,
    /// What the device gave, at least what was asked for.
    max_segments: u32,
    completion_queue: Parent<'a, CompletionQueue<'a>>,
    domain: Parent<'a, ProtectionDomain<'a>>,
}

/// The state of a work queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkQueueState(pub u32);

impl WorkQueueState {
    /// Nothing can be posted to it, and it takes no frames.
    pub const RESET: Self = Self(rdma_sys::IBV_WQS_RESET);
    /// It takes frames.
    pub const READY: Self = Self(rdma_sys::IBV_WQS_RDY);
    /// Every receive completes as flushed.
    pub const ERROR: Self = Self(rdma_sys::IBV_WQS_ERR);

    const fn name(self) -> &'static str {
        match self {
            Self::RESET => "reset",
            Self::READY => "ready",
            Self::ERROR => "error",
            _ => "unknown",
        }
    }
}

impl fmt::Display for WorkQueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How large a work queue should be.
#[derive(Debug)]
#[must_use = "nothing is made before `create`"]
pub struct WorkQueueBuilder<'a> {
    domain: Parent<'a, ProtectionDomain<'a>>,
    completion_queue: Parent<'a, CompletionQueue<'a>>,
    max_requests: u32,
    max_segments: u32,
    flags: u32,
}

impl<'a> WorkQueue<'a> {
    /// Begins a work queue of a domain whose receives complete in a queue, each borrowed or shared (`&Arc<…>`).
    #[doc(alias = "ibv_create_wq")]
    pub fn builder(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        completion_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
    ) -> WorkQueueBuilder<'a> {
        WorkQueueBuilder {
            domain: domain.into(),
            completion_queue: completion_queue.into(),
            max_requests: 16,
            max_segments: 1,
            flags: 0,
        }
    }
}

impl<'a> WorkQueueBuilder<'a> {
    /// How many receives can be outstanding; 16 if not set.
    #[doc(alias = "max_wr")]
    pub fn max_requests(self, count: u32) -> Self {
        Self { max_requests: count, ..self }
    }

    /// How many segments a receive can have, at least 1; 1 if not set.
    #[doc(alias = "max_sge")]
    pub fn max_segments(self, count: u32) -> Self {
        Self { max_segments: count, ..self }
    }

    /// Takes the tags of VLANs out of frames that come, as
    /// [`QueuePairBuilder::strip_vlan`](crate::QueuePairBuilder::strip_vlan) does.
    #[doc(alias = "IBV_WQ_FLAGS_CVLAN_STRIPPING")]
    pub fn strip_vlan(self) -> Self {
        Self { flags: self.flags | rdma_sys::IBV_WQ_FLAGS_CVLAN_STRIPPING, ..self }
    }

    /// Makes the queue, ready for receives. Enters the kernel twice, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if domain and completion queue are of different devices; [`Error::OutOfRange`] over the device's
    /// limits; [`Error::Unsupported`] if it has no work queues; [`Error::Verb`] otherwise. See `ibv_create_wq(3)`.
    #[doc(alias = "ibv_create_wq")]
    #[doc(alias = "ibv_modify_wq")]
    pub fn create(self) -> Result<WorkQueue<'a>> {
        let context = self.domain.context();
        if self.completion_queue.context().as_raw() != context.as_raw() {
            return Err(Error::Invalid {
                what: "a work queue's completion queue and its domain are of different contexts"
                    .into(),
                remedy: "make both of them from one `Context`",
            });
        }
        check_segments("the number of segments of a receive", self.max_segments)?;
        let limits = context.query_device()?;
        let check = |what, asked: u32, limit: u32| {
            Error::check_or(what, asked.into(), 0..=limit.into(), DEVICE_LIMIT)
        };
        check("the number of receive requests", self.max_requests, limits.max_requests())?;
        check("the number of segments of a receive", self.max_segments, limits.max_segments())?;
        let verb = Verb::new("ibv_create_wq");
        let mut attributes = rdma_sys::ibv_wq_init_attr {
            wq_type: rdma_sys::IBV_WQT_RQ,
            max_wr: self.max_requests,
            max_sge: self.max_segments,
            pd: self.domain.as_raw(),
            cq: self.completion_queue.as_raw(),
            comp_mask: if self.flags == 0 { 0 } else { rdma_sys::IBV_WQ_INIT_ATTR_FLAGS },
            create_flags: self.flags,
            ..Default::default()
        };
        // SAFETY: context, domain and completion queue are held, and the struct is read and written in this call only.
        let raw = unsafe { rdma_sys::ibv_create_wq(context.as_raw(), &raw mut attributes) };
        let raw = verb.object(verb.find(raw)?)?;
        // If it cannot be made ready, dropping it destroys it.
        let queue = WorkQueue {
            raw,
            state: Mutex::new(WorkQueueState::RESET),
            max_segments: attributes.max_sge,
            completion_queue: self.completion_queue,
            domain: self.domain,
        };
        // SAFETY: `raw` is live; its table is not changed any more.
        Verb::new("ibv_post_wq_recv").find(unsafe { (*raw.as_ptr()).post_recv })?;
        queue.change(WorkQueueState::READY)?;
        Ok(queue)
    }
}

impl<'a> WorkQueue<'a> {
    /// Posts receives, in order. Costs as [`QueuePair::post_receive`](crate::QueuePair::post_receive).
    ///
    /// # Errors
    ///
    /// [`PostError`] with the first bad request. `ENOMEM` means that the queue is full. See `ibv_post_wq_recv(3)`.
    #[doc(alias = "ibv_post_wq_recv")]
    #[inline]
    pub fn post_receive(&self, batch: &mut [RecvWr<'_>]) -> Result<(), PostError> {
        let first = link_receives(batch, 0..=self.max_segments)?;
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: `raw` is live and has the entry; the list ends with a null, lives in `batch`, and names registered
        // memory.
        let returned = unsafe { rdma_sys::ibv_post_wq_recv(self.as_raw(), first, &raw mut bad) };
        if returned == 0 {
            return Ok(());
        }
        let stride = size_of::<RecvWr<'_>>();
        Err(refused(Verb::new("ibv_post_wq_recv"), returned, bad.addr(), first.addr(), stride))
    }

    /// The state that this side brought it to. The device can move it to its error state; that shows in completions.
    #[must_use]
    pub fn state(&self) -> WorkQueueState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every receive as flushed, and takes no more frames. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is reset, [`Error::Verb`] if the device is gone. See `ibv_modify_wq(3)`.
    #[doc(alias = "ibv_modify_wq")]
    pub fn fail(&self) -> Result<()> {
        self.change(WorkQueueState::ERROR)
    }

    /// Forgets every receive, which reports nothing any more, and takes no more frames. Enters the kernel.
    ///
    /// It is borrowed alone, since providers change here what posting uses, without a lock: a queue that is in a table is
    /// dropped with that and made anew.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the device is gone. See `ibv_modify_wq(3)`.
    #[doc(alias = "ibv_modify_wq")]
    pub fn reset(&mut self) -> Result<()> {
        self.change(WorkQueueState::RESET)
    }

    /// Makes it take frames again after [`reset`](Self::reset). Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is in its error state, [`Error::Verb`] if the device is gone. See `ibv_modify_wq(3)`.
    #[doc(alias = "ibv_modify_wq")]
    pub fn make_ready(&mut self) -> Result<()> {
        self.change(WorkQueueState::READY)
    }

    fn change(&self, to: WorkQueueState) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match (*state, to) {
            (WorkQueueState::RESET, WorkQueueState::ERROR) => {
                return Err(Error::Invalid {
                    what: "a work queue goes from reset to ready only".into(),
                    remedy: "call `make_ready` first",
                });
            }
            (WorkQueueState::ERROR, WorkQueueState::READY) => {
                return Err(Error::Invalid {
                    what: "a work queue goes from error to reset only".into(),
                    remedy: "call `reset` first",
                });
            }
            _ => {}
        }
        let verb = Verb::new("ibv_modify_wq");
        let mut attributes = rdma_sys::ibv_wq_attr {
            attr_mask: rdma_sys::IBV_WQ_ATTR_STATE,
            wq_state: to.0,
            ..Default::default()
        };
        // SAFETY: `raw` is live, the struct says which fields it has, and the lock keeps a second change away, since
        // the provider writes into the C object here.
        let returned = unsafe { rdma_sys::ibv_modify_wq(self.as_raw(), &raw mut attributes) };
        verb.status(verb.find(returned)?)?;
        *state = to;
        Ok(())
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: `raw` is live, and the number never changes.
        unsafe { (*self.as_raw()).wq_num }
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        &self.domain
    }

    /// The queue where its receives complete.
    #[must_use]
    pub fn completion_queue(&self) -> &CompletionQueue<'a> {
        &self.completion_queue
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_wq {
        self.raw.as_ptr()
    }
}

impl Drop for WorkQueue<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` is live, and nothing reads it after this. While a leaked table has it the call is refused,
        // ibv_create_wq(3).
        if let Some(returned) = unsafe { rdma_sys::ibv_destroy_wq(self.as_raw()) } {
            Verb::new("ibv_destroy_wq").log_refusal(returned);
        }
    }
}

impl fmt::Debug for WorkQueue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue")
            .field("number", &self.number())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for WorkQueue<'_> {}
// SAFETY: as for `Send`; each `&self` method is one verb, and changes of the state wait for each other.
unsafe impl Sync for WorkQueue<'_> {}
