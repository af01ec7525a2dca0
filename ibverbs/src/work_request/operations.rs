//! The operations of a send queue, as sets.

bitflags::bitflags! {
    /// The operations that a queue pair is made for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Operations: u64 {
        /// Send.
        const SEND = rdma_sys::IBV_QP_EX_WITH_SEND as u64;
        /// Send with an immediate.
        const SEND_WITH_IMMEDIATE = rdma_sys::IBV_QP_EX_WITH_SEND_WITH_IMM as u64;
        /// Write.
        const WRITE = rdma_sys::IBV_QP_EX_WITH_RDMA_WRITE as u64;
        /// Write with an immediate.
        const WRITE_WITH_IMMEDIATE = rdma_sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM as u64;
        /// Read.
        const READ = rdma_sys::IBV_QP_EX_WITH_RDMA_READ as u64;
        /// Compare and swap.
        const COMPARE_AND_SWAP = rdma_sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP as u64;
        /// Fetch and add.
        const FETCH_AND_ADD = rdma_sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD as u64;
        /// Invalidate a key of this side.
        const LOCAL_INVALIDATE = rdma_sys::IBV_QP_EX_WITH_LOCAL_INV as u64;
        /// Bind a memory window of type 2.
        const BIND_WINDOW = rdma_sys::IBV_QP_EX_WITH_BIND_MW as u64;
        /// Send, and invalidate a key of the peer.
        const SEND_WITH_INVALIDATE = rdma_sys::IBV_QP_EX_WITH_SEND_WITH_INV as u64;
        /// Flush writes to a peer's memory; extended posting only.
        const FLUSH = rdma_sys::IBV_QP_EX_WITH_FLUSH as u64;
        /// Write an eight-byte word of a peer atomically; extended posting only.
        const ATOMIC_WRITE = rdma_sys::IBV_QP_EX_WITH_ATOMIC_WRITE as u64;

        /// What practically every device has: sends, writes, reads and atomics. A queue pair is made for these, as
        /// far as its transport has them, unless other operations are named.
        const COMMON = Self::SEND.bits()
            | Self::SEND_WITH_IMMEDIATE.bits()
            | Self::WRITE.bits()
            | Self::WRITE_WITH_IMMEDIATE.bits()
            | Self::READ.bits()
            | Self::COMPARE_AND_SWAP.bits()
            | Self::FETCH_AND_ADD.bits();
    }
}
