//! Changing attributes one by one, for what the typed states do not cover.

use std::time::Duration;

use super::{
    QueuePair, QueuePairState,
    connect::{receiver_not_ready_code, timeout_code},
    transition::Transition,
};
use crate::{
    Access, Address, Error, Mtu, PacketSequence, PortNumber, QueueKey, QueuePairNumber, Result,
    Transport,
};

/// Attributes to change, and perhaps the state to go to. See `ibv_modify_qp(3)`.
///
/// Each setter notes that its attribute is there. Which ones a change needs and takes depends on the transport and
/// the two states; a refusal says what is missing or too much.
///
/// # Examples
///
/// Letting the peer write only from now on:
///
/// ```
/// # use ibverbs::{Access, QueuePair, QueuePairChange, Rc};
/// # fn f(pair: &QueuePair<'_, Rc>) -> ibverbs::Result<()> {
/// pair.modify(&QueuePairChange::within().access(Access::REMOTE_WRITE)?)
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing changes before `QueuePair::modify`"]
pub struct QueuePairChange(Transition);

impl QueuePairChange {
    /// A change to a state.
    pub fn to(state: QueuePairState) -> Self {
        Self(Transition::to(state))
    }

    /// A change of attributes within the present state.
    pub fn within() -> Self {
        Self(Transition::within())
    }

