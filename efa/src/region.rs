//! Which of the machine's interconnects an EFA device takes to a memory region.
#![expect(unsafe_code, reason = "calls efadv_query_mr")]

use ibverbs::{Buffer, MemoryRegion};

use crate::{Result, error::efa_verb, length_of};

/// The interconnects by which a device reaches a region, one for each kind of transfer; `None` where the device
/// does not tell. See `efadv_query_mr(3)`.
///
/// Two regions of one number share a way, and its bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterconnectIds {
    /// For what sends of peers bring.
    pub receive: Option<u16>,
    /// For what this side's reads bring.
    pub read: Option<u16>,
    /// For what writes of peers bring.
    pub write_receive: Option<u16>,
}

/// The interconnects by which the device reaches a region. Does not enter the kernel.
///
/// # Errors
///
/// [`Error::Verbs`](crate::Error::Verbs) with [`Unsupported`](ibverbs::Error::Unsupported) before rdma-core 50, and
/// with `EOPNOTSUPP` for a device of another vendor.
#[doc(alias = "efadv_query_mr")]
pub fn query_region<B: Buffer>(region: &MemoryRegion<'_, B>) -> Result<InterconnectIds> {
    let library = region.protection_domain().context().library();
    let (verb, query) = efa_verb!(library, efadv_query_mr)?;
    let mut raw = rdma_sys::efadv_mr_attr::default();
    // SAFETY: the region is live, and the struct is of the length that is passed on.
    verb.status(unsafe { query(region.as_raw(), &raw mut raw, length_of(&raw)) })?;
    let told = |flag: u32, id| (u32::from(raw.ic_id_validity) & flag != 0).then_some(id);
    Ok(InterconnectIds {
        receive: told(rdma_sys::EFADV_MR_ATTR_VALIDITY_RECV_IC_ID, raw.recv_ic_id),
        read: told(rdma_sys::EFADV_MR_ATTR_VALIDITY_RDMA_READ_IC_ID, raw.rdma_read_ic_id),
        write_receive: told(rdma_sys::EFADV_MR_ATTR_VALIDITY_RDMA_RECV_IC_ID, raw.rdma_recv_ic_id),
    })
}
