#![doc = include_str!("../README.md")]

mod address;
mod async_event;
mod channel;
mod clock;
mod completion_queue;
mod context;
mod control;
mod device;
mod device_memory;
mod dma;
mod domain;
mod efa;
mod errno;
mod fabric;
mod handle;
mod limits;
mod memory;
mod owner_lock;
mod pair;
mod query;
mod region;
mod shared_receive;
mod signal;
mod slab;
mod special_region;
mod strings;
mod table;
mod transfer;
mod verb;
mod window;
mod xrc;

pub use control::CompletionFault;
pub use device::{Builder, GidEntry, Limits, LinkLayer, SoftDevice};
pub use dma::{DmaAddress, DmaEngine};
pub use efa::EfaLimits;
pub use table::library;
