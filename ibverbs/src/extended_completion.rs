//! Completions of extended queues: the fields that were asked for.
#![expect(unsafe_code, reason = "reads the current completion of an ibv_cq_ex")]

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rdma_sys::ibv_cq_ex;

use crate::{CompletionStatus, FailedWork, Operation, QueuePairNumber, RemoteKey};

bitflags::bitflags! {
    /// What an extended completion queue reads of each completion, besides number and status.
    ///
    /// Each field costs a call into the provider per completion. Ask the device's documentation for which
    /// it has; a queue with others cannot be made.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct CompletionFields: u64 {
        /// How many bytes arrived.
        const BYTE_LENGTH = rdma_sys::IBV_WC_EX_WITH_BYTE_LEN as u64;
        /// The immediate, or the key that was invalidated.
        const IMMEDIATE = rdma_sys::IBV_WC_EX_WITH_IMM as u64;
        /// The queue pair. Failures name it in any case.
        const QUEUE_PAIR = rdma_sys::IBV_WC_EX_WITH_QP_NUM as u64;
        /// The queue pair that sent a datagram.
        const SOURCE_QUEUE_PAIR = rdma_sys::IBV_WC_EX_WITH_SRC_QP as u64;
        /// The local identifier of the port that sent a datagram.
        const SOURCE_LID = rdma_sys::IBV_WC_EX_WITH_SLID as u64;
        /// The service level.
        const SERVICE_LEVEL = rdma_sys::IBV_WC_EX_WITH_SL as u64;
        /// Which of the port's local identifiers a datagram was sent to.
        const PATH_BITS = rdma_sys::IBV_WC_EX_WITH_DLID_PATH_BITS as u64;
        /// When the device finished the work, on its own clock.
        const TIMESTAMP = rdma_sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP as u64;
        /// The tag of a VLAN that was taken out of a raw packet.
        const VLAN = rdma_sys::IBV_WC_EX_WITH_CVLAN as u64;
        /// The tag of the flow rule that matched a raw packet.
        const FLOW_TAG = rdma_sys::IBV_WC_EX_WITH_FLOW_TAG as u64;
        /// What kind of work it was, and whether a routing header stands before a datagram. Every device
        /// has this.
        const OPERATION = 1 << 63;
        /// When the device finished the work, in the time of day.
        const WALL_CLOCK = rdma_sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK as u64;
    }
}

/// One finished work request of an extended queue, copied out.
///
/// On failure C leaves most fields undefined, so that they are reached through [`outcome`](Self::outcome) only.
#[derive(Clone, Copy, Default)]
pub struct ExtendedCompletion {
    /// Which of the fields below are read of a completion that succeeded.
    fields: CompletionFields,
    id: u64,
    timestamp: u64,
    wall_clock: u64,
    status: u32,
    operation: u32,
    vendor_error: u32,
    flags: u32,
    byte_length: u32,
    /// In network order if it is an immediate.
    immediate: u32,
    queue_pair: u32,
    source_queue_pair: u32,
    source_lid: u32,
    flow_tag: u32,
    vlan: u16,
    service_level: u8,
    path_bits: u8,
}

impl ExtendedCompletion {
    /// Room for a completion of a queue with `fields`.
    pub(crate) fn new(fields: CompletionFields) -> Self {
        Self { fields, ..Self::default() }
    }

    /// Copies the completion that a queue is on over this one. What is not read keeps what was there, and is
    /// not shown.
    ///
    /// # Safety
    ///
    /// The queue is live, between a start or next that returned 0 and the end, and has the entries that every
    /// extended queue needs, and those of `fields`, which this was made for: given once more, so that a loop
    /// need not look into each.
    #[inline]
    pub(crate) unsafe fn read(&mut self, cq: *mut ibv_cq_ex, fields: CompletionFields) {
        // SAFETY: by this function's contract.
        self.id = unsafe { (*cq).wr_id };
        // SAFETY: as above.
        self.status = unsafe { (*cq).status };
        if self.status != rdma_sys::IBV_WC_SUCCESS {
            // SAFETY: as above.
            self.vendor_error = unsafe { rdma_sys::ibv_wc_read_vendor_err(cq) };
            // SAFETY: as above.
            self.queue_pair = unsafe { rdma_sys::ibv_wc_read_qp_num(cq) };
            return;
        }
        if !fields.is_empty() {
            // SAFETY: as above.
            unsafe { self.read_fields(cq, fields) };
        }
    }

