//! Where things are on the PCI function: its BARs, and the pages in them.

use crate::config::DeviceConfig;
use crate::queue_pair::SEND_QUEUE_BYTES;

/// Registers.
pub const REGISTER_BAR: u8 = 0;
/// Send queue memory, which the driver writes and the device reads.
pub const SEND_QUEUE_BAR: u8 = 2;
/// Doorbells: a page for each queue pair, then a page for each completion queue.
pub const DOORBELL_BAR: u8 = 4;

/// Event queues, each with its own interrupt vector.
pub(crate) const EVENT_QUEUES: u8 = 8;
/// Interrupt vectors: vector 0 for admin and asynchronous events, then the event queues.
pub const VECTORS: u16 = 1 + EVENT_QUEUES as u16;

const PAGE: u64 = 4096;
const RECEIVE_DOORBELL: u64 = 8;

/// A write to the doorbell BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    Send { slot: u32 },
    Receive { slot: u32 },
    CompletionQueue { number: u16 },
}

/// Sizes and offsets that follow from how many objects a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    queue_pairs: u32,
    completion_queues: u32,
}

impl Layout {
    /// The layout of a device.
    #[must_use]
    pub fn new(config: &DeviceConfig) -> Self {
        Self {
            queue_pairs: config.max_queue_pairs.next_power_of_two(),
            completion_queues: config.max_completion_queues.next_power_of_two(),
        }
    }

    /// Size of the send queue BAR in bytes, a power of two.
    #[must_use]
    pub fn send_queue_bytes(self) -> u64 {
        u64::from(self.queue_pairs) * SEND_QUEUE_BYTES
    }

    /// Size of the doorbell BAR in bytes, a power of two.
    #[must_use]
    pub fn doorbell_bytes(self) -> u64 {
        (u64::from(self.queue_pairs + self.completion_queues) * PAGE).next_power_of_two()
    }

    /// Offsets of the send and the receive doorbell of the queue pair in `slot`.
    pub(crate) fn queue_pair_doorbells(self, slot: u32) -> (u64, u64) {
        let page = u64::from(slot) * PAGE;
        (page, page + RECEIVE_DOORBELL)
    }

    pub(crate) fn send_queue_offset(self, slot: u32) -> u64 {
        u64::from(slot) * SEND_QUEUE_BYTES
    }

    pub(crate) fn completion_queue_doorbell(self, number: u16) -> u64 {
        (u64::from(self.queue_pairs) + u64::from(number)) * PAGE
    }

    /// What a write at `offset` of the doorbell BAR rings.
    pub(crate) fn doorbell(self, offset: u64) -> Option<Doorbell> {
        let page = u32::try_from(offset / PAGE).ok()?;
        match (page.checked_sub(self.queue_pairs), offset % PAGE) {
            (None, 0) => Some(Doorbell::Send { slot: page }),
            (None, RECEIVE_DOORBELL) => Some(Doorbell::Receive { slot: page }),
            (Some(number), 0) => {
                u16::try_from(number).ok().map(|number| Doorbell::CompletionQueue { number })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_doorbell_is_found_where_it_is_announced() {
        let config = DeviceConfig { max_queue_pairs: 3, ..DeviceConfig::default() };
        let layout = Layout::new(&config);
        assert_eq!(layout.send_queue_bytes(), 4 * SEND_QUEUE_BYTES);
        assert_eq!(layout.doorbell_bytes(), 1024 * PAGE);
        let (send, receive) = layout.queue_pair_doorbells(2);
        assert_eq!(layout.doorbell(send), Some(Doorbell::Send { slot: 2 }));
        assert_eq!(layout.doorbell(receive), Some(Doorbell::Receive { slot: 2 }));
        let completion = layout.completion_queue_doorbell(7);
        assert_eq!(layout.doorbell(completion), Some(Doorbell::CompletionQueue { number: 7 }));
        assert_eq!(layout.doorbell(send + 4), None);
        assert_eq!(layout.doorbell(u64::MAX), None);
    }
}
