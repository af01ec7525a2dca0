//! Where the queues of a device lie in memory, for those who post and poll without the provider.
#![expect(unsafe_code, reason = "calls efadv_query_cq and efadv_query_qp_wqs")]

use std::{fmt, marker::PhantomData, ptr, ptr::NonNull};

use ibverbs::{CompletionQueue, QueuePair, Transport};

use crate::{Result, error::efa_verb, length_of};

/// Where a completion queue lies in this process. See `efadv_query_cq(3)`.
///
/// The memory is the provider's: valid while the queue lives, written by the device, and in the format of the
/// device. Whoever reads it in place of [`poll`](CompletionQueue::poll) must do so alone.
#[derive(Clone, Copy)]
pub struct CompletionQueueLayout<'q> {
    raw: rdma_sys::efadv_cq_attr,
    queue: PhantomData<&'q ()>,
}

/// Where a completion queue lies in memory. Does not enter the kernel.
///
/// # Errors
///
/// [`Error::Verbs`](crate::Error::Verbs) with [`Unsupported`](ibverbs::Error::Unsupported) before rdma-core 59, and
/// with `EOPNOTSUPP` for a device of another vendor.
#[doc(alias = "efadv_query_cq")]
pub fn query_completion_queue<'q>(
    queue: &'q CompletionQueue<'_>,
) -> Result<CompletionQueueLayout<'q>> {
    let (verb, query) = efa_verb!(queue.context().library(), efadv_query_cq)?;
    let mut raw = rdma_sys::efadv_cq_attr {
        comp_mask: 0,
        buffer: ptr::null_mut(),
        entry_size: 0,
        num_entries: 0,
        doorbell: ptr::null_mut(),
    };
    // SAFETY: the queue is live, and the struct is of the length that is passed on.
    verb.status(unsafe { query(queue.as_raw(), &raw mut raw, length_of(&raw)) })?;
    Ok(CompletionQueueLayout { raw, queue: PhantomData })
}

impl CompletionQueueLayout<'_> {
    /// The first entry; null if the queue lies in memory that this process has not mapped.
    #[must_use]
    pub const fn buffer(&self) -> *mut u8 {
        self.raw.buffer
    }

    /// The length of an entry in bytes.
    #[must_use]
    pub const fn entry_size(&self) -> u32 {
        self.raw.entry_size
    }

    /// How many entries there are.
    #[must_use]
    #[doc(alias = "num_entries")]
    pub const fn entries(&self) -> u32 {
        self.raw.num_entries
    }

    /// Where the device is told what was taken and that events are wanted, if this queue has events.
    #[must_use]
    pub const fn doorbell(&self) -> Option<NonNull<u32>> {
        NonNull::new(self.raw.doorbell)
    }
}

impl fmt::Debug for CompletionQueueLayout<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

/// Where the send queue and the receive queue of a queue pair lie in this process.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WorkQueues<'q> {
    /// The send queue, in the memory of the device.
    pub send: WorkQueueLayout<'q>,
    /// The receive queue.
    pub receive: WorkQueueLayout<'q>,
}

/// Where a work queue lies in this process. See `efadv_query_qp_wqs(3)`.
///
/// The memory is the provider's: valid while the queue pair lives, and in the format of the device. Whoever
/// writes it in place of the posting calls must do so alone.
#[derive(Clone, Copy)]
pub struct WorkQueueLayout<'q> {
    raw: rdma_sys::efadv_wq_attr,
    queue: PhantomData<&'q ()>,
}

/// Where the queues of a queue pair lie in memory. Does not enter the kernel.
///
/// # Errors
///
/// [`Error::Verbs`](crate::Error::Verbs) with [`Unsupported`](ibverbs::Error::Unsupported) before rdma-core 59, and
/// with `EOPNOTSUPP` for a device of another vendor.
#[doc(alias = "efadv_query_qp_wqs")]
pub fn query_work_queues<'q, T: Transport, S>(
    pair: &'q QueuePair<'_, T, S>,
) -> Result<WorkQueues<'q>> {
    let library = pair.protection_domain().context().library();
    let (verb, query) = efa_verb!(library, efadv_query_qp_wqs)?;
    let (mut send, mut receive) = (NOWHERE, NOWHERE);
    let length = length_of(&send);
    // SAFETY: the queue pair is live, and the structs are of the length that is passed on.
    verb.status(unsafe { query(pair.as_raw(), &raw mut send, &raw mut receive, length) })?;
    let layout = |raw| WorkQueueLayout { raw, queue: PhantomData };
    Ok(WorkQueues { send: layout(send), receive: layout(receive) })
}

const NOWHERE: rdma_sys::efadv_wq_attr = rdma_sys::efadv_wq_attr {
    comp_mask: 0,
    buffer: ptr::null_mut(),
    entry_size: 0,
    num_entries: 0,
    doorbell: ptr::null_mut(),
    max_batch: 0,
    caps: 0,
    reserved: [0; 2],
};

impl WorkQueueLayout<'_> {
    /// The first entry.
    #[must_use]
    pub const fn buffer(&self) -> *mut u8 {
        self.raw.buffer
    }

    /// The length of an entry in bytes.
    #[must_use]
    pub const fn entry_size(&self) -> u32 {
        self.raw.entry_size
    }

    /// How many entries there are.
    #[must_use]
    #[doc(alias = "num_entries")]
    pub const fn entries(&self) -> u32 {
        self.raw.num_entries
    }

    /// Where the device is told that entries were added.
    #[must_use]
    pub const fn doorbell(&self) -> Option<NonNull<u32>> {
        NonNull::new(self.raw.doorbell)
    }

    /// Most entries that may be added before the doorbell is rung.
    #[must_use]
    pub const fn max_batch(&self) -> u32 {
        self.raw.max_batch
    }

    /// Whether requests carry numbers of 64 bits, which their completions return.
    #[must_use]
    #[doc(alias = "EFADV_WQ_CAPS_64_BIT_REQ_ID")]
    pub fn has_64_bit_ids(&self) -> bool {
        u32::from(self.raw.caps) & rdma_sys::EFADV_WQ_CAPS_64_BIT_REQ_ID != 0
    }
}

impl fmt::Debug for WorkQueueLayout<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}
