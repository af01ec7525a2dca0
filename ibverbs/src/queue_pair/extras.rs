//! What few programs ask of a queue pair: vendor enhancements, ordering of bytes, pacing.

use std::ffi::c_int;

use super::QueuePair;
use crate::{Error, Operation, Result, Transport, Verb, error::verb};

/// Enhancements that two ends of a connection can agree on, in terms of their vendor. See `ibv_query_ece(3)`.
///
/// Both ends tell each other what they could have; then each sets what both have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnhancedConnection {
    /// The vendor whose options these are; 0 if there are none.
    pub vendor: u32,
    /// The options, in the vendor's terms.
    pub options: u32,
}

impl EnhancedConnection {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const LENGTH: usize = 8;

    /// The bytes to send to the peer: vendor `u32`, options `u32`, network order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0..4].copy_from_slice(&self.vendor.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.options.to_be_bytes());
        bytes
    }

    /// Reads what a peer sent. Which options there are only the vendor knows, so that all numbers are taken.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let &[a, b, c, d, e, f, g, h] = bytes else {
            return Err(Error::wrong_length("enhancements", bytes.len(), Self::LENGTH));
        };
        Ok(Self {
            vendor: u32::from_be_bytes([a, b, c, d]),
            options: u32::from_be_bytes([e, f, g, h]),
        })
    }
}

bitflags::bitflags! {
    /// In which order the bytes of an operation become visible. See `ibv_query_qp_data_in_order(3)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct DataOrder: u32 {
        /// All bytes of a message in order: a program can poll for the last one.
        const WHOLE_MESSAGE = rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG;
        /// Bytes within aligned blocks of 128 in order.
        const ALIGNED_128_BYTES = rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES;
    }
}

/// How fast a queue pair may send. See `ibv_modify_qp_rate_limit(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    kilobits: u32,
    burst: u32,
    packet: u16,
}

impl RateLimit {
    /// Kilobits a second; 0 lifts the limit.
    #[must_use]
    pub const fn kilobits_per_second(kilobits: u32) -> Self {
        Self { kilobits, burst: 0, packet: 0 }
    }

    /// The largest burst in bytes; the device chooses if not set.
    #[must_use]
    #[doc(alias = "max_burst_sz")]
    pub const fn burst(self, bytes: u32) -> Self {
        Self { burst: bytes, ..self }
    }

    /// The usual packet size in bytes, which makes pacing more exact; the device assumes its MTU if not set.
    #[must_use]
    #[doc(alias = "typical_pkt_sz")]
    pub const fn typical_packet(self, bytes: u16) -> Self {
        Self { packet: bytes, ..self }
    }
}

impl<T: Transport, S> QueuePair<'_, T, S> {
    /// The enhancements that are in use, or after creation those that this side could have.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] before rdma-core 31, [`Error::Verb`] with `EOPNOTSUPP` if the device has none. See `ibv_query_ece(3)`.
    #[doc(alias = "ibv_query_ece")]
    pub fn query_enhancements(&self) -> Result<EnhancedConnection> {
        let (verb, query) = verb!(self.handle.library(), ibv_query_ece)?;
        let mut raw = rdma_sys::ibv_ece::default();
        // SAFETY: `raw` of the handle is live, and the struct is a valid place.
        verb.status(unsafe { query(self.as_raw(), &raw mut raw) })?;
        Ok(EnhancedConnection { vendor: raw.vendor_id, options: raw.options })
    }

    /// The enhancements to use, which both ends told each other; before the queue pair is initialized, or on the
    /// answering end before it is ready to receive.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] before rdma-core 31, [`Error::Verb`] with `EOPNOTSUPP` if the device has none. See `ibv_set_ece(3)`.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_enhancements(&self, enhancements: EnhancedConnection) -> Result<()> {
        let (verb, set) = verb!(self.handle.library(), ibv_set_ece)?;
        let EnhancedConnection { vendor: vendor_id, options } = enhancements;
        let mut raw = rdma_sys::ibv_ece { vendor_id, options, comp_mask: 0 };
        // SAFETY: `raw` of the handle is live, and the struct is read in this call only.
        verb.status(unsafe { set(self.as_raw(), &raw mut raw) })
    }

    /// In which order the bytes of an operation become visible to the CPU, or with `device_only` to other
    /// devices. Nothing is promised by a library or device that does not say.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for anything but a write, a write with immediate, a read, a send or a receive; [`Error::Unsupported`] before
    /// rdma-core 36. See `ibv_query_qp_data_in_order(3)`.
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn data_order(&self, operation: Operation, device_only: bool) -> Result<DataOrder> {
        let (verb, query) = verb!(self.handle.library(), ibv_query_qp_data_in_order)?;
        let opcode = match operation {
            Operation::WRITE => rdma_sys::IBV_WR_RDMA_WRITE,
            Operation::RECEIVE_WRITE_WITH_IMMEDIATE => rdma_sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            Operation::READ => rdma_sys::IBV_WR_RDMA_READ,
            Operation::SEND | Operation::RECEIVE => rdma_sys::IBV_WR_SEND,
            _ => {
                return Err(Error::Invalid {
                    what: format!("the order of the bytes of a {operation} is not known").into(),
                    remedy: "ask about a send, a write, a read or a receive",
                });
            }
        };
        let mut flags = rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS;
        if device_only {
            flags |= rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY;
        }
        // SAFETY: `raw` of the handle is live.
        let returned = unsafe { query(self.as_raw(), opcode, flags) };
        let bits = verb.count(returned)?;
        Ok(DataOrder::from_bits_truncate(u32::try_from(bits).unwrap_or(0)))
    }

    /// Paces what it sends; ready-to-send only. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], or [`Error::Verb`] with `EOPNOTSUPP`, if the device does not pace; `EINVAL` over its limits. See
    /// `ibv_modify_qp_rate_limit(3)`.
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn set_rate_limit(&self, limit: RateLimit) -> Result<()> {
        let verb = Verb::new("ibv_modify_qp_rate_limit");
        let RateLimit { kilobits, burst, packet } = limit;
        let mut raw = rdma_sys::ibv_qp_rate_limit_attr {
            rate_limit: kilobits,
            max_burst_sz: burst,
            typical_pkt_sz: packet,
            comp_mask: 0,
        };
        // SAFETY: `raw` of the handle is live, and the struct is read in this call only.
        let returned: Option<c_int> =
            unsafe { rdma_sys::ibv_modify_qp_rate_limit(self.as_raw(), &raw mut raw) };
        verb.status(verb.find(returned)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_in_network_order_and_come_back() {
        let enhancements = EnhancedConnection { vendor: 0x0102_0304, options: 0x0506_0708 };
        let bytes = enhancements.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(EnhancedConnection::from_bytes(&bytes).unwrap(), enhancements);
    }

    #[test]
    fn every_other_length_is_refused() {
        for length in (0..64).filter(|length| *length != EnhancedConnection::LENGTH) {
            EnhancedConnection::from_bytes(&vec![1; length]).unwrap_err();
        }
    }
}
