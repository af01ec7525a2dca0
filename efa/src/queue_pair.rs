//! Making queue pairs, and making them ready.
#![expect(unsafe_code, reason = "calls efadv_create_qp_ex")]

use ibverbs::{
    CompletionQueue, LocalPort, Operations, PacketSequence, Parent, Posting, ProtectionDomain,
    QueueKey, QueuePair, QueuePairChange, QueuePairState, Reset,
};

use crate::{
    EfaCapabilities, EfaDeviceAttributes, EfaTransport, Result, Srd,
    error::{efa_verb, with_remedy},
    length_of, query_device,
};

/// Begins a queue pair of a domain and completion queues, each borrowed or shared (`&Arc<…>`).
///
/// # Examples
///
/// ```no_run
/// # fn make(context: &efa::ibverbs::Context) -> efa::Result<()> {
/// use efa::{Srd, ibverbs::{DeviceSelector, QueueKey}};
///
/// let port = context.local_port(&DeviceSelector::default())?;
/// let domain = context.allocate_protection_domain()?;
/// let queue = context.create_completion_queue(64)?;
/// let pair = efa::queue_pair::<Srd>(&domain, &queue, &queue)
///     .max_send_requests(32)
///     .prepare(&port, QueueKey(0x1234))?;
/// # Ok(())
/// # }
/// ```
pub fn queue_pair<'a, T: EfaTransport>(
    domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
    send_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
    receive_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
) -> QueuePairBuilder<'a, T> {
    QueuePairBuilder {
        // EFA refuses requests that are not signaled, and its provider drops receives without memory.
        inner: QueuePair::builder(domain, send_queue, receive_queue)
            .signal_all()
            .min_receive_segments(1),
        operations: None,
        service_level: 0,
        unsolicited_write_receives: false,
        inline_writes: false,
        processing_hints: false,
        receiver_not_ready_retries: None,
    }
}

/// How large a queue pair of EFA should be, and what it should have besides.
#[derive(Debug)]
#[must_use = "nothing is made before `create` or `prepare`"]
pub struct QueuePairBuilder<'a, T> {
    inner: ibverbs::QueuePairBuilder<'a, T>,
    operations: Option<Operations>,
    service_level: u8,
    unsolicited_write_receives: bool,
    inline_writes: bool,
    processing_hints: bool,
    receiver_not_ready_retries: Option<u8>,
}

/// Setters that plain queue pairs have as well.
macro_rules! pass_on {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(self, count: u32) -> Self {
                Self { inner: self.inner.$name(count), ..self }
            }
        )*
    };
}

impl<'a, T: EfaTransport> QueuePairBuilder<'a, T> {
    pass_on! {
        /// How many requests can be outstanding in the send queue; 16 if not set.
        max_send_requests;
        /// How many requests can be outstanding in the receive queue; 16 if not set.
        max_receive_requests;
        /// How many segments a send can have, at least 1; 1 if not set. RDMA requests have one.
        max_send_segments;
        /// How many segments a receive can have, at least 1; 1 if not set.
        max_receive_segments;
        /// How many inline bytes a request can have; 0 if not set.
        max_inline;
    }

    /// The operations it is used for; all that transport and device have if not set.
    pub fn operations(self, operations: Operations) -> Self {
        Self { operations: Some(operations & T::OPERATIONS), ..self }
    }

