//! Addresses of ports.
#![expect(unsafe_code, reason = "reads the union ibv_gid")]

use rdma_sys as c;

/// The bytes of a GID, as on the wire.
pub(crate) fn gid_bytes(gid: &c::ibv_gid) -> [u8; 16] {
    // SAFETY: every member of the union is 16 plain bytes.
    unsafe { gid.raw }
}
