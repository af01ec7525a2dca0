//! Userspace NVMe over RDMA initiator.
