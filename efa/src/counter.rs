//! Completion counters: how many requests have completed, without a completion for each.
#![expect(unsafe_code, reason = "owns an ibv_comp_cntr")]

use std::ptr::NonNull;

use ibverbs::{Context, Parent, QueuePair, Reset, Transport, Verb};

use crate::Result;

bitflags::bitflags! {
    /// Which completions of a queue pair a counter counts.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CountedOperations: u32 {
        /// This side's sends.
        const SEND = rdma_sys::IBV_QP_ATTACH_COMP_CNTR_OP_SEND;
        /// This side's receives.
        const RECEIVE = rdma_sys::IBV_QP_ATTACH_COMP_CNTR_OP_RECV;
        /// This side's reads.
        const READ = rdma_sys::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ;
        /// Reads of this side's memory by peers.
        const REMOTE_READ = rdma_sys::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ;
        /// This side's writes.
        const WRITE = rdma_sys::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE;
        /// Writes of peers to this side's memory.
        const REMOTE_WRITE = rdma_sys::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE;

        const _ = !0;
    }
}

/// What the counters of a device can do. See `ibv_query_comp_cntr_caps(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterLimits {
    /// Most counters.
    pub max_counters: u32,
    /// The value after which a counter starts over.
    pub max_value: u64,
    /// What can be counted.
    pub operations: CountedOperations,
}

/// What the completion counters of a device can do.
///
/// # Errors
///
/// [`Error::Verbs`](crate::Error::Verbs) with [`Unsupported`](ibverbs::Error::Unsupported) before rdma-core 65, and with
/// `EOPNOTSUPP` if the device has none.
#[doc(alias = "ibv_query_comp_cntr_caps")]
pub fn query_counters(context: &Context) -> Result<CounterLimits> {
    let verb = Verb::new("ibv_query_comp_cntr_caps");
    let query = context.library().verbs()._ibv_query_comp_cntr_caps;
    let query = query.ok_or_else(|| unsupported(verb))?;
    let mut raw = rdma_sys::ibv_comp_cntr_caps::default();
    // SAFETY: the context is open, and the struct is of the length that is passed on.
    verb.status(unsafe { query(context.as_raw(), &raw mut raw, size_of_val(&raw)) })?;
    Ok(CounterLimits {
        max_counters: raw.max_counters,
        max_value: raw.max_value,
        operations: CountedOperations::from_bits_retain(raw.supported_qp_attach_ops),
    })
}

/// Two numbers that the device counts up in this process's memory: completions that succeeded, and those
/// that failed.
///
/// Drop it after the queue pairs that it is attached to: while one is left, destroying it is refused, and it is leaked
/// with a warning in the log. Nothing dangles then.
#[derive(Debug)]
pub struct CompletionCounter<'a> {
    /// From `ibv_create_comp_cntr` on `context`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_comp_cntr>,
    context: Parent<'a, Context>,
}

/// A verb by its C name, as the table of libibverbs has it.
macro_rules! verb {
    ($context:expr, $name:ident) => {{
        let verb = Verb::new(stringify!($name));
        verb.find($context.library().verbs().$name).map(|function| (verb, function))
    }};
}

impl<'a> CompletionCounter<'a> {
    /// Makes a counter of a context, borrowed (`&context`) or shared (`&Arc<Context>`). Enters the kernel,
    /// allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs) with [`Unsupported`](ibverbs::Error::Unsupported) before rdma-core 65, with `EOPNOTSUPP` if
    /// the device has none, with `ENOMEM` over its number. See `ibv_create_comp_cntr(3)`.
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create(context: impl Into<Parent<'a, Context>>) -> Result<Self> {
        let context = context.into();
        let (verb, create) = verb!(context, ibv_create_comp_cntr)?;
        let mut attributes = rdma_sys::ibv_comp_cntr_init_attr {
            comp_mask: 0,
            type_: rdma_sys::IBV_COMP_CNTR_TYPE_WRS,
            flags: 0,
        };
        // SAFETY: the context is open as long as `context` is held; the struct is used in this call only.
        let raw = unsafe { create(context.as_raw(), &raw mut attributes) };
        Ok(Self { raw: verb.object(raw)?, context })
    }

