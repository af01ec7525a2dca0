#![doc = include_str!("../README.md")]

mod attributes;
mod chunks;
mod completion_queue;
mod counter;
mod device;
mod endpoint;
mod error;
mod hints;
mod layout;
mod poller;
mod queue_pair;
mod region;
mod transfer;
mod transport;
mod vendor_status;

pub use attributes::{EfaCapabilities, EfaDeviceAttributes, query_device};
pub use completion_queue::{CompletionQueueBuilder, QueueMemory, completion_queue};
pub use counter::{CompletionCounter, CountedOperations, CounterLimits, query_counters};
pub use device::{devices, devices_of};
pub use endpoint::{EndpointInfo, Peer, address_handle_number};
pub use error::{Error, Result};
pub use hints::{HintedPoster, ProcessingHints};
pub use layout::{
    CompletionQueueLayout, WorkQueueLayout, WorkQueues, query_completion_queue, query_work_queues,
};
pub use poller::{EfaCompletion, Poller};
pub use queue_pair::{QueuePairBuilder, prepare, queue_pair};
pub use region::{InterconnectIds, query_region};
pub use transfer::{TransferWrs, read_wrs, write_wrs};
pub use transport::{EfaTransport, Srd};
pub use vendor_status::{Failure, VendorStatus};

/// The verbs that this crate adds to.
pub use ibverbs;

/// The length of a C struct, as calls take it that know older and newer ones.
const fn length_of<T>(_: &T) -> u32 {
    const { assert!(size_of::<T>() <= u32::MAX as usize) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let length = size_of::<T>() as u32;
    length
}
