#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod address;
mod association;
#[cfg(feature = "tokio")]
mod async_queue;
mod auth;
mod configuration;
mod controller;
#[cfg(feature = "cuda")]
mod cuda;
mod discovery;
mod engine;
mod error;
#[cfg(test)]
mod fake;
mod host;
mod io_queue;
mod memory;
mod namespace;
mod nqn;
mod options;
mod pool;
mod queue;
mod random;
mod ranges;
mod rdma;
mod rdma_channel;
mod request;
mod session;
mod shared;
pub mod status;
mod sync_queue;
mod target;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transport;
pub mod wire;

#[cfg(feature = "tokio")]
pub use async_queue::AsyncQueue;
pub use auth::Secret;
pub use configuration::Configuration;
pub use controller::Controller;
#[cfg(feature = "cuda")]
pub use cuda::GpuBuffer;
pub use discovery::{Discovered, discover};
pub use error::{Error, Result, Violation};
pub use host::{Host, HostId};
pub use io_queue::{Finished, IoQueue, Refused, Request, Ticket};
pub use memory::{Buffer, Memory, Part};
pub use namespace::Namespace;
pub use nqn::Nqn;
pub use options::{Options, Reconnect};
pub use status::{CommandSet, Status, StatusType};
pub use target::Target;
