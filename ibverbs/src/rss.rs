//! Receive-side scaling: frames spread over work queues by a hash of their addresses and ports, so that the packets of one
//! connection stay in order and several threads share the rest.
#![expect(unsafe_code, reason = "owns an ibv_rwq_ind_table and a queue pair")]

use std::{fmt, ptr::NonNull};

use crate::{
    DeviceAttributes, Error, Parent, ProtectionDomain, QueuePairNumber, Result, Verb, WorkQueue,
    error::{DEVICE_LIMIT, verb},
};

/// Work queues by the last bits of a hash. A queue can stand in it more than once, to get more of the packets.
///
/// Not tried on hardware: on the software device only.
pub struct IndirectionTable<'a> {
    /// From `ibv_create_rwq_ind_table` on the context of the queues; freed only by drop.
    raw: NonNull<rdma_sys::ibv_rwq_ind_table>,
    /// Held so that they outlive the table; there is at least one.
    queues: Box<[Parent<'a, WorkQueue<'a>>]>,
}

impl<'a> IndirectionTable<'a> {
    /// Makes a table of work queues, borrowed or shared (`&Arc<…>`): 1, 2, 4 or another power of two of them, at most
    /// [`max_indirection_entries`](DeviceAttributes::max_indirection_entries). Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for none or too many; [`Error::Invalid`] if their number is no power of two, or they are of
    /// different devices; [`Error::Unsupported`] if the device has no tables; [`Error::Verb`] otherwise. See
    /// `ibv_create_rwq_ind_table(3)`.
    #[doc(alias = "ibv_create_rwq_ind_table")]
    pub fn create<Q: Into<Parent<'a, WorkQueue<'a>>>>(
        queues: impl IntoIterator<Item = Q>,
    ) -> Result<Self> {
        let queues: Box<[Parent<'a, WorkQueue<'a>>]> = queues.into_iter().map(Into::into).collect();
        let Some(first) = queues.first() else {
            return Err(Error::OutOfRange {
                what: ENTRIES,
                asked: 0,
                minimum: 1,
                maximum: u32::MAX.into(),
                remedy: None,
            });
        };
        let context = first.protection_domain().context();
        let limits = context.query_device()?;
        // A device that does not say how many it takes is asked anyway.
        let most = match limits.max_indirection_entries() {
            0 => u32::MAX,
            most => most,
        };
        let count = queues.len();
        Error::check_or(ENTRIES, count as u64, 1..=most.into(), DEVICE_LIMIT)?;
        if !count.is_power_of_two() {
            return Err(Error::Invalid {
                what: format!("{ENTRIES} cannot be {count}, which is not a power of two").into(),
                remedy: "name queues more than once until it is 1, 2, 4, 8 or so on",
            });
        }
        let context_of = |queue: &WorkQueue<'_>| queue.protection_domain().context().as_raw();
        if queues.iter().any(|queue| context_of(queue) != context.as_raw()) {
            return Err(Error::Invalid {
                what: "the work queues of a table are of different contexts".into(),
                remedy: "make all of them from one `Context`",
            });
        }
        let verb = Verb::new("ibv_create_rwq_ind_table");
        let mut list: Vec<_> = queues.iter().map(|queue| queue.as_raw()).collect();
        let mut attributes = rdma_sys::ibv_rwq_ind_table_init_attr {
            log_ind_tbl_size: count.trailing_zeros(),
            ind_tbl: list.as_mut_ptr(),
            comp_mask: 0,
        };
        let create = rdma_sys::ibv_create_rwq_ind_table;
        // SAFETY: the queues are held, and there are as many as the size says.
        let raw = unsafe { create(context.as_raw(), &raw mut attributes) };
        let raw = verb.object(verb.find(raw)?)?;
        Ok(Self { raw, queues })
    }

    /// Its work queues, in order.
    #[must_use]
    pub fn queues(&self) -> impl ExactSizeIterator<Item = &WorkQueue<'a>> {
        self.queues.iter().map(|queue| &**queue)
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_rwq_ind_table {
        self.raw.as_ptr()
    }
}

const ENTRIES: &str = "the number of entries of an indirection table";