    /// The state that it is expected to be in; the device refuses if it is in another.
    #[doc(alias = "cur_qp_state")]
    pub fn expected_state(self, state: QueuePairState) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_CUR_STATE, |to| to.cur_qp_state = state.0))
    }

    /// Asks for an event when the send queue has drained.
    #[doc(alias = "en_sqd_async_notify")]
    pub fn notify_when_drained(self) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_EN_SQD_ASYNC_NOTIFY, |to| to.en_sqd_async_notify = 1))
    }

    /// What the peer may ask of it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for anything but rights of peers.
    #[doc(alias = "qp_access_flags")]
    pub fn access(self, access: Access) -> Result<Self> {
        let remote = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT
            | Access::LOCAL_WRITE;
        if !remote.contains(access) {
            return Err(Error::Invalid {
                what: format!("a queue pair does not grant {:?}", access - remote).into(),
                remedy: "name REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC or the flushes",
            });
        }
        Ok(Self(
            self.0.with(rdma_sys::IBV_QP_ACCESS_FLAGS, |to| to.qp_access_flags = access.bits()),
        ))
    }

    /// The place of the partition key in the port's table.
    pub fn pkey_index(self, index: u16) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_PKEY_INDEX, |to| to.pkey_index = index))
    }

    /// The port.
    pub fn port(self, port: PortNumber) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_PORT, |to| to.port_num = port.get()))
    }

    /// The key that datagrams to it must carry.
    #[doc(alias = "qkey")]
    pub fn queue_key(self, key: QueueKey) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_QKEY, |to| to.qkey = key.0))
    }

    /// How packets find the peer.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a service level or flow label that cannot be.
    #[doc(alias = "ah_attr")]
    pub fn address(self, address: &Address) -> Result<Self> {
        let raw = address.to_raw()?;
        Ok(Self(self.0.with(rdma_sys::IBV_QP_AV, |to| to.ah_attr = raw)))
    }

    /// Another way to the peer, to which the connection can migrate (InfiniBand), with its timeout.
    ///
    /// # Errors
    ///
    /// As for [`address`](Self::address).
    #[doc(alias = "alt_ah_attr")]
    pub fn alternate_address(
        self,
        address: &Address,
        pkey_index: u16,
        timeout: Duration,
    ) -> Result<Self> {
        let raw = address.to_raw()?;
        Ok(Self(self.0.with(rdma_sys::IBV_QP_ALT_PATH, |to| {
            to.alt_ah_attr = raw;
            to.alt_port_num = raw.port_num;
            to.alt_pkey_index = pkey_index;
            to.alt_timeout = timeout_code(timeout);
        })))
    }

    /// The MTU of the path.
    #[doc(alias = "path_mtu")]
    pub fn mtu(self, mtu: Mtu) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_PATH_MTU, |to| to.path_mtu = mtu.code().into()))
    }

    /// How long to wait for an answer, rounded up as for [`ConnectOptions`](crate::ConnectOptions::timeout).
    pub fn timeout(self, timeout: Duration) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_TIMEOUT, |to| to.timeout = timeout_code(timeout)))
    }

    /// How often to send again before giving up, at most 7.
    #[doc(alias = "retry_cnt")]
    pub fn retries(self, retries: u8) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_RETRY_CNT, |to| to.retry_cnt = retries))
    }

    /// How often to try again while the peer has no receive posted, at most 7, which is for ever.
    #[doc(alias = "rnr_retry")]
    pub fn receiver_not_ready_retries(self, retries: u8) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_RNR_RETRY, |to| to.rnr_retry = retries))
    }

    /// How long the peer waits while this side has no receive posted, rounded up to a step.
    #[doc(alias = "min_rnr_timer")]
    pub fn receiver_not_ready_timer(self, timer: Duration) -> Self {
        let code = receiver_not_ready_code(timer);
        Self(self.0.with(rdma_sys::IBV_QP_MIN_RNR_TIMER, |to| to.min_rnr_timer = code))
    }

    /// The number of the first packet that it expects.
    #[doc(alias = "rq_psn")]
    pub fn first_received_packet(self, number: PacketSequence) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_RQ_PSN, |to| to.rq_psn = number.get()))
    }

    /// The number of the first packet that it sends.
    #[doc(alias = "sq_psn")]
    pub fn first_sent_packet(self, number: PacketSequence) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_SQ_PSN, |to| to.sq_psn = number.get()))
    }

    /// How many reads and atomics of its own can be outstanding.
    #[doc(alias = "max_rd_atomic")]
    pub fn outgoing_reads(self, count: u8) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_MAX_QP_RD_ATOMIC, |to| to.max_rd_atomic = count))
    }

    /// How many reads and atomics of the peer it answers at a time.
    #[doc(alias = "max_dest_rd_atomic")]
    pub fn incoming_reads(self, count: u8) -> Self {
        let mask = rdma_sys::IBV_QP_MAX_DEST_RD_ATOMIC;
        Self(self.0.with(mask, |to| to.max_dest_rd_atomic = count))
    }

    /// The queue pair it talks to.
    #[doc(alias = "dest_qp_num")]
    pub fn peer(self, number: QueuePairNumber) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_DEST_QPN, |to| to.dest_qp_num = number.get()))
    }

    /// The migration state, as the number of `ibv_mig_state`.
    #[doc(alias = "path_mig_state")]
    pub fn migration_state(self, state: u32) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_PATH_MIG_STATE, |to| to.path_mig_state = state))
    }

    /// How many kilobits a second it may send; 0 is as many as it can. Raw packet queue pairs only;
    /// others have [`QueuePair::set_rate_limit`].
    pub fn rate_limit(self, kilobits: u32) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_RATE_LIMIT, |to| to.rate_limit = kilobits))
    }

    /// How many requests its queues hold. Few devices can change that.
    #[doc(alias = "cap")]
    pub fn capacity(self, send_requests: u32, receive_requests: u32) -> Self {
        Self(self.0.with(rdma_sys::IBV_QP_CAP, |to| {
            to.cap.max_send_wr = send_requests;
            to.cap.max_recv_wr = receive_requests;
        }))
    }
}

impl<T: Transport, S> QueuePair<'_, T, S> {
    /// Changes attributes, and perhaps the state. Enters the kernel.
    ///
    /// The type does not follow: [`into_state`](Self::into_state) gives it the type of the state that the device says
    /// it is in.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`] if the device refuses, with the attributes that are missing or too much. See `ibv_modify_qp(3)`.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, change: &QueuePairChange) -> Result<()> {
        self.handle.apply(change.0)
    }
}
