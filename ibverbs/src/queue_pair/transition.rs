//! State changes: one constructor each, with every attribute that the change requires.

use std::io;

use rdma_sys::ibv_qp_attr;

use super::{QueuePairState, rules};
use crate::{Error, Result, error::verb};

/// A change of state: the attributes and which of them are there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transition {
    attributes: ibv_qp_attr,
    mask: u32,
}

impl Transition {
    pub(super) fn to(state: QueuePairState) -> Self {
        let attributes = ibv_qp_attr { qp_state: state.0, ..Default::default() };
        Self { attributes, mask: rdma_sys::IBV_QP_STATE }
    }

    /// A change whose attributes the kernel's connection manager has filled in.
    pub(crate) fn given(attributes: ibv_qp_attr, mask: u32) -> Self {
        // Bits 21 to 24 are the kernel's own (addresses of the Ethernet link), which no library takes back.
        Self { attributes, mask: mask & !0x01e0_0000 }
    }

    /// What both sides of a connection that the connection manager makes agreed on, and this side's own choices, on the
    /// way to ready-to-receive.
    pub(crate) fn agreed(
        self,
        access: u32,
        receiver_not_ready_timer: u8,
        incoming_reads: Option<u8>,
    ) -> Self {
        let has = |bit| self.mask & bit != 0;
        let (timer, reads) =
            (has(rdma_sys::IBV_QP_MIN_RNR_TIMER), has(rdma_sys::IBV_QP_MAX_DEST_RD_ATOMIC));
        self.with(rdma_sys::IBV_QP_ACCESS_FLAGS, |attributes| {
            attributes.qp_access_flags = access;
            if timer {
                attributes.min_rnr_timer = receiver_not_ready_timer;
            }
            if let (true, Some(incoming_reads)) = (reads, incoming_reads) {
                attributes.max_dest_rd_atomic = incoming_reads;
            }
        })
    }

    /// How many reads this side may have under way, where the connection manager does not know it yet.
    pub(crate) fn outgoing_reads(self, count: u8) -> Self {
        if self.mask & rdma_sys::IBV_QP_MAX_QP_RD_ATOMIC == 0 {
            return self;
        }
        self.with(rdma_sys::IBV_QP_MAX_QP_RD_ATOMIC, |attributes| attributes.max_rd_atomic = count)
    }

    /// A change of attributes that leaves the state as it is.
    pub(crate) fn within() -> Self {
        Self { attributes: ibv_qp_attr::default(), mask: 0 }
    }

    /// Carries it out. Enters the kernel.
    ///
    /// # Safety
    ///
    /// `qp` is a live queue pair of this library.
    pub(crate) unsafe fn apply(
        mut self,
        qp: *mut rdma_sys::ibv_qp,
        library: &rdma_sys::Library,
    ) -> Result<()> {
        if self.mask == 0 {
            return Ok(());
        }
        let (verb, modify) = verb!(library, ibv_modify_qp)?;
        let mask = self.mask.cast_signed();
        // SAFETY: the caller says that it is live, and the mask says which attributes are set.
        let returned = unsafe { modify(qp, &raw mut self.attributes, mask) };
        verb.status(returned).map_err(|error| {
            let Error::Verb { source, .. } = error else { return error };
            // SAFETY: as above.
            let from = unsafe { state_of(qp, library) };
            let changes = self.mask & rdma_sys::IBV_QP_STATE != 0;
            let to = if changes { QueuePairState(self.attributes.qp_state) } else { from };
            // SAFETY: as above; the number never changes.
            let number = unsafe { (*qp).qp_num };
            // SAFETY: as above; the type never changes.
            let kind = unsafe { (*qp).qp_type };
            let objection = match source.raw_os_error() {
                Some(libc::EINVAL) if from != UNKNOWN => {
                    rules::objection(kind, from, to, self.mask)
                }
                _ => None,
            };
            Error::Transition {
                number,
                from: from.name(),
                to: to.name(),
                reason: objection.unwrap_or_else(|| self.likely_cause(&source)),
                source,
            }
        })
    }

