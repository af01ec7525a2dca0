//! What the device says about a queue pair.

use std::time::Duration;

use super::{Capabilities, QueuePair, QueuePairState, connect};
use crate::{
    Access, Address, Addressing, Mtu, PacketSequence, PortNumber, QueueKey, QueuePairNumber,
    Result, Transport, error::verb,
};

impl<T: Transport, S> QueuePair<'_, T, S> {
    /// Its state and attributes, as the device has them. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the device is gone. See `ibv_query_qp(3)`.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QueuePairAttributes> {
        let (verb, query) = verb!(self.handle.library(), ibv_query_qp)?;
        let mut attributes = rdma_sys::ibv_qp_attr::default();
        let mut initial = rdma_sys::ibv_qp_init_attr::default();
        let mask = match T::ADDRESSING {
            Addressing::Datagram => OF_DATAGRAMS,
            Addressing::Peer | Addressing::SharedQueue => EVERYTHING,
        };
        let mask = mask.cast_signed();
        // SAFETY: `raw` is live, and both structs are valid places.
        let returned = unsafe { query(self.as_raw(), &raw mut attributes, mask, &raw mut initial) };
        verb.status(returned)?;
        Ok(QueuePairAttributes { attributes, initial })
    }
}

/// What a queue pair without connection has. The kernel's driver for EFA refuses to be asked for more.
const OF_DATAGRAMS: u32 = rdma_sys::IBV_QP_STATE
    | rdma_sys::IBV_QP_PKEY_INDEX
    | rdma_sys::IBV_QP_PORT
    | rdma_sys::IBV_QP_QKEY
    | rdma_sys::IBV_QP_SQ_PSN
    | rdma_sys::IBV_QP_CAP;

/// Every attribute that `ibv_query_qp(3)` lists; a device fills those that the transport has.
const EVERYTHING: u32 = rdma_sys::IBV_QP_STATE
    | rdma_sys::IBV_QP_CUR_STATE
    | rdma_sys::IBV_QP_EN_SQD_ASYNC_NOTIFY
    | rdma_sys::IBV_QP_ACCESS_FLAGS
    | rdma_sys::IBV_QP_PKEY_INDEX
    | rdma_sys::IBV_QP_PORT
    | rdma_sys::IBV_QP_QKEY
    | rdma_sys::IBV_QP_AV
    | rdma_sys::IBV_QP_PATH_MTU
    | rdma_sys::IBV_QP_TIMEOUT
    | rdma_sys::IBV_QP_RETRY_CNT
    | rdma_sys::IBV_QP_RNR_RETRY
    | rdma_sys::IBV_QP_RQ_PSN
    | rdma_sys::IBV_QP_MAX_QP_RD_ATOMIC
    | rdma_sys::IBV_QP_ALT_PATH
    | rdma_sys::IBV_QP_MIN_RNR_TIMER
    | rdma_sys::IBV_QP_SQ_PSN
    | rdma_sys::IBV_QP_MAX_DEST_RD_ATOMIC
    | rdma_sys::IBV_QP_PATH_MIG_STATE
    | rdma_sys::IBV_QP_CAP
    | rdma_sys::IBV_QP_DEST_QPN;

/// What the device says about a queue pair. See `ibv_query_qp(3)`.
#[derive(Debug, Clone, Copy)]
pub struct QueuePairAttributes {
    attributes: rdma_sys::ibv_qp_attr,
    initial: rdma_sys::ibv_qp_init_attr,
}

impl QueuePairAttributes {
    /// Its state.
    #[must_use]
    pub fn state(&self) -> QueuePairState {
        QueuePairState(self.attributes.qp_state)
    }

    /// The peer it is connected to.
    #[must_use]
    pub fn peer(&self) -> QueuePairNumber {
        QueuePairNumber::from_device(self.attributes.dest_qp_num)
    }

    /// What peers may ask of it.
    #[must_use]
    pub fn access(&self) -> Access {
        Access::from_bits_truncate(self.attributes.qp_access_flags)
    }

    /// The port it uses; `None` before it was initialized.
    #[must_use]
    pub fn port(&self) -> Option<PortNumber> {
        PortNumber::new(self.attributes.port_num).ok()
    }

    /// The place of its partition key in the port's table.
    #[must_use]
    pub fn pkey_index(&self) -> u16 {
        self.attributes.pkey_index
    }

    /// The key that datagrams to it must carry.
    #[must_use]
    pub fn queue_key(&self) -> QueueKey {
        QueueKey(self.attributes.qkey)
    }

    /// How its packets find the peer.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::from_raw(self.attributes.ah_attr)
    }

    /// The MTU of its path; `None` before it was connected.
    #[must_use]
    pub fn mtu(&self) -> Option<Mtu> {
        u8::try_from(self.attributes.path_mtu).ok().and_then(|code| Mtu::from_code(code).ok())
    }

    /// The number of the next packet that it expects, and of the next that it sends. Devices differ in whether they keep
    /// these up to date.
    #[must_use]
    pub fn packets(&self) -> (PacketSequence, PacketSequence) {
        let rdma_sys::ibv_qp_attr { rq_psn, sq_psn, .. } = self.attributes;
        (PacketSequence::from_device(rq_psn), PacketSequence::from_device(sq_psn))
    }

    /// How long it waits for an answer before it sends again; zero is for ever.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        connect::timeout_of(self.attributes.timeout)
    }

    /// How often it sends again before giving up.
    #[must_use]
    pub fn retries(&self) -> u8 {
        self.attributes.retry_cnt
    }

    /// How often it tries again while the peer has no receive posted; 7 is for ever.
    #[must_use]
    pub fn receiver_not_ready_retries(&self) -> u8 {
        self.attributes.rnr_retry
    }

    /// How long its peer waits while it has no receive posted.
    #[must_use]
    pub fn receiver_not_ready_timer(&self) -> Duration {
        connect::receiver_not_ready_of(self.attributes.min_rnr_timer)
    }

    /// How many reads and atomics of the peer it answers at a time.
    #[must_use]
    pub fn incoming_reads(&self) -> u8 {
        self.attributes.max_dest_rd_atomic
    }

    /// How many reads and atomics of its own can be outstanding.
    #[must_use]
    pub fn outgoing_reads(&self) -> u8 {
        self.attributes.max_rd_atomic
    }

    /// How much it holds.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::from_raw(self.attributes.cap)
    }

    /// What it was made to hold, as the device remembers it.
    #[must_use]
    pub fn initial_capabilities(&self) -> Capabilities {
        Capabilities::from_raw(self.initial.cap)
    }

    /// Whether each request of its send queue reports, as it was made.
    #[must_use]
    pub fn signals_all(&self) -> bool {
        self.initial.sq_sig_all != 0
    }

    /// All attributes, as C has them.
    #[must_use]
    pub fn as_raw(&self) -> &rdma_sys::ibv_qp_attr {
        &self.attributes
    }

    /// What it was made with, as C has it.
    #[must_use]
    pub fn initial_as_raw(&self) -> &rdma_sys::ibv_qp_init_attr {
        &self.initial
    }
}
