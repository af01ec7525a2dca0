//! Completion queues: where a device reports the work requests it has finished.
#![expect(unsafe_code, reason = "owns an ibv_cq")]

use std::{
    ffi::c_int,
    ptr::{self, NonNull},
};

use crate::{Completion, Context, Parent, Result, Verb, error::verb};

/// Finished work requests, oldest first. Queue pairs borrow or share it.
///
/// There must be room for every completion that can be outstanding: a queue that overflows breaks, and with
/// it its queue pairs.
#[derive(Debug)]
pub struct CompletionQueue<'a> {
    /// From `ibv_create_cq` on `context`, not single-threaded; freed only by drop.
    raw: NonNull<rdma_sys::ibv_cq>,
    context: Parent<'a, Context>,
}

impl Context {
    /// Makes a queue for at least `capacity` completions that borrows this context; the device may
    /// round up. Enters the kernel, allocates.
    ///
    /// Use [`CompletionQueue::create`] with an `Arc` for one that can be stored beside its context.
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
        let context = context.into();
        let (verb, create) = verb!(context.library(), ibv_create_cq)?;
        let capacity = c_int::try_from(capacity).unwrap_or(c_int::MAX);
        // SAFETY: the context is open as long as `context` is held; a null channel asks for no events.
        let raw =
            unsafe { create(context.as_raw(), capacity, ptr::null_mut(), ptr::null_mut(), 0) };
        Ok(Self { raw: verb.object(raw)?, context })
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
        let room = c_int::try_from(slots.len()).unwrap_or(c_int::MAX);
        let entries = slots.as_mut_ptr().cast::<rdma_sys::ibv_wc>();
        // SAFETY: `raw` is live, its context has the entry, and `entries` has `room` places of this layout.
        let returned = unsafe { rdma_sys::ibv_poll_cq(self.raw.as_ptr(), room, entries) };
        let filled = usize::try_from(returned).ok().and_then(|count| slots.get(..count));
        filled.ok_or_else(|| poll_failure(returned))
    }

    /// How many completions fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        // SAFETY: `raw` is live; only resizing changes the field, which needs `&mut self`.
        u32::try_from(unsafe { (*self.raw.as_ptr()).cqe }).unwrap_or(0)
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

#[cold]
fn poll_failure(returned: c_int) -> crate::Error {
    let verb = Verb::new("ibv_poll_cq");
    // A count over the room that was given is as broken as a negative one.
    let returned = if returned > 0 { -libc::EIO } else { returned };
    verb.count(returned).map_or_else(|error| error, |_| verb.unsupported())
}

impl Drop for CompletionQueue<'_> {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = verb!(self.context.library(), ibv_destroy_cq) {
            // SAFETY: `raw` is live, and nothing reads it after this. While a leaked queue pair reports
            // here the call is refused, ibv_create_cq(3).
            verb.log_refusal(unsafe { destroy(self.as_raw()) });
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for CompletionQueue<'_> {}
// SAFETY: as for `Send`; each `&self` method is one verb.
unsafe impl Sync for CompletionQueue<'_> {}
