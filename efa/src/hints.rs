//! Hints of how requests are meant, which the device may use.
#![expect(unsafe_code, reason = "calls the setters of an efadv_qp")]

use std::ptr::NonNull;

use ibverbs::{PostError, QueuePair, SendWr, Verb};

use crate::{Result, Srd, error::efa_verb, query_device};

bitflags::bitflags! {
    /// How a request is meant. The device may use it, or not. See `efadv_wr_set_processing_hints(3)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct ProcessingHints: u32 {
        /// It is one of a burst of many, whose number per second is what counts.
        const BURST_PPS_SENSITIVE = rdma_sys::EFADV_WR_PROCESSING_HINT_BURST_PPS_SENSITIVE;

        const _ = !0;
    }
}

/// Posts requests with [`ProcessingHints`] to a queue pair that was made for it.
#[derive(Debug)]
pub struct HintedPoster<'p, 'a> {
    pair: &'p QueuePair<'a, Srd>,
    /// `pair` as libefa sees it, with the setter present.
    own: NonNull<rdma_sys::efadv_qp>,
}

impl<'p, 'a> HintedPoster<'p, 'a> {
    /// A poster for a queue pair made with [`processing_hints`](crate::QueuePairBuilder::processing_hints).
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs) with [`Unsupported`](ibverbs::Error::Unsupported) before rdma-core 64, with
    /// [`Invalid`](ibverbs::Error::Invalid) for a queue pair that was made without.
    #[doc(alias = "efadv_qp_from_ibv_qp_ex")]
    pub fn new(pair: &'p QueuePair<'a, Srd>) -> Result<Self> {
        let context = pair.protection_domain().context();
        let (verb, own_view) = efa_verb!(context.library(), efadv_qp_from_ibv_qp_ex)?;
        query_device(context)?;
        let view_verb = Verb::new("ibv_qp_to_qp_ex");
        let view = view_verb.find(context.library().verbs().ibv_qp_to_qp_ex)?;
        // SAFETY: the queue pair is live; one that was not made for extended posting gives null.
        let extended = view_verb.object(unsafe { view(pair.as_raw()) })?;
        // SAFETY: an extended queue pair of a device of libefa's.
        let own = verb.object(unsafe { own_view(extended.as_ptr()) })?;
        // SAFETY: the queue pair is live, and its table does not change after creation.
        if unsafe { own.as_ref() }.wr_set_processing_hints.is_none() {
            return Err(ibverbs::Error::Invalid {
                what: "the queue pair was not made for processing hints".into(),
                remedy: "make it with `QueuePairBuilder::processing_hints`",
            }
            .into());
        }
        Ok(Self { pair, own })
    }

    /// Posts a batch whose requests all carry `hints`. Costs as [`post_send`](QueuePair::post_send), and a call per
    /// request.
    ///
    /// # Errors
    ///
    /// As for [`post_send`](QueuePair::post_send).
    #[doc(alias = "efadv_wr_set_processing_hints")]
    pub fn post_send(
        &self,
        batch: &mut [SendWr<'_, Srd>],
        hints: ProcessingHints,
    ) -> Result<(), PostError> {
        let own = self.own.as_ptr();
        let set = |_, _| {
            // SAFETY: `new` saw the entry; called between start and complete, after the request was begun.
            unsafe { rdma_sys::efadv_wr_set_processing_hints(own, hints.bits()) };
        };
        // SAFETY: this is a setter of the present request, and does not panic.
        unsafe { self.pair.post_send_with(batch, set) }
    }
}

// SAFETY: the pointer leads to the queue pair, which may be used from many threads, ibv_alloc_td(3).
unsafe impl Send for HintedPoster<'_, '_> {}
// SAFETY: as for `Send`; posting takes the provider's lock.
unsafe impl Sync for HintedPoster<'_, '_> {}