    /// Makes the queue pair. It must be brought to its states before it sends: see [`prepare`](Self::prepare), which is
    /// less work. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::MissingCapability`](crate::Error::MissingCapability) if the device lacks what was asked for;
    /// [`Error::NotEfa`](crate::Error::NotEfa) for a device of another vendor; [`Error::Verbs`](crate::Error::Verbs) with the device's limit if
    /// more was asked for, or with what the kernel says. See `efadv_create_qp_ex(3)`, for [`Ud`](ibverbs::Ud)
    /// `ibv_create_qp_ex(3)`.
    #[doc(alias = "efadv_create_qp_ex")]
    pub fn create(self) -> Result<QueuePair<'a, T, Reset>> {
        let context = self.inner.protection_domain().context();
        let attributes = query_device(context)?;
        attributes.require(self.wanted())?;
        let operations = self.operations.unwrap_or_else(|| available::<T>(&attributes));
        let (library, mut own) = (context.library(), self.own_attributes());
        let inner = self.inner.operations(operations);
        if T::TYPE == rdma_sys::IBV_QPT_UD {
            // The vendor's verb makes SRD ones only.
            let made = inner.posting(Posting::Extended).create();
            return Ok(made.map_err(|error| explained(error, &attributes))?);
        }
        if own.wr_flags != 0 {
            // A library that does not know the field takes it for a mistake.
            efa_verb!(library, efadv_qp_from_ibv_qp_ex)?;
        }
        let (verb, create) = efa_verb!(library, efadv_create_qp_ex)?;
        let make = |context, common: &mut rdma_sys::ibv_qp_init_attr_ex| {
            let length = length_of(&own);
            // SAFETY: the builder holds what the common attributes name; both structs are valid, and the
            // second is of the length that is passed on.
            unsafe { create(context, common, &raw mut own, length) }
        };
        // SAFETY: `make` returns the SRD queue pair that the verb made of these attributes, and keeps no copy.
        let made = unsafe { inner.create_by(verb, make) };
        Ok(made.map_err(|error| explained(error, &attributes))?)
    }

    /// Makes the queue pair ready to send and receive on a port of this side: it takes what carries `queue_key`. Enters
    /// the kernel, allocates.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create), and [`Transition`](ibverbs::Error::Transition) if the device refuses a state.
    #[doc(alias = "ibv_modify_qp")]
    pub fn prepare(self, port: &LocalPort, queue_key: QueueKey) -> Result<QueuePair<'a, T>> {
        let retries = self.receiver_not_ready_retries;
        bring_up(self.create()?, port, queue_key, retries)
    }

    /// What the device must have for this.
    fn wanted(&self) -> EfaCapabilities {
        let operations = self.operations.unwrap_or(Operations::empty());
        let writes = Operations::WRITE | Operations::WRITE_WITH_IMMEDIATE;
        [
            (self.unsolicited_write_receives, EfaCapabilities::UNSOLICITED_WRITE_RECV),
            (self.receiver_not_ready_retries.is_some(), EfaCapabilities::RNR_RETRY),
            (operations.intersects(writes) || self.inline_writes, EfaCapabilities::RDMA_WRITE),
            (operations.contains(Operations::READ), EfaCapabilities::RDMA_READ),
        ]
        .into_iter()
        .filter_map(|(needed, capability)| needed.then_some(capability))
        .collect()
    }

    fn own_attributes(&self) -> rdma_sys::efadv_qp_init_attr {
        let flags = [
            (self.unsolicited_write_receives, rdma_sys::EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV),
            (self.inline_writes, rdma_sys::EFADV_QP_FLAGS_INLINE_WRITE),
        ];
        let flags = flags.into_iter().filter_map(|(set, flag)| set.then_some(flag)).sum::<u32>();
        let hints = u64::from(rdma_sys::EFADV_WR_EX_WITH_PROCESSING_HINTS);
        rdma_sys::efadv_qp_init_attr {
            driver_qp_type: rdma_sys::EFADV_QP_DRIVER_TYPE_SRD,
            flags: u16::try_from(flags).unwrap_or(0),
            sl: self.service_level,
            wr_flags: if self.processing_hints { hints } else { 0 },
            ..Default::default()
        }
    }
}

