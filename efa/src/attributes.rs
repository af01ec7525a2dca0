//! What an EFA device can do, and the check that it can do what is wanted.
#![expect(unsafe_code, reason = "calls efadv_query_device")]

use std::fmt;

use ibverbs::Context;

use crate::{Error, Result, error::efa_verb};

bitflags::bitflags! {
    /// What an EFA device has besides sends and receives (`device_caps`).
    ///
    /// Bits that this crate does not know are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct EfaCapabilities: u32 {
        /// RDMA read.
        const RDMA_READ = rdma_sys::EFADV_DEVICE_ATTR_CAPS_RDMA_READ;
        /// Retries while the receiver is not ready can be limited.
        const RNR_RETRY = rdma_sys::EFADV_DEVICE_ATTR_CAPS_RNR_RETRY;
        /// Completions of receives tell the GID of an unknown sender.
        const CQ_WITH_SGID = rdma_sys::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID;
        /// RDMA write, with and without immediate.
        const RDMA_WRITE = rdma_sys::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE;
        /// Writes with immediate can be received without a posted receive.
        const UNSOLICITED_WRITE_RECV = rdma_sys::EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV;
        /// Completion queues can lie in memory of the caller.
        const CQ_WITH_EXT_MEM_DMABUF = rdma_sys::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF;
        /// Completion counters.
        const COMP_CNTR = rdma_sys::EFADV_DEVICE_ATTR_CAPS_COMP_CNTR;

        const _ = !0;
    }
}

impl EfaCapabilities {
    const NAMES: [(Self, &'static str); 7] = [
        (Self::RDMA_READ, "RDMA read"),
        (Self::RNR_RETRY, "a limit of receiver-not-ready retries"),
        (Self::CQ_WITH_SGID, "sender GIDs in completions"),
        (Self::RDMA_WRITE, "RDMA write"),
        (Self::UNSOLICITED_WRITE_RECV, "unsolicited write receives"),
        (Self::CQ_WITH_EXT_MEM_DMABUF, "completion queues in memory of the caller"),
        (Self::COMP_CNTR, "completion counters"),
    ];

    /// What to do where these are missing.
    pub(crate) const fn remedy(self) -> &'static str {
        if self.intersects(Self::RDMA_READ.union(Self::RDMA_WRITE)) {
            "it depends on the instance type, and older types have no RDMA, or reads but no writes; check \
             `efa::query_device` and use sends there. A recent type needs a recent driver and rdma-core: \
             update the EFA software"
        } else {
            "it depends on the instance type, the driver and rdma-core; check `efa::query_device` before, \
             and update the EFA software"
        }
    }
}

impl fmt::Display for EfaCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        let mut separator = "";
        for (capability, name) in Self::NAMES {
            if self.contains(capability) {
                write!(f, "{separator}{name}")?;
                rest.remove(capability);
                separator = ", ";
            }
        }
        if rest.is_empty() { Ok(()) } else { write!(f, "{separator}{:#x}", rest.bits()) }
    }
}

/// The limits and capabilities of an EFA device. See `efadv_query_device(3)`.
#[derive(Debug, Clone)]
pub struct EfaDeviceAttributes {
    device: String,
    raw: rdma_sys::efadv_device_attr,
}

/// What an EFA device can do. Does not enter the kernel: the provider asked when the device was opened.
///
/// # Errors
///
/// [`Error::NotEfa`] for a device of another vendor; [`Error::Verbs`] if libefa is not installed.
#[doc(alias = "efadv_query_device")]
#[doc(alias = "query_efa_device")]
pub fn query_device(context: &Context) -> Result<EfaDeviceAttributes> {
    let (verb, query) = efa_verb!(context.library(), efadv_query_device)?;
    let device = context.device().name().to_owned();
    let mut raw = rdma_sys::efadv_device_attr::default();
    // SAFETY: the context is open, and the struct is of the length that is passed on.
    let returned = unsafe { query(context.as_raw(), &raw mut raw, crate::length_of(&raw)) };
    match verb.status(returned) {
        Ok(()) => Ok(EfaDeviceAttributes { device, raw }),
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Err(Error::NotEfa { device }),
        Err(error) => Err(error.into()),
    }
}

