//! The asynchronous event queue: keep-alives and bad news from the device to the driver.

use crate::bytes::PutFields;
use crate::host::Host;
use crate::producer::{Place, Producer};
use crate::registers::Ring;

const ENTRY_BYTES: u16 = 64;
const PHASE_BYTE: usize = 4;

/// Kinds of events; the driver enables them by their bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Group {
    KeepAlive = 4,
}

/// Groups that the device can report: fatal error, warning, notification, keep-alive. The driver
/// insists on being offered all four.
pub(crate) const SUPPORTED_GROUPS: u32 = 0b1_1110;

/// A ring of 64-byte events in guest memory.
#[derive(Debug, Default)]
pub(crate) struct AsyncEventQueue {
    producer: Producer,
    consumed: u16,
    pub(crate) enabled: u32,
}

impl AsyncEventQueue {
    /// Reports an event, unless the driver did not enable its group or does not keep up.
    pub(crate) fn report(&mut self, host: &dyn Host, ring: &Ring, group: Group) {
        let number = group as u16;
        if self.enabled & 1 << number == 0 || ring.entry_bytes != ENTRY_BYTES {
            return;
        }
        if self.unread() >= ring.depth {
            log::debug!("asynchronous event queue is full, event of group {number} dropped");
            return;
        }
        let Some(Place { slot, phase }) = self.producer.next(ring.depth) else { return };
        let mut entry = [0_u8; ENTRY_BYTES as usize];
        entry.put_u16(0, number);
        entry.put_u8(PHASE_BYTE, phase);
        let address = ring.base.wrapping_add(slot * u64::from(ENTRY_BYTES));
        match host.publish(address, &entry, PHASE_BYTE) {
            Ok(()) => host.raise(ring.vector.into()),
            Err(fault) => log::warn!("asynchronous event queue: {fault}"),
        }
    }

    /// The driver has read everything before index `consumed` (modulo 2^16).
    pub(crate) const fn read_up_to(&mut self, consumed: u16) {
        self.consumed = consumed;
    }

    /// Forgets what was reported; the ring begins anew.
    pub(crate) const fn start(&mut self) {
        self.producer = Producer::new();
        self.consumed = 0;
    }

    fn unread(&self) -> u16 {
        self.producer.count().wrapping_sub(self.consumed)
    }
}
