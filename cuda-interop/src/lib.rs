#![doc = include_str!("../README.md")]

mod capabilities;
mod device_buffer;
mod dma_buf;
mod driver;
mod error;
mod foreign;
mod gpu;
mod layout;
mod memory_region;
mod ordering;
mod owner;
mod pointer;
mod registration;
mod topology;
mod virtual_memory;

pub use capabilities::{Capabilities, FlushOptions, Lack, WritesOrdering};
pub use device_buffer::DeviceBuffer;
pub use dma_buf::Mapping;
pub use driver::Driver;
pub use error::{CudaCode, Error, Reason, Result};
pub use foreign::ForeignMemory;
pub use gpu::Gpu;
pub use memory_region::CudaMemoryRegion;
pub use ordering::{Arrived, Inbound, Landing, Outbound, Producer, Ready, Visibility};
pub use pointer::{MemoryKind, PointerInfo};
#[doc(hidden)]
pub use registration::register_exported;
pub use registration::{Flush, Path, PeerMemory, Registration, register};
pub use topology::{Distance, Neighbour, PciAddress, PciDevice, Topology, nearest_devices};
pub use virtual_memory::VirtualMemory;

/// The CUDA driver bindings whose contexts, streams and slices are used here.
pub use cudarc;
