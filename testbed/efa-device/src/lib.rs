#![doc = include_str!("../README.md")]

mod address_handle;
mod admin_queue;
mod async_events;
mod bytes;
mod checksum;
mod commands;
mod completion_queue;
mod config;
mod device;
mod error;
mod event_counter;
mod event_queue;
mod fabric;
mod features;
mod host;
mod layout;
mod memory_region;
mod page_list;
mod queue_pair;
mod random;
mod registers;
mod requester;
mod responder;
mod scatter;
mod server;
mod slots;
mod statistics;
mod status;
mod transport;
mod work_request;

pub use config::{AdminEffect, AdminFault, Capabilities, DeviceConfig, FabricConfig};
pub use error::Error;
pub use fabric::{DeviceNumber, Fabric};
pub use host::{DmaFault, GuestMemory, Host};
pub use layout::{DOORBELL_BAR, Layout, REGISTER_BAR, SEND_QUEUE_BAR, VECTORS};
pub use server::{Endpoint, serve};