impl Drop for IndirectionTable<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` is live, and nothing reads it after this. While a leaked queue pair has it the call is refused,
        // ibv_create_rwq_ind_table(3).
        if let Some(returned) = unsafe { rdma_sys::ibv_destroy_rwq_ind_table(self.as_raw()) } {
            Verb::new("ibv_destroy_rwq_ind_table").log_refusal(returned);
        }
    }
}

impl fmt::Debug for IndirectionTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndirectionTable").field("queues", &self.queues).finish_non_exhaustive()
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for IndirectionTable<'_> {}
// SAFETY: as for `Send`; nothing is changed through `&self`.
unsafe impl Sync for IndirectionTable<'_> {}

bitflags::bitflags! {
    /// What of a packet is hashed. A packet without any of the fields has the hash 0.
    ///
    /// Many devices (ConnectX) hash either IPv4 or IPv6, and either TCP or UDP, in one queue pair.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct HashFields: u64 {
        /// The address that an IPv4 packet comes from.
        const SOURCE_IPV4 = rdma_sys::IBV_RX_HASH_SRC_IPV4 as u64;
        /// The address that an IPv4 packet goes to.
        const DESTINATION_IPV4 = rdma_sys::IBV_RX_HASH_DST_IPV4 as u64;
        /// The address that an IPv6 packet comes from.
        const SOURCE_IPV6 = rdma_sys::IBV_RX_HASH_SRC_IPV6 as u64;
        /// The address that an IPv6 packet goes to.
        const DESTINATION_IPV6 = rdma_sys::IBV_RX_HASH_DST_IPV6 as u64;
        /// The port of TCP that it comes from.
        const SOURCE_TCP = rdma_sys::IBV_RX_HASH_SRC_PORT_TCP as u64;
        /// The port of TCP that it goes to.
        const DESTINATION_TCP = rdma_sys::IBV_RX_HASH_DST_PORT_TCP as u64;
        /// The port of UDP that it comes from.
        const SOURCE_UDP = rdma_sys::IBV_RX_HASH_SRC_PORT_UDP as u64;
        /// The port of UDP that it goes to.
        const DESTINATION_UDP = rdma_sys::IBV_RX_HASH_DST_PORT_UDP as u64;
        /// The index of the security association of an IPsec packet.
        const IPSEC_INDEX = rdma_sys::IBV_RX_HASH_IPSEC_SPI as u64;
        /// The fields named are those of the packet inside of a tunnel.
        const INNER = rdma_sys::IBV_RX_HASH_INNER as u64;

        /// Both addresses of IPv4.
        const IPV4 = Self::SOURCE_IPV4.bits() | Self::DESTINATION_IPV4.bits();
        /// Both addresses of IPv6.
        const IPV6 = Self::SOURCE_IPV6.bits() | Self::DESTINATION_IPV6.bits();
        /// Both ports of TCP.
        const TCP = Self::SOURCE_TCP.bits() | Self::DESTINATION_TCP.bits();
        /// Both ports of UDP.
        const UDP = Self::SOURCE_UDP.bits() | Self::DESTINATION_UDP.bits();
    }
}

/// The key of a Toeplitz hash: 40 bytes, as all devices with such queue pairs want it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u8; 40]);

impl HashKey {
    /// A key under which both directions of a connection have the same hash: two bytes, again and again, so that
    /// addresses and ports can change places. Others can guess it and send all their packets to one queue; a random key
    /// prevents that.
    pub const SYMMETRIC: Self = {
        let mut key = [0x6d; 40];
        let mut place = 1;
        while place < key.len() {
            key[place] = 0x5a;
            place += 2;
        }
        Self(key)
    };
}

/// A queue pair that only receives, and gives each frame that a [`Flow`](crate::Flow) leads to it to one of the work queues of a
/// table: the one that the last bits of the packet's hash name.
///
/// It has no states and no queues of its own; receives are posted to the [`WorkQueue`]s. Making one needs the capability
/// `CAP_NET_RAW`. Devices whose queue pairs of this kind have states (ConnectX-3) are not supported.
///
/// Not tried on hardware: on the software device only.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use ibverbs::{
///     CompletionQueue, Flow, FlowRule, HashFields, HashKey, IndirectionTable, Ipv4Match, PacketMatch,
///     PortNumber, ProtectionDomain, RssQueuePair, WorkQueue,
/// };
///
/// /// Four queues, one for each of four threads, share the packets of IPv4.
/// fn spread<'a>(
///     domain: &'a ProtectionDomain<'a>,
///     queues: [&'a CompletionQueue<'a>; 4],
///     port: PortNumber,
/// ) -> ibverbs::Result<(Vec<Arc<WorkQueue<'a>>>, Flow<'a>)> {
///     let make = |queue| {
///         let mut work = WorkQueue::builder(domain, queue).max_requests(256).create()?;
///         work.make_ready()?;
///         Ok(Arc::new(work))
///     };
///     let work = queues.into_iter().map(make).collect::<ibverbs::Result<Vec<_>>>()?;
///     let table = Arc::new(IndirectionTable::create(&work)?);
///     let fields = HashFields::IPV4 | HashFields::TCP;
///     let pair = Arc::new(RssQueuePair::create(domain, &table, &HashKey::SYMMETRIC, fields)?);
///     let rule = FlowRule::new(PacketMatch::new().ipv4(Ipv4Match::new()));
///     let flow = Flow::create(&pair, port, rule)?;
///     Ok((work, flow))
/// }
/// ```
pub struct RssQueuePair<'a> {
    /// From `ibv_create_qp_ex` in `domain`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_qp>,
    table: Parent<'a, IndirectionTable<'a>>,
    domain: Parent<'a, ProtectionDomain<'a>>,
}

