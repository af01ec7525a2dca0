//! Connections through librdmacm, on the kernel's software RDMA devices.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

mod connect;
mod datagrams;
mod failures;
mod futures;
mod interoperation;
mod lifetimes;
mod support;
