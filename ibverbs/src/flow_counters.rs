//! Counters of flows.
#![expect(unsafe_code, reason = "owns an ibv_counters")]

use std::ptr::{self, NonNull};

use crate::{Context, Error, Parent, Result, Verb};

/// What of its packets a flow counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CounterKind(pub u32);

impl CounterKind {
    /// How many there were.
    pub const PACKETS: Self = Self(rdma_sys::IBV_COUNTER_PACKETS);
    /// How many bytes they had.
    pub const BYTES: Self = Self(rdma_sys::IBV_COUNTER_BYTES);
}

/// Counters that flows count their packets in, by [`FlowRule::count`](crate::FlowRule::count).
///
/// Not tried on hardware: on the software device only.
#[derive(Debug)]
pub struct FlowCounters<'a> {
    /// From `ibv_create_counters` on `context`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_counters>,
    /// How many there are, at the indexes from 0 on.
    count: u32,
    context: Parent<'a, Context>,
}

impl<'a> FlowCounters<'a> {
    /// Makes counters on a context, borrowed (`&context`) or shared (`&Arc<Context>`): one of each of these kinds, in this
    /// order. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if none is asked for; [`Error::Unsupported`] if the device has no counters; [`Error::Verb`]
    /// otherwise, such as `ENOTSUP` for a kind that it does not count. See `ibv_create_counters(3)`,
    /// `ibv_attach_counters_point_flow(3)`.
    #[doc(alias = "ibv_create_counters")]
    #[doc(alias = "ibv_attach_counters_point_flow")]
    pub fn create(context: impl Into<Parent<'a, Context>>, kinds: &[CounterKind]) -> Result<Self> {
        let context = context.into();
        let most = u64::from(u32::MAX);
        Error::check("the number of counters", kinds.len() as u64, 1, most)?;
        let verb = Verb::new("ibv_create_counters");
        let mut attributes = rdma_sys::ibv_counters_init_attr::default();
        // SAFETY: the context is held, and the struct is read in this call only.
        let raw = unsafe { rdma_sys::ibv_create_counters(context.as_raw(), &raw mut attributes) };
        let raw = verb.object(verb.find(raw)?)?;
        // If one of the kinds is refused, dropping this destroys the counters.
        let mut counters = Self { raw, count: 0, context };
        for &kind in kinds {
            counters.add(kind)?;
        }
        Ok(counters)
    }

    /// Counts one more kind, in every flow that is made with these counters.
    fn add(&mut self, kind: CounterKind) -> Result<()> {
        let verb = Verb::new("ibv_attach_counters_point_flow");
        let mut attributes = rdma_sys::ibv_counter_attach_attr {
            counter_desc: kind.0,
            index: self.count,
            comp_mask: 0,
        };
        let (counters, every) = (self.as_raw(), ptr::null_mut());
        let attach = rdma_sys::ibv_attach_counters_point_flow;
        // SAFETY: `raw` is live, and the struct is read in this call only.
        let returned = unsafe { attach(counters, &raw mut attributes, every) };
        verb.status(verb.find(returned)?)?;
        self.count += 1;
        Ok(())
    }

    /// Reads them, in the order of their kinds, since the flows were made. Enters the kernel; the device is asked.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] unless there is one place for each counter; [`Error::Verb`] if the device is gone. See
    /// `ibv_read_counters(3)`.
    #[doc(alias = "ibv_read_counters")]
    pub fn read(&self, values: &mut [u64]) -> Result<()> {
        self.read_with(values, 0)
    }

    /// As [`read`](Self::read), where possible without asking the device: values that are a little old will do.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    #[doc(alias = "IBV_READ_COUNTERS_ATTR_PREFER_CACHED")]
    pub fn read_cached(&self, values: &mut [u64]) -> Result<()> {
        self.read_with(values, rdma_sys::IBV_READ_COUNTERS_ATTR_PREFER_CACHED)
    }

    fn read_with(&self, values: &mut [u64], flags: u32) -> Result<()> {
        let count = u64::from(self.count);
        Error::check("the number of places for counters", values.len() as u64, count, count)?;
        let verb = Verb::new("ibv_read_counters");
        let (counters, places) = (self.as_raw(), values.as_mut_ptr());
        // SAFETY: `raw` is live, and there are `count` places.
        let returned = unsafe { rdma_sys::ibv_read_counters(counters, places, self.count, flags) };
        verb.status(verb.find(returned)?)
    }

    /// The device they belong to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_counters {
        self.raw.as_ptr()
    }
}

impl Drop for FlowCounters<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` is live, and nothing reads it after this. While a leaked flow counts here the call is refused,
        // ibv_create_counters(3).
        if let Some(returned) = unsafe { rdma_sys::ibv_destroy_counters(self.as_raw()) } {
            Verb::new("ibv_destroy_counters").log_refusal(returned);
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for FlowCounters<'_> {}
// SAFETY: as for `Send`; each `&self` method is one verb.
unsafe impl Sync for FlowCounters<'_> {}
