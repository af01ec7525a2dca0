//! How a fabric and its devices behave in one run.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::Error;

/// What the device can do; what a bit is missing for is refused with the status hardware uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// RDMA read requests, as requester and as responder.
    pub rdma_read: bool,
    /// RDMA write requests, as requester and as responder.
    pub rdma_write: bool,
    /// The number of receiver-not-ready retries of an SRD queue pair can be set.
    pub rnr_retry: bool,
    /// 128 bytes of data become visible at once to a program that polls memory.
    pub data_polling_128: bool,
    /// A write with immediate may complete at the receiver without using up a receive.
    pub unsolicited_write_receive: bool,
    /// Completions can be counted in guest memory.
    pub event_counters: bool,
    /// Send requests may carry 64-bit identifiers.
    pub wide_request_ids: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            rdma_read: true,
            rdma_write: true,
            rnr_retry: true,
            data_polling_128: true,
            unsolicited_write_receive: true,
            event_counters: true,
            wide_request_ids: true,
        }
    }
}

/// An admin command that goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminFault {
    /// The command's opcode, 1 (`CREATE_QP`) to 29.
    pub opcode: u8,
    /// Which command of that opcode since the device was made, from 1; 0 means every one.
    pub nth: u32,
    /// What happens to it.
    pub effect: AdminEffect,
}

/// What happens to an admin command that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminEffect {
    /// It is answered with this status and not executed.
    Status(u8),
    /// It is never answered, so that the driver runs into its time-out.
    Silence,
}

/// One device: what it reports and what goes wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// What it can do.
    pub capabilities: Capabilities,
    /// The minor number of the register interface version 0.x: 1, or 2 with checksums on admin
    /// completions, or 3 with 128-byte admin commands as well.
    pub interface_minor: u8,
    /// Queue pairs; the doorbell and send queue BARs are sized by it.
    pub max_queue_pairs: u32,
    /// Completion queues.
    pub max_completion_queues: u32,
    /// Protection domains.
    pub max_protection_domains: u32,
    /// Address handles.
    pub max_address_handles: u32,
    /// Memory regions.
    pub max_memory_regions: u32,
    /// Largest RDMA read or write, in bytes.
    pub max_rdma_size: u32,
    /// Largest send on SRD and UD, in bytes.
    pub mtu: u16,
    /// The driver's patience with an admin command, in units of 100 ms, at most 15; 0 is 30 s.
    pub admin_timeout: u8,
    /// Admin commands that go wrong.
    pub admin_faults: Vec<AdminFault>,
    /// The device falls silent after this many data path messages it sent or received.
    pub dies_after: Option<u64>,
    /// The network to this device breaks after this many messages it received; it lives on.
    pub lost_after: Option<u64>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            capabilities: Capabilities::default(),
            interface_minor: 3,
            max_queue_pairs: 256,
            max_completion_queues: 512,
            max_protection_domains: 256,
            max_address_handles: 4096,
            max_memory_regions: 65_536,
            max_rdma_size: 1 << 30,
            mtu: 8928,
            admin_timeout: 0,
            admin_faults: Vec::new(),
            dies_after: None,
            lost_after: None,
        }
    }
}

impl DeviceConfig {
    /// Checks that the numbers fit the widths the interface gives them.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] naming the first setting that does not fit.
    pub fn check(&self) -> Result<(), Error> {
        let ranges: [(&'static str, u64, RangeInclusive<u64>); 9] = [
            ("interface minor version", self.interface_minor.into(), 1..=3),
            ("queue pairs", self.max_queue_pairs.into(), 1..=4096),
            ("completion queues", self.max_completion_queues.into(), 1..=8192),
            ("protection domains", self.max_protection_domains.into(), 1..=65_535),
            ("address handles", self.max_address_handles.into(), 1..=65_534),
            ("memory regions", self.max_memory_regions.into(), 1..=65_536),
            ("largest RDMA transfer", self.max_rdma_size.into(), 1..=1 << 30),
            ("MTU", self.mtu.into(), 64..=16_384),
            ("admin time-out", self.admin_timeout.into(), 0..=15),
        ];
        for (what, asked, allowed) in ranges {
            if !allowed.contains(&asked) {
                let (min, max) = allowed.into_inner();
                return Err(Error::OutOfRange { what, asked, min, max });
            }
        }
        Ok(())
    }
}

/// What the network between the devices does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// Whether SRD messages overtake each other, and the pieces of a write land in any order.
    /// Scalable Reliable Datagram promises neither order.
    pub reorder: bool,
    /// The longest that a message may be held back so that others overtake it.
    pub reorder_window: Duration,
    /// What every message takes from doorbell to delivery.
    pub delay: Duration,
    /// The seed of every random choice.
    pub seed: u64,
    /// Every n-th message that needs a receive finds the receiver not ready on its first try.
    pub not_ready_every: Option<u32>,
    /// How long a sender waits before it tries a receiver again that was not ready.
    pub not_ready_delay: Duration,
    /// How long an SRD sender waits for a peer that does not answer.
    pub response_timeout: Duration,
    /// Whether a device reaches its own queue pairs; some real fleets drop such SRD messages.
    pub loopback: bool,
    /// Whether destroying a queue pair completes what is posted on it as flushed.
    pub flush_on_destroy: bool,
    /// The time between two keep-alive events to the driver.
    pub keep_alive: Duration,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            reorder: true,
            reorder_window: Duration::from_micros(300),
            delay: Duration::ZERO,
            seed: 1,
            not_ready_every: None,
            not_ready_delay: Duration::from_millis(1),
            response_timeout: Duration::from_millis(500),
            loopback: true,
            flush_on_destroy: true,
            keep_alive: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_a_bad_number_is_named() {
        DeviceConfig::default().check().expect("the defaults");
        let config = DeviceConfig { max_queue_pairs: 0, ..DeviceConfig::default() };
        let message = config.check().expect_err("zero queue pairs").to_string();
        assert_eq!(message, "queue pairs is 0, the model allows 1 to 4096");
    }
}