    /// # Safety
    ///
    /// As for [`read`](Self::read), on a completion that succeeded.
    unsafe fn read_fields(&mut self, cq: *mut ibv_cq_ex, fields: CompletionFields) {
        /// Reads a field if it was asked for.
        macro_rules! read {
            ($(self.$place:ident = $verb:ident if $($field:ident)|+;)*) => {
                $(
                    if fields.intersects($(CompletionFields::$field)|+) {
                        // SAFETY: by this function's contract.
                        self.$place = unsafe { rdma_sys::$verb(cq) };
                    }
                )*
            };
        }
        read! {
            self.operation = ibv_wc_read_opcode if OPERATION;
            self.flags = ibv_wc_read_wc_flags if OPERATION | IMMEDIATE;
            self.byte_length = ibv_wc_read_byte_len if BYTE_LENGTH;
            self.immediate = ibv_wc_read_imm_data if IMMEDIATE;
            self.queue_pair = ibv_wc_read_qp_num if QUEUE_PAIR;
            self.timestamp = ibv_wc_read_completion_ts if TIMESTAMP;
            self.wall_clock = ibv_wc_read_completion_wallclock_ns if WALL_CLOCK;
            self.source_queue_pair = ibv_wc_read_src_qp if SOURCE_QUEUE_PAIR;
        }
        if fields.intersects(Self::RARE) {
            read! {
                self.source_lid = ibv_wc_read_slid if SOURCE_LID;
                self.service_level = ibv_wc_read_sl if SERVICE_LEVEL;
                self.path_bits = ibv_wc_read_dlid_path_bits if PATH_BITS;
                self.vlan = ibv_wc_read_cvlan if VLAN;
                self.flow_tag = ibv_wc_read_flow_tag if FLOW_TAG;
            }
        }
    }

    /// Fields that most queues do not ask for.
    const RARE: CompletionFields = CompletionFields::SOURCE_LID
        .union(CompletionFields::SERVICE_LEVEL)
        .union(CompletionFields::PATH_BITS)
        .union(CompletionFields::VLAN)
        .union(CompletionFields::FLOW_TAG);

    /// The number that the request was given.
    #[must_use]
    #[inline]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// How it went.
    #[must_use]
    #[inline]
    pub const fn status(&self) -> CompletionStatus {
        CompletionStatus(self.status)
    }

    /// What the request did, or why it failed.
    ///
    /// # Errors
    ///
    /// [`FailedWork`] with the status. Requests that were still queued behind a failed one end as
    /// [`CompletionStatus::WORK_FLUSHED`]: look at the first failure.
    #[inline]
    pub fn outcome(&self) -> Result<ExtendedWork<'_>, FailedWork> {
        if self.status == rdma_sys::IBV_WC_SUCCESS {
            Ok(ExtendedWork(self))
        } else {
            Err(FailedWork {
                id: self.id,
                status: self.status(),
                vendor_error: self.vendor_error,
                queue_pair: QueuePairNumber::from_device(self.queue_pair),
            })
        }
    }
}

impl fmt::Debug for ExtendedCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outcome().fmt(f)
    }
}

/// What a request did that succeeded. A field that its queue was not made with is `None`.
#[derive(Clone, Copy)]
pub struct ExtendedWork<'c>(&'c ExtendedCompletion);