impl QueuePairBuilder<'_, Srd> {
    /// The service level; 0, which is the default one, if not set. Which others there are is up to the device.
    #[doc(alias = "sl")]
    pub fn service_level(self, service_level: u8) -> Self {
        Self { service_level, ..self }
    }

    /// Takes writes with immediate without using up posted receives. Their completions have no number: make the
    /// receive queue's completion queue with [`completion_queue`](crate::completion_queue) to tell them from others.
    ///
    /// **Both ends** must be made with it, or writes with immediate fail with
    /// [`FEATURE_MISMATCH`](crate::VendorStatus::FEATURE_MISMATCH).
    #[doc(alias = "EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV")]
    pub fn unsolicited_write_receives(self) -> Self {
        Self { unsolicited_write_receives: true, ..self }
    }

    /// Lets writes carry inline bytes too; otherwise only sends do. Needs a recent rdma-core and a device with
    /// wide requests.
    #[doc(alias = "EFADV_QP_FLAGS_INLINE_WRITE")]
    pub fn inline_writes(self) -> Self {
        Self { inline_writes: true, ..self }
    }

    /// Lets requests carry [`ProcessingHints`](crate::ProcessingHints). Needs rdma-core 64 or later.
    #[doc(alias = "EFADV_WR_EX_WITH_PROCESSING_HINTS")]
    pub fn processing_hints(self) -> Self {
        Self { processing_hints: true, ..self }
    }

    /// How often [`prepare`](Self::prepare) lets it try again while a peer has no receive posted, 0 to 7; 7, which is
    /// for ever, if not set.
    #[doc(alias = "rnr_retry")]
    pub fn receiver_not_ready_retries(self, retries: u8) -> Self {
        Self { receiver_not_ready_retries: Some(retries), ..self }
    }
}

/// Makes a queue pair of EFA that was [created](QueuePairBuilder::create) ready to send and receive on a port of this side, when
/// something had to be done before; otherwise [`QueuePairBuilder::prepare`] does it at once. Enters the kernel.
///
/// # Errors
///
/// [`Transition`](ibverbs::Error::Transition) if the device refuses a state. The queue pair is dropped then.
#[doc(alias = "ibv_modify_qp")]
pub fn prepare<'a, T: EfaTransport>(
    pair: QueuePair<'a, T, Reset>,
    port: &LocalPort,
    queue_key: QueueKey,
) -> Result<QueuePair<'a, T>> {
    bring_up(pair, port, queue_key, None)
}

/// Brings a queue pair from reset to ready.
fn bring_up<'a, T: EfaTransport>(
    pair: QueuePair<'a, T, Reset>,
    port: &LocalPort,
    queue_key: QueueKey,
    receiver_not_ready_retries: Option<u8>,
) -> Result<QueuePair<'a, T>> {
    if let Some(retries @ 8..) = receiver_not_ready_retries {
        return Err(ibverbs::Error::OutOfRange {
            what: "the number of receiver-not-ready retries",
            asked: retries.into(),
            minimum: 0,
            maximum: 7,
            remedy: None,
        }
        .into());
    }
    let to_initialized = QueuePairChange::to(QueuePairState::INITIALIZED)
        .port(port.port)
        .pkey_index(0)
        .queue_key(queue_key);
    let to_ready = QueuePairChange::to(QueuePairState::READY_TO_SEND)
        .first_sent_packet(PacketSequence::random());
    let to_ready = match receiver_not_ready_retries {
        Some(retries) => to_ready.receiver_not_ready_retries(retries),
        None => to_ready,
    };
    pair.modify(&to_initialized)?;
    pair.modify(&QueuePairChange::to(QueuePairState::READY_TO_RECEIVE))?;
    pair.modify(&to_ready)?;
    Ok(pair.into_state()?)
}

/// What a transport has on a device.
fn available<T: EfaTransport>(attributes: &EfaDeviceAttributes) -> Operations {
    let capabilities = attributes.capabilities();
    let mut operations = Operations::SEND | Operations::SEND_WITH_IMMEDIATE;
    operations.set(Operations::READ, capabilities.contains(EfaCapabilities::RDMA_READ));
    let writes = Operations::WRITE | Operations::WRITE_WITH_IMMEDIATE;
    operations.set(writes, capabilities.contains(EfaCapabilities::RDMA_WRITE));
    operations & T::OPERATIONS
}

/// The limits of the device that the plain query does not tell.
fn explained(error: ibverbs::Error, attributes: &EfaDeviceAttributes) -> ibverbs::Error {
    let (send, receive) = (attributes.max_send_requests(), attributes.max_receive_requests());
    with_remedy(
        error,
        format_args!(
            "the device takes at most {send} send requests of {} segments or {} inline bytes, and {receive} \
             receive requests of {} segments; fewer where requests are wide. Otherwise its queue pairs or \
             its service levels are used up, or the locked-memory limit (ulimit -l) is too low",
            attributes.max_send_segments(),
            attributes.max_inline(),
            attributes.max_receive_segments(),
        ),
    )
}
