//! Making a queue pair.

use std::{io, marker::PhantomData, ptr, ptr::NonNull};

use super::{Capabilities, Handle, Posting, QueuePair, post::Path, state::Reset};
use crate::{
    Addressing, CompletionQueue, Error, Operations, PacketSequence, Parent, ProtectionDomain,
    Receiving, Result, SharedReceiveQueue, Transport, Verb, error::verb,
};

/// How large a queue pair should be and how its requests reach the device.
///
/// # Examples
///
/// ```
/// use ibverbs::{CompletionQueue, ProtectionDomain, QueuePair, Rc, Reset};
///
/// fn make<'a>(
///     domain: &'a ProtectionDomain<'a>,
///     queue: &'a CompletionQueue<'a>,
/// ) -> ibverbs::Result<QueuePair<'a, Rc, Reset>> {
///     // Both its sends and its receives complete in one queue.
///     domain.queue_pair(queue, queue).max_send_requests(64).max_inline(32).create()
/// }
/// ```
#[derive(Debug)]
#[must_use = "nothing is made before `create`"]
pub struct QueuePairBuilder<'a, T> {
    domain: Parent<'a, ProtectionDomain<'a>>,
    send_queue: Parent<'a, CompletionQueue<'a>>,
    receive_queue: Parent<'a, CompletionQueue<'a>>,
    capabilities: rdma_sys::ibv_qp_cap,
    least_receive_segments: u32,
    signal_all: bool,
    shared: Option<Parent<'a, SharedReceiveQueue<'a>>>,
    posting: Option<Posting>,
    operations: Operations,
    /// `IBV_QP_CREATE_*`
    flags: u32,
    segmented_header: u16,
    transport: PhantomData<T>,
}

impl<'a> ProtectionDomain<'a> {
    /// Begins a queue pair that borrows this domain, and its completion queues too if they are given so.
    ///
    /// Use [`QueuePair::builder`] with `Arc`s for one that can be stored beside them.
    pub fn queue_pair<T: Transport>(
        &'a self,
        send_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
        receive_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
    ) -> QueuePairBuilder<'a, T> {
        QueuePair::builder(self, send_queue, receive_queue)
    }
}

impl<'a, T: Transport> QueuePair<'a, T, Reset> {
    /// Begins a queue pair of a domain and completion queues, each borrowed or shared (`&Arc<…>`).
    pub fn builder(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        send_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
        receive_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
    ) -> QueuePairBuilder<'a, T> {
        // Initiators have no receive queue.
        let receives = if matches!(T::ADDRESSING, Addressing::SharedQueue) { 0 } else { 1 };
        QueuePairBuilder {
            domain: domain.into(),
            send_queue: send_queue.into(),
            receive_queue: receive_queue.into(),
            capabilities: rdma_sys::ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16 * receives,
                max_send_sge: 1,
                max_recv_sge: receives,
                max_inline_data: 0,
            },
            least_receive_segments: 0,
            signal_all: false,
            shared: None,
            posting: None,
            operations: T::OPERATIONS & Operations::COMMON,
            flags: 0,
            segmented_header: 0,
            transport: PhantomData,
        }
    }
}

impl<'a, T: Transport> QueuePairBuilder<'a, T> {
    /// How many requests can be outstanding in the send queue; 16 if not set.
    #[doc(alias = "max_send_wr")]
    pub fn max_send_requests(mut self, count: u32) -> Self {
        self.capabilities.max_send_wr = count;
        self
    }

    /// How many requests can be outstanding in the receive queue; 16 if not set.
    #[doc(alias = "max_recv_wr")]
    pub fn max_receive_requests(mut self, count: u32) -> Self {
        self.capabilities.max_recv_wr = count;
        self
    }

    /// How many segments a request of the send queue can have, at least 1; 1 if not set.
    #[doc(alias = "max_send_sge")]
    pub fn max_send_segments(mut self, count: u32) -> Self {
        self.capabilities.max_send_sge = count;
        self
    }