    /// Leaves out what a transport does not have for this change.
    pub(crate) fn only_for(mut self, transport: u32, from: QueuePairState) -> Self {
        let to = QueuePairState(self.attributes.qp_state);
        if let Some(rules::Rule { required, optional }) = rules::rule(transport, from, to) {
            self.mask &= required | optional | rdma_sys::IBV_QP_STATE;
        }
        self
    }

    /// What to look at, given the errno.
    fn likely_cause(&self, error: &io::Error) -> String {
        let attributes = &self.attributes;
        let route = &attributes.ah_attr.grh;
        match (QueuePairState(attributes.qp_state), error.raw_os_error()) {
            (QueuePairState::INITIALIZED, Some(libc::EINVAL)) => format!(
                "port {}, partition key index {} or access {:#x} is not what the device has",
                attributes.port_num, attributes.pkey_index, attributes.qp_access_flags
            ),
            (
                QueuePairState::READY_TO_RECEIVE,
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT | libc::ENODEV),
            ) => format!(
                "no route from GID {} to the peer's GID {}: check that both are of one network, that the \
                 interfaces are up, and that the peer answers ARP or neighbour discovery",
                route.sgid_index,
                peer_gid(attributes)
            ),
            (QueuePairState::READY_TO_RECEIVE, Some(libc::EINVAL)) => format!(
                "GID index {}, the peer's GID {}, MTU code {} or {} incoming reads are not what the device \
                 and the network can do",
                route.sgid_index,
                peer_gid(attributes),
                attributes.path_mtu,
                attributes.max_dest_rd_atomic
            ),
            (QueuePairState::READY_TO_SEND, Some(libc::EINVAL)) => format!(
                "{} outgoing reads, timeout code {} or the retry counts are over the device's limits",
                attributes.max_rd_atomic, attributes.timeout
            ),
            (_, Some(libc::EINVAL)) => {
                "this change is not allowed from its present state".to_owned()
            }
            _ => "the device refused".to_owned(),
        }
    }

    /// Adds attributes and says which they are.
    pub(super) fn with(mut self, mask: u32, set: impl FnOnce(&mut ibv_qp_attr)) -> Self {
        set(&mut self.attributes);
        self.mask |= mask;
        self
    }
}

/// What a queue pair is in that does not say it.
const UNKNOWN: QueuePairState = QueuePairState(u32::MAX);

/// The state that the device says a queue pair is in. Enters the kernel.
///
/// The field `state` of the C object is not read: changes by other threads write it meanwhile, without a lock, and it does
/// not know of the device's own.
///
/// # Safety
///
/// `qp` is a live queue pair of this library.
unsafe fn state_of(qp: *mut rdma_sys::ibv_qp, library: &rdma_sys::Library) -> QueuePairState {
    let mut attributes = ibv_qp_attr::default();
    let mut initial = rdma_sys::ibv_qp_init_attr::default();
    let (places, mask) = ((&raw mut attributes, &raw mut initial), rdma_sys::IBV_QP_STATE);
    let answered = verb!(library, ibv_query_qp).and_then(|(verb, query)| {
        // SAFETY: the caller says that it is live, and both structs are valid places.
        verb.status(unsafe { query(qp, places.0, mask.cast_signed(), places.1) })
    });
    if answered.is_ok() { QueuePairState(attributes.qp_state) } else { UNKNOWN }
}

fn peer_gid(attributes: &ibv_qp_attr) -> crate::Gid {
    crate::Gid::from_raw(attributes.ah_attr.grh.dgid)
}

/// To the error state, from any.
pub(crate) fn to_error() -> Transition {
    Transition::to(QueuePairState::ERROR)
}

/// Back to reset, from any.
pub(crate) fn to_reset() -> Transition {
    Transition::to(QueuePairState::RESET)
}