impl<'a> RssQueuePair<'a> {
    /// Makes one of a domain and a table, each borrowed or shared (`&Arc<…>`), that spreads by the Toeplitz hash of `fields` under
    /// `key`. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if domain and table are of different devices, or if the device refuses fields of two versions of
    /// IP or of both TCP and UDP; [`Error::Unsupported`] if it has none; [`Error::Verb`] otherwise, `EPERM` without the
    /// capability `CAP_NET_RAW`, `EOPNOTSUPP` for a field that it does not hash. See `ibv_create_qp_ex(3)`.
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "ibv_rx_hash_conf")]
    pub fn create(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        table: impl Into<Parent<'a, IndirectionTable<'a>>>,
        key: &HashKey,
        fields: HashFields,
    ) -> Result<Self> {
        let (domain, table) = (domain.into(), table.into());
        let context = domain.context().as_raw();
        if table.queues().any(|it| it.protection_domain().context().as_raw() != context) {
            return Err(Error::Invalid {
                what: "a queue pair's indirection table and its domain are of different contexts"
                    .into(),
                remedy: "make both of them from one `Context`",
            });
        }
        let verb = Verb::new("ibv_create_qp_ex");
        let mut key = key.0;
        let mut attributes = rdma_sys::ibv_qp_init_attr_ex {
            qp_type: rdma_sys::IBV_QPT_RAW_PACKET,
            comp_mask: rdma_sys::IBV_QP_INIT_ATTR_PD
                | rdma_sys::IBV_QP_INIT_ATTR_IND_TABLE
                | rdma_sys::IBV_QP_INIT_ATTR_RX_HASH,
            pd: domain.as_raw(),
            rwq_ind_tbl: table.as_raw(),
            rx_hash_conf: rdma_sys::ibv_rx_hash_conf {
                rx_hash_function: TOEPLITZ,
                rx_hash_key_len: KEY_LENGTH,
                rx_hash_key: key.as_mut_ptr(),
                rx_hash_fields_mask: fields.bits(),
            },
            ..Default::default()
        };
        // SAFETY: context, domain and table are held, the key has the length that is told, and the struct says which
        // fields it has.
        let raw = unsafe { rdma_sys::ibv_create_qp_ex(context, &raw mut attributes) };
        let raw = verb.object(verb.find(raw)?).map_err(|error| explained(error, fields))?;
        Ok(Self { raw, table, domain })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> QueuePairNumber {
        // SAFETY: `raw` is live, and the number never changes.
        QueuePairNumber::from_device(unsafe { (*self.as_raw()).qp_num })
    }

    /// The table that it spreads by.
    #[must_use]
    pub fn indirection_table(&self) -> &IndirectionTable<'a> {
        &self.table
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        &self.domain
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.raw.as_ptr()
    }
}

const TOEPLITZ: u8 = {
    assert!(rdma_sys::IBV_RX_HASH_FUNC_TOEPLITZ == 1);
    1
};

const KEY_LENGTH: u8 = 40;

/// Names the likely cause of a refusal, which the device does not.
fn explained(error: Error, fields: HashFields) -> Error {
    let both = |a, b| fields.intersects(a) && fields.intersects(b);
    let two_of_a_kind =
        both(HashFields::IPV4, HashFields::IPV6) || both(HashFields::TCP, HashFields::UDP);
    if two_of_a_kind && error.errno() == Some(libc::EINVAL) {
        return Error::Invalid {
            what: "the device does not hash IPv4 and IPv6, or TCP and UDP, in one queue pair"
                .into(),
            remedy: "make one queue pair for each over the same table, and lead each kind of packet to its own by a flow",
        };
    }
    error
}

impl Drop for RssQueuePair<'_> {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = verb!(self.domain.context().library(), ibv_destroy_qp) {
            // SAFETY: `raw` is live, and nothing reads it after this. While a leaked flow leads here the call is refused.
            verb.log_refusal(unsafe { destroy(self.as_raw()) });
        }
    }
}

impl fmt::Debug for RssQueuePair<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RssQueuePair")
            .field("number", &self.number())
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for RssQueuePair<'_> {}
// SAFETY: as for `Send`; nothing is changed through `&self`.
unsafe impl Sync for RssQueuePair<'_> {}

impl DeviceAttributes {
    /// Most entries of an [`IndirectionTable`]; 0 if there are none, or the device does not say.
    #[must_use]
    #[doc(alias = "max_rwq_indirection_table_size")]
    pub fn max_indirection_entries(&self) -> u32 {
        self.as_raw().rss_caps.max_rwq_indirection_table_size
    }

    /// What of a packet an [`RssQueuePair`] can hash.
    #[must_use]
    #[doc(alias = "rx_hash_fields_mask")]
    pub fn hash_fields(&self) -> HashFields {
        HashFields::from_bits_truncate(self.as_raw().rss_caps.rx_hash_fields_mask)
    }

    /// Most [`WorkQueue`]s.
    #[must_use]
    #[doc(alias = "max_wq_type_rq")]
    pub fn max_work_queues(&self) -> u32 {
        self.as_raw().max_wq_type_rq
    }
}