impl ExtendedWork<'_> {
    /// The number that the request was given.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.0.id
    }

    /// What kind of work it was.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        self.field(CompletionFields::OPERATION, Operation(self.0.operation))
    }

    /// Bytes that arrived, for receives; with a datagram queue pair the 40 bytes of routing header count.
    #[must_use]
    pub fn byte_length(&self) -> Option<u32> {
        self.field(CompletionFields::BYTE_LENGTH, self.0.byte_length)
    }

    /// The immediate that came with the message, host order; `None` also if it came without.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        let there = self.has(rdma_sys::IBV_WC_WITH_IMM);
        let immediate = u32::from_be(self.0.immediate);
        self.field(CompletionFields::IMMEDIATE, immediate).filter(|_| there)
    }

    /// The key that the message invalidated; `None` also if it invalidated none.
    #[must_use]
    pub fn invalidated_key(&self) -> Option<RemoteKey> {
        let there = self.has(rdma_sys::IBV_WC_WITH_INV);
        let key = RemoteKey(self.0.immediate);
        self.field(CompletionFields::IMMEDIATE, key).filter(|_| there)
    }

    /// Whether a routing header stands before the payload of a datagram, in the first 40 bytes.
    #[must_use]
    pub fn has_routing_header(&self) -> Option<bool> {
        self.field(CompletionFields::OPERATION, self.has(rdma_sys::IBV_WC_GRH))
    }

    /// As [`FinishedWork::has_right_checksums`](crate::FinishedWork::has_right_checksums).
    #[must_use]
    #[doc(alias = "IBV_WC_IP_CSUM_OK")]
    pub fn has_right_checksums(&self) -> Option<bool> {
        self.field(CompletionFields::OPERATION, self.has(rdma_sys::IBV_WC_IP_CSUM_OK))
    }

    /// The queue pair whose request this was.
    #[must_use]
    pub fn queue_pair(&self) -> Option<QueuePairNumber> {
        let number = QueuePairNumber::from_device(self.0.queue_pair);
        self.field(CompletionFields::QUEUE_PAIR, number)
    }

    /// The queue pair that sent the datagram.
    #[must_use]
    pub fn source_queue_pair(&self) -> Option<QueuePairNumber> {
        let number = QueuePairNumber::from_device(self.0.source_queue_pair);
        self.field(CompletionFields::SOURCE_QUEUE_PAIR, number)
    }

    /// The local identifier of the port that sent the datagram; InfiniBand only.
    #[must_use]
    pub fn source_lid(&self) -> Option<u32> {
        self.field(CompletionFields::SOURCE_LID, self.0.source_lid)
    }

    /// The service level of the message; InfiniBand only.
    #[must_use]
    pub fn service_level(&self) -> Option<u8> {
        self.field(CompletionFields::SERVICE_LEVEL, self.0.service_level)
    }

    /// Which of the port's local identifiers the datagram was sent to; InfiniBand only.
    #[must_use]
    pub fn path_bits(&self) -> Option<u8> {
        self.field(CompletionFields::PATH_BITS, self.0.path_bits)
    }

    /// When the device finished the work, in ticks of [its clock](crate::Context::device_clock).
    #[must_use]
    pub fn timestamp(&self) -> Option<u64> {
        self.field(CompletionFields::TIMESTAMP, self.0.timestamp)
    }

    /// When the device finished the work.
    #[must_use]
    pub fn wall_clock(&self) -> Option<SystemTime> {
        let since = Duration::from_nanos(self.0.wall_clock);
        self.field(CompletionFields::WALL_CLOCK, since).map(|since| UNIX_EPOCH + since)
    }

    /// The tag of a VLAN, priority and number, that was [taken out](crate::QueuePairBuilder::strip_vlan) of the frame; 0 if none was.
    #[must_use]
    pub fn vlan(&self) -> Option<u16> {
        self.field(CompletionFields::VLAN, self.0.vlan)
    }

    /// The [tag](crate::FlowRule::tag) of the rule by which the frame came; 0 if it has none.
    #[must_use]
    pub fn flow_tag(&self) -> Option<u32> {
        self.field(CompletionFields::FLOW_TAG, self.0.flow_tag)
    }

    fn field<V>(&self, field: CompletionFields, value: V) -> Option<V> {
        self.0.fields.contains(field).then_some(value)
    }

    const fn has(&self, flag: u32) -> bool {
        self.0.flags & flag != 0
    }
}

impl fmt::Debug for ExtendedWork<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedWork")
            .field("id", &self.id())
            .field("operation", &self.operation())
            .field("byte_length", &self.byte_length())
            .field("immediate", &self.immediate())
            .field("timestamp", &self.timestamp())
            .finish_non_exhaustive()
    }
}
