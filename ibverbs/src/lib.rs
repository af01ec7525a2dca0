#![doc = include_str!("../README.md")]

mod access;
mod address;
mod address_handle;
mod async_event;
#[cfg(feature = "tokio")]
mod asynchronous;
mod attributes;
mod bounds;
mod buffer;
mod clock;
mod completion;
mod completion_channel;
mod completion_queue;
pub mod connection;
mod context;
mod descriptor;
mod device;
mod device_memory;
mod error;
mod extended_completion;
mod flow;
mod flow_counters;
mod fork;
mod gid;
mod ids;
mod import;
mod in_flight;
mod mac_address;
mod memory_region;
mod memory_window;
mod multicast;
mod null_region;
mod on_demand;
mod owned_buffer;
mod owned_work;
mod parent;
mod pool;
mod protection_domain;
mod queue_pair;
mod region;
mod remote_memory;
mod routing_header;
mod rss;
mod scope;
mod segment;
mod selector;
mod shared_bytes;
mod shared_receive_queue;
mod thread_domain;
mod transport;
mod work_queue;
mod work_request;
mod xrc;

pub use access::Access;
pub use address::Address;
pub use address_handle::AddressHandle;
pub use async_event::{AsyncEvent, AsyncEventKind, EventSource, SharedReceiveQueueId};
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncCompletionQueue, AsyncQueuePair, Transfer};
pub use attributes::{AtomicSupport, DeviceAttributes, LinkLayer, PortAttributes, PortState};
pub use buffer::{Buffer, HostBuffer, HugePages, PageAligned, Plain, RawVec};
pub use completion::{Completion, CompletionStatus, FailedWork, FinishedWork, Operation};
pub use completion_channel::{CompletionChannel, CompletionQueueId};
pub use completion_queue::{
    CompletionQueue, Notification, builder::CompletionQueueBuilder, poller::Poller,
};
pub use context::{Context, LocalPort};
pub use device::{Device, Devices, NodeType, TransportType, devices};
pub use device_memory::DeviceMemory;
pub use error::{CloseError, Error, Result, Verb};
pub use extended_completion::{CompletionFields, ExtendedCompletion, ExtendedWork};
pub use flow::{
    Flow, FlowRule,
    packets::{EthernetMatch, Ipv4Match, Ipv6Match, PacketMatch, PortMatch},
    target::SteeringTarget,
};
pub use flow_counters::{CounterKind, FlowCounters};
pub use fork::{ForkSupport, fork_support, fork_support_of, protect_forks, protect_forks_of};
pub use gid::{Gid, GidEntry, GidType};
pub use ids::{
    LocalKey, Mtu, PacketSequence, PortNumber, QueueKey, QueuePairNumber, RemoteKey,
    SharedReceiveQueueNumber,
};
pub use import::ImportedRegion;
pub use mac_address::MacAddress;
pub use memory_region::{DmaBufPart, ForeignMemory, MemoryRegion};
pub use memory_window::{BindOptions, MemoryWindow, Type1, Type2, WindowKind, WindowPart};
pub use multicast::MulticastMembership;
pub use on_demand::{AddressSpace, Prefetch, PrefetchMode};
pub use owned_buffer::OwnedBuffer;
pub use owned_work::{Closed, Finished, RejectReason, Rejected, WorkId};
pub use parent::Parent;
pub use pool::{PoolOptions, PoolStatistics, PooledMemory, RegionPool};
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{
    Capabilities, Posting, QueuePair,
    attributes::QueuePairAttributes,
    builder::QueuePairBuilder,
    change::QueuePairChange,
    connect::ConnectOptions,
    datagram::{DatagramInfo, DatagramOptions},
    endpoint::QpInfo,
    extras::{DataOrder, EnhancedConnection, RateLimit},
    halves::{ReceiveHalf, SendHalf},
    owned::OwnedQueuePair,
    post::PostError,
    raw_packet::{RawPacket, SegmentedFrames},
    state::{
        Initialized, PostsReceives, PostsSends, QueuePairState, ReadyToReceive, ReadyToSend, Reset,
        State,
    },
    xrc_target::XrcTarget,
};
pub use region::Region;
pub use remote_memory::{RemoteMemory, RemoteSegment};
pub use routing_header::{ReceivedDatagram, RoutingHeader};
pub use rss::{HashFields, HashKey, IndirectionTable, RssQueuePair};
pub use scope::Scope;
pub use segment::Segment;
pub use selector::DeviceSelector;
pub use shared_bytes::SharedBytes;
pub use shared_receive_queue::{
    SharedReceiveQueue, SharedReceiveQueueAttributes, SharedReceiveQueueOptions,
};
pub use thread_domain::{ThreadDomain, ThreadQueuePair, ThreadQueuePairBuilder};
pub use transport::{
    Addressing, Connected, Datagram, Rc, Receiving, RemoteAtomic, RemoteFlush, RemoteInvalidate,
    RemoteRead, RemoteWrite, Solicits, Transport, Uc, Ud, XrcInitiator,
};
pub use work_queue::{WorkQueue, WorkQueueBuilder, WorkQueueState};
pub use work_request::{
    Destination, FlushScope, Gather, Inline, Operations, Placement, RecvWr, Scatter, SendWr,
};
pub use xrc::{XrcDomain, XrcReceiveQueue};

/// The raw bindings that this crate is made of, for what it does not wrap.
pub use rdma_sys as sys;
