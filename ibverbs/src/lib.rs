#![doc = include_str!("../README.md")]

mod access;
mod attributes;
mod buffer;
mod completion;
mod completion_queue;
pub mod connection;
mod context;
mod device;
mod error;
mod gid;
mod ids;
mod memory_region;
mod parent;
mod protection_domain;
mod queue_pair;
mod region;
mod remote_memory;
mod scope;
mod segment;
mod selector;
mod shared_bytes;
mod transport;
mod work_request;

pub use access::Access;
pub use attributes::{AtomicSupport, DeviceAttributes, LinkLayer, PortAttributes, PortState};
pub use buffer::{Buffer, HostBuffer, HugePages, PageAligned, Plain, RawVec};
pub use completion::{Completion, CompletionStatus, FailedWork, FinishedWork, Operation};
pub use completion_queue::CompletionQueue;
pub use context::{Context, LocalPort};
pub use device::{Device, Devices, NodeType, TransportType, devices};
pub use error::{CloseError, Error, Result, Verb};
pub use gid::{Gid, GidEntry, GidType};
pub use ids::{LocalKey, Mtu, PacketSequence, PortNumber, QueueKey, QueuePairNumber, RemoteKey};
pub use memory_region::{DmaBufPart, ForeignMemory, MemoryRegion};
pub use parent::Parent;
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{
    Capabilities, Initialized, Posting, PostsReceives, QueuePair, QueuePairAttributes,
    QueuePairState, ReadyToReceive, ReadyToSend, Reset, builder::QueuePairBuilder,
    connect::ConnectOptions, endpoint::QpInfo, post::PostError,
};
pub use region::Region;
pub use remote_memory::{RemoteMemory, RemoteSegment};
pub use scope::Scope;
pub use segment::Segment;
pub use selector::DeviceSelector;
pub use shared_bytes::SharedBytes;
pub use transport::{Connected, Datagram, Rc, RemoteAtomic, RemoteRead, RemoteWrite, Transport};
pub use work_request::{Gather, Inline, Operations, RecvWr, Scatter, SendWr};

/// The raw bindings that this crate is made of, for what it does not wrap.
pub use rdma_sys as sys;
