//! Safe InfiniBand and RoCE verbs over rdma-core.
