//! What a device and its peers may do with registered memory.

use crate::{Error, Result};

bitflags::bitflags! {
    /// Rights over a memory region, and over what peers may ask of a queue pair.
    ///
    /// The device may always read a region it was registered with. See `ibv_reg_mr(3)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// This side's device may write: receives, reads and the results of atomics land here.
        const LOCAL_WRITE = rdma_sys::IBV_ACCESS_LOCAL_WRITE;
        /// Peers may write; needs `LOCAL_WRITE` on a region.
        const REMOTE_WRITE = rdma_sys::IBV_ACCESS_REMOTE_WRITE;
        /// Peers may read.
        const REMOTE_READ = rdma_sys::IBV_ACCESS_REMOTE_READ;
        /// Peers may do atomic operations; needs `LOCAL_WRITE` on a region.
        const REMOTE_ATOMIC = rdma_sys::IBV_ACCESS_REMOTE_ATOMIC;
        /// Memory windows may be bound to the region.
        const WINDOW_BIND = rdma_sys::IBV_ACCESS_MW_BIND;
        /// Addresses within the region count from 0 instead of from its virtual address.
        const ZERO_BASED = rdma_sys::IBV_ACCESS_ZERO_BASED;
        /// Pages are not pinned but fetched on demand; needs a device that has it.
        const ON_DEMAND = rdma_sys::IBV_ACCESS_ON_DEMAND;
        /// The memory lies in huge pages; only with `ON_DEMAND`.
        const HUGE_PAGES = rdma_sys::IBV_ACCESS_HUGETLB;
        /// Peers may flush to global visibility.
        const FLUSH_GLOBAL = rdma_sys::IBV_ACCESS_FLUSH_GLOBAL;
        /// Peers may flush to persistence.
        const FLUSH_PERSISTENT = rdma_sys::IBV_ACCESS_FLUSH_PERSISTENT;
        /// The bus may reorder writes of one transfer. A device without it ignores this flag.
        const RELAXED_ORDERING = rdma_sys::IBV_ACCESS_RELAXED_ORDERING;
    }
}

impl Access {
    /// Nobody but the CPU may write: the device reads, that is all.
    pub const READ_ONLY: Self = Self::empty();

    /// Whether the device or a peer may write.
    #[must_use]
    pub const fn writes(self) -> bool {
        self.intersects(Self::LOCAL_WRITE.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC))
    }

    /// Refuses what `ibv_reg_mr(3)` refuses, before it is called.
    pub(crate) fn check_for_region(self) -> Result<()> {
        let remote = Self::REMOTE_WRITE | Self::REMOTE_ATOMIC;
        if self.intersects(remote) && !self.contains(Self::LOCAL_WRITE) {
            return Err(Error::Invalid {
                what: "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE on a memory region".into(),
                remedy: "add Access::LOCAL_WRITE",
            });
        }
        Ok(())
    }

    /// As the C calls take it.
    pub(crate) const fn bits_signed(self) -> i32 {
        self.bits().cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_writes_need_local_write() {
        Access::REMOTE_WRITE.check_for_region().unwrap_err();
        Access::REMOTE_ATOMIC.check_for_region().unwrap_err();
        (Access::REMOTE_WRITE | Access::LOCAL_WRITE).check_for_region().unwrap();
        Access::REMOTE_READ.check_for_region().unwrap();
    }

    #[test]
    fn read_only_memory_is_written_by_nobody() {
        assert!(!Access::READ_ONLY.writes());
        assert!(!Access::REMOTE_READ.writes());
        assert!(Access::REMOTE_ATOMIC.writes());
    }
}
