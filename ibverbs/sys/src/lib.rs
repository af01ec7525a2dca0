//! Raw bindings to rdma-core, linked at run time.
