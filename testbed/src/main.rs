//! A real Linux kernel with software RDMA in a virtual machine.
fn main() {}
