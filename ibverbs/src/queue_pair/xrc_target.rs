//! The receiving end of an extended reliable connection.

use std::{fmt, ptr::NonNull};

use super::{
    QueuePairState,
    connect::ConnectOptions,
    endpoint::QpInfo,
    transition::{self, Transition},
};
use crate::{
    LocalPort, PacketSequence, Parent, QueuePairNumber, Result, Verb, XrcDomain, error::verb,
};

/// The receiving end of an extended reliable connection: it delivers to the shared receive queues of its XRC domain, and
/// reports nothing itself.
///
/// Its peer is a [`QueuePair<XrcInitiator>`](crate::XrcInitiator).
///
/// # Examples
///
/// ```
/// use ibverbs::{
///     CompletionQueue, ConnectOptions, LocalPort, ProtectionDomain, QpInfo, Segment, SendWr,
///     SharedReceiveQueueNumber, XrcDomain, XrcInitiator, XrcTarget,
/// };
///
/// /// The side that receives: `peer` is the initiator.
/// fn receive<'a>(
///     domain: &'a XrcDomain<'a>,
///     port: &LocalPort,
///     peer: &QpInfo,
/// ) -> ibverbs::Result<XrcTarget<'a>> {
///     let mut target = XrcTarget::create(domain)?;
///     target.connect(peer, &ConnectOptions::new(port))?;
///     Ok(target)
/// }
///
/// /// The side that sends: `peer` is the target's endpoint, `number` one of the shared receive queues there.
/// fn send(
///     domain: &ProtectionDomain<'_>,
///     queue: &CompletionQueue<'_>,
///     port: &LocalPort,
///     (peer, number): (&QpInfo, SharedReceiveQueueNumber),
///     bytes: Segment<'_>,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let initiator = domain.queue_pair::<XrcInitiator>(queue, queue).create()?;
///     let initiator = initiator.connect(peer, &ConnectOptions::new(port))?;
///     initiator.post_send(&mut [SendWr::send_into(bytes, number).signaled()])?;
///     Ok(())
/// }
/// ```
pub struct XrcTarget<'a> {
    /// From a creating verb on `domain`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_qp>,
    first_packet: PacketSequence,
    domain: Parent<'a, XrcDomain<'a>>,
}

impl<'a> XrcTarget<'a> {
    /// Makes a receiving end in an XRC domain, borrowed or shared (`&Arc<…>`). Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has none, [`Error::Verb`](crate::Error::Verb) otherwise. See `ibv_create_qp_ex(3)`.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create(domain: impl Into<Parent<'a, XrcDomain<'a>>>) -> Result<Self> {
        let domain = domain.into();
        let verb = Verb::new("ibv_create_qp_ex");
        let mut attributes = rdma_sys::ibv_qp_init_attr_ex {
            qp_type: rdma_sys::IBV_QPT_XRC_RECV,
            comp_mask: rdma_sys::IBV_QP_INIT_ATTR_XRCD,
            xrcd: domain.as_raw(),
            ..Default::default()
        };
        let context = domain.context().as_raw();
        // SAFETY: context and domain are held, and the struct says which fields it has.
        let raw = unsafe { rdma_sys::ibv_create_qp_ex(context, &raw mut attributes) };
        let raw = verb.object(verb.find(raw)?)?;
        Ok(Self { raw, first_packet: PacketSequence::random(), domain })
    }

    /// Opens a receiving end that another process made in the shared XRC domain, so that it stays when that
    /// process ends. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb), `EINVAL` if the domain has no such queue pair. See `ibv_open_qp(3)`.
    #[doc(alias = "ibv_open_qp")]
    pub fn open(
        domain: impl Into<Parent<'a, XrcDomain<'a>>>,
        number: QueuePairNumber,
    ) -> Result<Self> {
        let domain = domain.into();
        let verb = Verb::new("ibv_open_qp");
        let mut attributes = rdma_sys::ibv_qp_open_attr {
            comp_mask: rdma_sys::IBV_QP_OPEN_ATTR_NUM
                | rdma_sys::IBV_QP_OPEN_ATTR_XRCD
                | rdma_sys::IBV_QP_OPEN_ATTR_TYPE,
            qp_num: number.get(),
            xrcd: domain.as_raw(),
            qp_type: rdma_sys::IBV_QPT_XRC_RECV,
            ..Default::default()
        };
        let context = domain.context().as_raw();
        // SAFETY: context and domain are held, and the struct says which fields it has.
        let raw = unsafe { rdma_sys::ibv_open_qp(context, &raw mut attributes) };
        let raw = verb.object(verb.find(raw)?)?;
        Ok(Self { raw, first_packet: PacketSequence::random(), domain })
    }

    /// Its number, which the initiator needs.
    #[must_use]
    pub fn number(&self) -> QueuePairNumber {
        // SAFETY: `raw` is live, and the number never changes.
        QueuePairNumber::from_device(unsafe { (*self.raw.as_ptr()).qp_num })
    }

    /// What the initiator needs to connect to it when it uses `port`.
    #[must_use]
    pub fn endpoint(&self, port: &LocalPort) -> QpInfo {
        QpInfo::at(port, self.number(), self.first_packet)
    }

    /// Connects it to an initiator. Enters the kernel three times.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`](crate::QueuePair::connect).
    pub fn connect(&mut self, remote: &QpInfo, options: &ConnectOptions) -> Result<()> {
        let context = self.domain.context();
        let target = rdma_sys::IBV_QPT_XRC_RECV;
        let receive = options.to_ready_to_receive(remote, context)?;
        let send = options.to_ready_to_send(self.first_packet, context)?;
        self.apply(options.to_initialized())?;
        self.apply(receive.only_for(target, QueuePairState::INITIALIZED))?;
        self.apply(send.only_for(target, QueuePairState::READY_TO_RECEIVE))
    }

    /// Takes it back to reset, so that it can be connected anew. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`](crate::Error::Transition) if the device refuses.
    pub fn reset(&mut self) -> Result<()> {
        self.apply(transition::to_reset())?;
        self.first_packet = PacketSequence::random();
        Ok(())
    }

    /// The XRC domain it belongs to.
    #[must_use]
    pub fn xrc_domain(&self) -> &XrcDomain<'a> {
        &self.domain
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.raw.as_ptr()
    }

    fn apply(&self, change: Transition) -> Result<()> {
        // SAFETY: `raw` is live, and of the library of its domain.
        unsafe { change.apply(self.raw.as_ptr(), self.domain.context().library()) }
    }
}

impl Drop for XrcTarget<'_> {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = verb!(self.domain.context().library(), ibv_destroy_qp) {
            // SAFETY: `raw` is live, and nothing reads it after this.
            verb.log_refusal(unsafe { destroy(self.raw.as_ptr()) });
        }
    }
}

impl fmt::Debug for XrcTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcTarget").field("number", &self.number()).finish_non_exhaustive()
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for XrcTarget<'_> {}
// SAFETY: as for `Send`; the fields beside the C object are constant while it is shared.
unsafe impl Sync for XrcTarget<'_> {}
