//! Bytes to types and back, with no input or output anywhere.
//!
//! Every parser takes untrusted bytes: it checks lengths and limits, returns
//! [`Error::Short`](crate::Error::Short) or [`Error::Malformed`](crate::Error::Malformed), and
//! neither panics nor allocates more than its input justifies. Values that a later version of the
//! specification may define are kept as numbers. All integers on the wire are little-endian.
//!
//! Section numbers refer to the NVM Express Base Specification 2.1 unless another document is
//! named.

pub mod admin;
pub mod auth;
pub mod block_format;
pub mod command;
pub mod completion;
pub mod discovery;
pub mod event;
pub mod fabrics;
pub mod features;
mod fields;
pub mod identify;
pub mod identify_namespace;
pub mod identify_nvm;
pub mod log_page;
pub mod nvm;
pub mod property;
pub mod rdma;
pub mod sgl;

pub use command::Command;
pub use completion::Completion;
pub use sgl::Descriptor;
