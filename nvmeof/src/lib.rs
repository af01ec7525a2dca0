//! Userspace NVMe over RDMA initiator.
#![forbid(unsafe_code)]

mod auth;
mod error;
mod host;
mod nqn;
mod random;
pub mod status;
#[cfg(test)]
mod testing;
pub mod wire;

pub use auth::Secret;
pub use error::{Error, Result, Violation};
pub use host::{Host, HostId};
pub use nqn::Nqn;
pub use status::{CommandSet, Status, StatusType};
