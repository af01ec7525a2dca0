#![doc = include_str!("../README.md")]

mod address;
mod async_event;
mod channel;
mod clock;
mod completion_queue;
mod context;
mod control;
mod device;
mod domain;
mod errno;
mod fabric;
mod handle;
mod limits;
mod memory;
mod owner_lock;
mod pair;
mod query;
mod region;
mod signal;
mod slab;
mod strings;
mod table;
mod transfer;
mod verb;

pub use control::CompletionFault;
pub use device::{Builder, GidEntry, Limits, LinkLayer, SoftDevice};
pub use table::library;