/// From reset to initialized, for connected transports.
pub(crate) fn to_initialized(port: u8, pkey_index: u16, access: u32) -> Transition {
    let mask = rdma_sys::IBV_QP_PORT | rdma_sys::IBV_QP_PKEY_INDEX | rdma_sys::IBV_QP_ACCESS_FLAGS;
    Transition::to(QueuePairState::INITIALIZED).with(mask, |attributes| {
        attributes.port_num = port;
        attributes.pkey_index = pkey_index;
        attributes.qp_access_flags = access;
    })
}

/// From reset to initialized, for datagrams.
pub(crate) fn to_initialized_for_datagrams(port: u8, pkey_index: u16, key: u32) -> Transition {
    let mask = rdma_sys::IBV_QP_PORT | rdma_sys::IBV_QP_PKEY_INDEX | rdma_sys::IBV_QP_QKEY;
    Transition::to(QueuePairState::INITIALIZED).with(mask, |attributes| {
        attributes.port_num = port;
        attributes.pkey_index = pkey_index;
        attributes.qkey = key;
    })
}

/// From reset to initialized, for raw packets.
pub(crate) fn to_initialized_for_raw_packets(port: u8) -> Transition {
    Transition::to(QueuePairState::INITIALIZED)
        .with(rdma_sys::IBV_QP_PORT, |attributes| attributes.port_num = port)
}

/// From ready-to-receive to ready-to-send, for raw packets.
pub(crate) fn to_ready_to_send_without_peer() -> Transition {
    Transition::to(QueuePairState::READY_TO_SEND)
}

/// From initialized to ready-to-receive, for datagrams and raw packets.
pub(crate) fn to_ready_to_receive_without_peer() -> Transition {
    Transition::to(QueuePairState::READY_TO_RECEIVE)
}

/// What ready-to-receive needs on every connected transport.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub(crate) address: rdma_sys::ibv_ah_attr,
    pub(crate) mtu: u8,
    pub(crate) peer: u32,
    pub(crate) first_packet: u32,
}

/// From initialized to ready-to-receive, for connected transports.
pub(crate) fn to_ready_to_receive(path: Path) -> Transition {
    let mask = rdma_sys::IBV_QP_AV
        | rdma_sys::IBV_QP_PATH_MTU
        | rdma_sys::IBV_QP_DEST_QPN
        | rdma_sys::IBV_QP_RQ_PSN;
    Transition::to(QueuePairState::READY_TO_RECEIVE).with(mask, |attributes| {
        attributes.ah_attr = path.address;
        attributes.path_mtu = path.mtu.into();
        attributes.dest_qp_num = path.peer;
        attributes.rq_psn = path.first_packet;
    })
}

/// From ready-to-receive to ready-to-send.
pub(crate) fn to_ready_to_send(first_packet: u32) -> Transition {
    Transition::to(QueuePairState::READY_TO_SEND)
        .with(rdma_sys::IBV_QP_SQ_PSN, |attributes| attributes.sq_psn = first_packet)
}

impl Transition {
    /// What the answering end of a reliable connection needs besides.
    pub(crate) fn reliable_receiver(
        self,
        incoming_reads: u8,
        receiver_not_ready_timer: u8,
    ) -> Self {
        let mask = rdma_sys::IBV_QP_MAX_DEST_RD_ATOMIC | rdma_sys::IBV_QP_MIN_RNR_TIMER;
        self.with(mask, |attributes| {
            attributes.max_dest_rd_atomic = incoming_reads;
            attributes.min_rnr_timer = receiver_not_ready_timer;
        })
    }

    /// What the asking end of a reliable connection needs besides.
    pub(crate) fn reliable_sender(
        self,
        timeout: u8,
        retries: u8,
        receiver_not_ready_retries: u8,
        outgoing_reads: u8,
    ) -> Self {
        let mask = rdma_sys::IBV_QP_TIMEOUT
            | rdma_sys::IBV_QP_RETRY_CNT
            | rdma_sys::IBV_QP_RNR_RETRY
            | rdma_sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.with(mask, |attributes| {
            attributes.timeout = timeout;
            attributes.retry_cnt = retries;
            attributes.rnr_retry = receiver_not_ready_retries;
            attributes.max_rd_atomic = outgoing_reads;
        })
    }
}
