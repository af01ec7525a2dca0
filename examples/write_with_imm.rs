//! An RDMA write with immediate between two ranks.
fn main() {}