    /// Counts completions of a queue pair from now on, which may already be counted elsewhere for other
    /// operations. A counter can count for several queue pairs. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs), `EOPNOTSUPP` for an operation that cannot be counted, `EBUSY` or `EINVAL` for one that
    /// is counted already. See `ibv_qp_attach_comp_cntr(3)`.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach<T: Transport>(
        &self,
        pair: &QueuePair<'_, T, Reset>,
        operations: CountedOperations,
    ) -> Result<()> {
        if pair.protection_domain().context().as_raw() != self.context.as_raw() {
            return Err(ibverbs::Error::Invalid {
                what: "a counter and its queue pair are of different contexts".into(),
                remedy: "make both from one `Context`",
            }
            .into());
        }
        let (verb, attach) = verb!(self.context, ibv_qp_attach_comp_cntr)?;
        let mut attributes =
            rdma_sys::ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask: operations.bits() };
        // SAFETY: queue pair and counter are live and of one context; the struct is used in this call only.
        let returned = unsafe { attach(pair.as_raw(), self.raw.as_ptr(), &raw mut attributes) };
        Ok(verb.status(returned)?)
    }

    /// How many requests succeeded. Reads memory, does not enter the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs) if the device is gone. See `ibv_read_comp_cntr(3)`.
    #[doc(alias = "ibv_read_comp_cntr")]
    pub fn completed(&self) -> Result<u64> {
        let (verb, read) = verb!(self.context, ibv_read_comp_cntr)?;
        let mut value = 0;
        // SAFETY: the counter is live, and `value` is a valid place.
        verb.status(unsafe { read(self.raw.as_ptr(), &raw mut value) })?;
        Ok(value)
    }

    /// How many requests failed. Reads memory, does not enter the kernel.
    ///
    /// # Errors
    ///
    /// As for [`completed`](Self::completed).
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn failed(&self) -> Result<u64> {
        let (verb, read) = verb!(self.context, ibv_read_err_comp_cntr)?;
        let mut value = 0;
        // SAFETY: the counter is live, and `value` is a valid place.
        verb.status(unsafe { read(self.raw.as_ptr(), &raw mut value) })?;
        Ok(value)
    }

    /// Sets both numbers, while nothing is counted: what completes meanwhile may be lost. It shows after a
    /// moment. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs) if the device cannot. See `ibv_set_comp_cntr(3)`.
    #[doc(alias = "ibv_set_comp_cntr")]
    #[doc(alias = "ibv_set_err_comp_cntr")]
    pub fn set(&self, completed: u64, failed: u64) -> Result<()> {
        let (verb, set) = verb!(self.context, ibv_set_comp_cntr)?;
        // SAFETY: the counter is live.
        verb.status(unsafe { set(self.raw.as_ptr(), completed) })?;
        let (verb, set) = verb!(self.context, ibv_set_err_comp_cntr)?;
        // SAFETY: the counter is live.
        Ok(verb.status(unsafe { set(self.raw.as_ptr(), failed) })?)
    }

    /// Adds to the number of requests that succeeded. It shows after a moment. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs) if the device cannot. See `ibv_inc_comp_cntr(3)`.
    #[doc(alias = "ibv_inc_comp_cntr")]
    pub fn add(&self, completed: u64) -> Result<()> {
        let (verb, add) = verb!(self.context, ibv_inc_comp_cntr)?;
        // SAFETY: the counter is live.
        Ok(verb.status(unsafe { add(self.raw.as_ptr(), completed) })?)
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_comp_cntr {
        self.raw.as_ptr()
    }
}

/// The inline verb has no symbol of its own by which its release could be found.
fn unsupported(verb: Verb) -> ibverbs::Error {
    ibverbs::Error::Unsupported { verb, since: rdma_sys::since("_ibv_query_comp_cntr_caps") }
}

impl Drop for CompletionCounter<'_> {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = verb!(self.context, ibv_destroy_comp_cntr) {
            // SAFETY: `raw` is live, and nothing reads it after this. While it is attached the call is refused,
            // ibv_create_comp_cntr(3).
            verb.log_refusal(unsafe { destroy(self.raw.as_ptr()) });
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for CompletionCounter<'_> {}
// SAFETY: as for `Send`; each `&self` method is one verb, or two.
unsafe impl Sync for CompletionCounter<'_> {}