impl EfaDeviceAttributes {
    /// Most outstanding requests of a send queue.
    #[must_use]
    #[doc(alias = "max_sq_wr")]
    pub fn max_send_requests(&self) -> u32 {
        self.raw.max_sq_wr
    }

    /// Most outstanding requests of a receive queue.
    #[must_use]
    #[doc(alias = "max_rq_wr")]
    pub fn max_receive_requests(&self) -> u32 {
        self.raw.max_rq_wr
    }

    /// Most segments of a send; RDMA requests have their own limit,
    /// [`max_read_segments`](ibverbs::DeviceAttributes::max_read_segments), usually 1.
    #[must_use]
    #[doc(alias = "max_sq_sge")]
    pub fn max_send_segments(&self) -> u32 {
        self.raw.max_sq_sge.into()
    }

    /// Most segments of a receive.
    #[must_use]
    #[doc(alias = "max_rq_sge")]
    pub fn max_receive_segments(&self) -> u32 {
        self.raw.max_rq_sge.into()
    }

    /// Most inline bytes of a request: 32 on most devices, more on those with wide requests.
    #[must_use]
    #[doc(alias = "inline_buf_size")]
    #[doc(alias = "inline_buf_size_ex")]
    pub fn max_inline(&self) -> u32 {
        // A library that does not know the newer field leaves it 0.
        self.raw.inline_buf_size.max(self.raw.inline_buf_size_ex).into()
    }

    /// Most bytes of one RDMA read or write, 1 GiB on current hardware; 0 without RDMA. Longer transfers are
    /// [split](crate::write_wrs). Sends are limited by
    /// [`max_message_length`](ibverbs::PortAttributes::max_message_length), which is the MTU.
    #[must_use]
    pub fn max_rdma_size(&self) -> u32 {
        self.raw.max_rdma_size
    }

    /// What it has besides sends and receives.
    #[must_use]
    #[doc(alias = "device_caps")]
    pub fn capabilities(&self) -> EfaCapabilities {
        EfaCapabilities::from_bits_retain(self.raw.device_caps)
    }

    /// Makes sure that the device has all that is wanted, before anything depends on it.
    ///
    /// # Errors
    ///
    /// [`Error::MissingCapability`] with what it lacks.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn check(context: &ibverbs::Context) -> efa::Result<()> {
    /// use efa::EfaCapabilities;
    ///
    /// let wanted = EfaCapabilities::RDMA_WRITE | EfaCapabilities::UNSOLICITED_WRITE_RECV;
    /// efa::query_device(context)?.require(wanted)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn require(&self, wanted: EfaCapabilities) -> Result<()> {
        let missing = wanted - self.capabilities();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::MissingCapability { device: self.device.clone(), missing })
    }

    /// All attributes, as C has them.
    #[must_use]
    pub fn as_raw(&self) -> &rdma_sys::efadv_device_attr {
        &self.raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(capabilities: EfaCapabilities) -> EfaDeviceAttributes {
        let raw = rdma_sys::efadv_device_attr {
            device_caps: capabilities.bits(),
            inline_buf_size: 32,
            ..Default::default()
        };
        EfaDeviceAttributes { device: "efa_0".to_owned(), raw }
    }

    #[test]
    fn a_missing_capability_is_named_with_its_remedy() {
        let old = attributes(EfaCapabilities::RDMA_READ);
        old.require(EfaCapabilities::RDMA_READ).unwrap();
        let wanted = EfaCapabilities::RDMA_READ | EfaCapabilities::RDMA_WRITE;
        let text = old.require(wanted).unwrap_err().to_string();
        assert!(text.starts_with("efa_0 does not have RDMA write: "), "{text}");
        assert!(text.contains("instance type"), "{text}");
    }

    #[test]
    fn capabilities_of_a_newer_library_are_kept_and_printed() {
        let newer = EfaCapabilities::from_bits_retain(1 << 20) | EfaCapabilities::COMP_CNTR;
        assert_eq!(attributes(newer).capabilities(), newer);
        assert_eq!(newer.to_string(), "completion counters, 0x100000");
    }

    #[test]
    fn the_older_field_tells_the_inline_bytes_where_the_newer_is_missing() {
        assert_eq!(attributes(EfaCapabilities::empty()).max_inline(), 32);
    }
}