    /// How many segments a request of the receive queue can have, at least 1; 1 if not set.
    #[doc(alias = "max_recv_sge")]
    pub fn max_receive_segments(mut self, count: u32) -> Self {
        self.capabilities.max_recv_sge = count;
        self
    }

    /// How few segments a receive may have; 0, a receive without memory, if not set. Some devices take such a
    /// receive without an error and drop it: with 1 posting it is an error.
    pub fn min_receive_segments(mut self, count: u32) -> Self {
        self.least_receive_segments = count;
        self
    }

    /// How many inline bytes a request can have; 0 if not set.
    #[doc(alias = "max_inline_data")]
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.capabilities.max_inline_data = bytes;
        self
    }

    /// Takes receives from a shared queue of the same domain, borrowed or shared (`&Arc<…>`), instead of an own one.
    #[doc(alias = "srq")]
    pub fn shared_receive_queue(
        mut self,
        queue: impl Into<Parent<'a, SharedReceiveQueue<'a>>>,
    ) -> Self
    where
        T: Receiving,
    {
        self.shared = Some(queue.into());
        self.capabilities.max_recv_wr = 0;
        self.capabilities.max_recv_sge = 0;
        self
    }

    /// Reports each request of the send queue, whether or not it is signaled.
    #[doc(alias = "sq_sig_all")]
    pub fn signal_all(mut self) -> Self {
        self.signal_all = true;
        self
    }

    /// How requests reach the device. If not set, through `ibv_wr_*` where the provider has all the
    /// operations, else through `ibv_post_send`.
    pub fn posting(mut self, posting: Posting) -> Self {
        self.posting = Some(posting);
        self
    }

    /// The operations it is used for; the [common ones](Operations::COMMON) that the transport has if not set. Fewer can let
    /// a provider fit more requests into the queue, or have the extended path at all. Sends and writes come in
    /// pairs: naming either kind, with or without an immediate, names both.
    ///
    /// With extended posting other operations are refused. With classic posting all that the device has can be used
    /// anyway.
    #[doc(alias = "send_ops_flags")]
    pub fn operations(mut self, operations: Operations) -> Self {
        let pairs = [
            Operations::SEND | Operations::SEND_WITH_IMMEDIATE,
            Operations::WRITE | Operations::WRITE_WITH_IMMEDIATE,
        ];
        let named = pairs.into_iter().filter(|pair| operations.intersects(*pair));
        self.operations = named.fold(operations, Operations::union) & T::OPERATIONS;
        self
    }

    /// The domain it will belong to.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        &self.domain
    }

    /// Makes the queue pair. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the completion queues are of another device than the domain; [`Error::OutOfRange`] for requests
    /// without segments, and with the device's limit if more was asked for; [`Error::Unsupported`] if extended posting was asked for and
    /// the device does not have it; [`Error::Verb`] otherwise. See `ibv_create_qp(3)`, `ibv_create_qp_ex(3)`.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create(self) -> Result<QueuePair<'a, T, Reset>> {
        self.check()?;
        let made = match self.posting {
            Some(Posting::Extended) => self.create_extended(),
            Some(Posting::Classic) => self.create_classic(),
            None => self.create_extended().or_else(|_| self.create_classic()),
        };
        self.explained(made)
    }

    /// Makes the queue pair by a verb of its vendor, such as `efadv_create_qp_ex`, for transports that
    /// `ibv_create_qp_ex` does not have. Posting is always [`Extended`](Posting::Extended) then.
    ///
    /// `create` is called with the context and with what `ibv_create_qp_ex` would get; it returns null, and sets
    /// errno, if it fails.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create), in the name of `verb`.
    ///
    /// # Safety
    ///
    /// What `create` returns, unless it is null, is a live queue pair of transport `T` that was made with these
    /// attributes on this context, and nobody else destroys it.
    pub unsafe fn create_by(
        self,
        verb: Verb,
        create: impl FnOnce(
            *mut rdma_sys::ibv_context,
            &mut rdma_sys::ibv_qp_init_attr_ex,
        ) -> *mut rdma_sys::ibv_qp,
    ) -> Result<QueuePair<'a, T, Reset>> {
        self.check()?;
        // SAFETY: by this function's contract.
        self.explained(unsafe { self.create_extended_by(verb, |c, a| Ok(create(c, a))) })
    }

    /// Sets a flag of creation.
    pub(super) fn flag(self, flag: u32) -> Self {
        Self { flags: self.flags | flag, ..self }
    }

    /// Makes room for the headers of packets that the device cuts out of a stream.
    pub(super) fn segmented_header(self, bytes: u16) -> Self {
        Self { segmented_header: bytes, ..self }
    }

    fn check(&self) -> Result<()> {
        let rdma_sys::ibv_qp_cap { max_send_sge, max_recv_sge, .. } = self.capabilities;
        check_segments("the number of segments of a send", max_send_sge)?;
        if self.shared.is_none() && !matches!(T::ADDRESSING, Addressing::SharedQueue) {
            check_segments("the number of segments of a receive", max_recv_sge)?;
        }
        let context = self.domain.context().as_raw();
        for queue in [&self.send_queue, &self.receive_queue] {
            if queue.context().as_raw() != context {
                return Err(Error::Invalid {
                    what:
                        "a queue pair's completion queues and its domain are of different contexts"
                            .into(),
                    remedy: "make all of them from one `Context`",
                });
            }
        }
        if let Some(queue) = &self.shared
            && queue.protection_domain().context().as_raw() != context
        {
            return Err(Error::Invalid {
                what:
                    "a queue pair's shared receive queue and its domain are of different contexts"
                        .into(),
                remedy: "make both from one `Context`",
            });
        }
        Ok(())
    }

    /// Puts the device's limits in the place of an error that they explain.
    fn explained<Q>(&self, made: Result<Q>) -> Result<Q> {
        made.map_err(|error| match Error::over_the_limits(&self.domain, &self.capabilities) {
            Err(limit @ Error::OutOfRange { .. }) => limit,
            _ => error,
        })
    }

    fn create_extended(&self) -> Result<QueuePair<'a, T, Reset>> {
        let verb = Verb::new("ibv_create_qp_ex");
        let create = |context, attributes: &mut _| {
            // SAFETY: context, domain and queues are held, and the struct says which fields it has.
            verb.find(unsafe { rdma_sys::ibv_create_qp_ex(context, attributes) })
        };
        // SAFETY: this is the verb for these attributes.
        unsafe { self.create_extended_by(verb, create) }
    }

    /// # Safety
    ///
    /// As for [`create_by`](Self::create_by).
    unsafe fn create_extended_by(
        &self,
        verb: Verb,
        create: impl FnOnce(
            *mut rdma_sys::ibv_context,
            &mut rdma_sys::ibv_qp_init_attr_ex,
        ) -> Result<*mut rdma_sys::ibv_qp>,
    ) -> Result<QueuePair<'a, T, Reset>> {
        let (_, view) = verb!(self.domain.context().library(), ibv_qp_to_qp_ex)?;
        let mut attributes = self.attributes();
        attributes.comp_mask |= rdma_sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attributes.send_ops_flags = self.operations.bits();
        let raw = create(self.domain.context().as_raw(), &mut attributes)?;
        let raw = verb.object(raw)?;
        let mut handle = self.handle(raw, attributes.cap);
        // SAFETY: `raw` was just made by this library.
        let extended = NonNull::new(unsafe { view(raw.as_ptr()) });
        let Some(path) = extended.and_then(|view| Path::extended::<T>(view, self.operations))
        else {
            // Dropping the handle destroys the queue pair.
            return Err(verb.error(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        };
        handle.path = path;
        // SAFETY: a new queue pair is of the type that was asked for.
        Ok(unsafe { QueuePair::from_handle(handle) })
    }

    /// The struct of `ibv_create_qp_ex`, for a queue pair without extended posting.
    fn attributes(&self) -> rdma_sys::ibv_qp_init_attr_ex {
        let set = |there, bit| if there { bit } else { 0 };
        let flags = set(self.flags != 0, rdma_sys::IBV_QP_INIT_ATTR_CREATE_FLAGS);
        let header = set(self.segmented_header != 0, rdma_sys::IBV_QP_INIT_ATTR_MAX_TSO_HEADER);
        rdma_sys::ibv_qp_init_attr_ex {
            send_cq: self.send_queue.as_raw(),
            recv_cq: self.receive_queue.as_raw(),
            srq: self.shared_as_raw(),
            cap: self.capabilities,
            qp_type: T::TYPE,
            sq_sig_all: self.signal_all.into(),
            comp_mask: rdma_sys::IBV_QP_INIT_ATTR_PD | flags | header,
            pd: self.domain.as_raw(),
            create_flags: self.flags,
            max_tso_header: self.segmented_header,
            ..Default::default()
        }
    }

    fn create_classic(&self) -> Result<QueuePair<'a, T, Reset>> {
        if self.flags != 0 || self.segmented_header != 0 {
            return self.create_classic_by_the_extended_verb();
        }
        let (verb, create) = verb!(self.domain.context().library(), ibv_create_qp)?;
        let mut attributes = rdma_sys::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: self.send_queue.as_raw(),
            recv_cq: self.receive_queue.as_raw(),
            srq: self.shared_as_raw(),
            cap: self.capabilities,
            qp_type: T::TYPE,
            sq_sig_all: self.signal_all.into(),
        };
        // SAFETY: domain and queues are held.
        let raw = verb.object(unsafe { create(self.domain.as_raw(), &raw mut attributes) })?;
        // SAFETY: a new queue pair is of the type that was asked for.
        Ok(unsafe { QueuePair::from_handle(self.handle(raw, attributes.cap)) })
    }

    /// What `ibv_create_qp` has no place for takes the verb of extended queue pairs, even for one that is none.
    fn create_classic_by_the_extended_verb(&self) -> Result<QueuePair<'a, T, Reset>> {
        let verb = Verb::new("ibv_create_qp_ex");
        let (context, mut attributes) = (self.domain.context().as_raw(), self.attributes());
        // SAFETY: context, domain and queues are held, and the struct says which fields it has.
        let raw = unsafe { rdma_sys::ibv_create_qp_ex(context, &raw mut attributes) };
        let raw = verb.object(verb.find(raw)?)?;
        // SAFETY: a new queue pair is of the type that was asked for.
        Ok(unsafe { QueuePair::from_handle(self.handle(raw, attributes.cap)) })
    }

    fn handle(&self, raw: NonNull<rdma_sys::ibv_qp>, given: rdma_sys::ibv_qp_cap) -> Handle<'a> {
        Handle {
            raw,
            path: Path::Classic,
            operations: self.operations,
            capabilities: Capabilities {
                least_receive_segments: self.least_receive_segments,
                segmented_header: self.segmented_header,
                ..Capabilities::from_raw(given)
            },
            first_packet: PacketSequence::random(),
            context: self.domain.context().tag(),
            domain: self.domain.again(),
            queues: [self.send_queue.again(), self.receive_queue.again()],
            shared: self.shared.as_ref().map(Parent::again),
        }
    }

    fn shared_as_raw(&self) -> *mut rdma_sys::ibv_srq {
        self.shared.as_ref().map_or(ptr::null_mut(), |queue| queue.as_raw())
    }
}

/// Refuses a queue whose requests have no room for a segment.
///
/// Posting relies on it: it does not count the segments of a request that has just one, and neither do all providers when
/// they write it into their queue. A device gives at least what was asked for, `ibv_create_qp(3)`, `ibv_create_srq(3)`,
/// `ibv_create_wq(3)`.
pub(crate) fn check_segments(what: &'static str, count: u32) -> Result<()> {
    let remedy = "requests without memory can be posted all the same";
    Error::check_or(what, count.into(), 1..=u64::MAX, remedy)
}
