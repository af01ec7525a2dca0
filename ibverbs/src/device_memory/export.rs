//! Device memory for other devices.

use std::os::fd::{FromRawFd, OwnedFd};

use super::DeviceMemory;
use crate::{Result, error::verb};

impl DeviceMemory<'_> {
    /// A dma-buf of this memory, which another device can register
    /// ([`register_dma_buf`](crate::ProtectionDomain::register_dma_buf)) and so reach without the CPU. Enters the kernel.
    ///
    /// The memory stays allocated while somebody has the descriptor, or a region of it.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) before rdma-core 62, [`Error::Verb`](crate::Error::Verb), `EOPNOTSUPP`, if the device
    /// cannot. See `ibv_dm_export_dmabuf_fd(3)`.
    #[doc(alias = "ibv_dm_export_dmabuf_fd")]
    pub fn export_dma_buf(&self) -> Result<OwnedFd> {
        let (verb, export) = verb!(self.context.library(), ibv_dm_export_dmabuf_fd)?;
        // SAFETY: `raw` is live.
        let fd = unsafe { export(self.raw.as_ptr()) };
        verb.count(fd)?;
        // SAFETY: the descriptor is new and the caller's, ibv_dm_export_dmabuf_fd(3).
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
