//! CUDA device memory that an RDMA device can reach.
