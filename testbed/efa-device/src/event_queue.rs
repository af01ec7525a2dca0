//! Event queues: where armed completion queues say that they have something, with an interrupt.

use crate::bytes::PutFields;
use crate::host::Host;
use crate::producer::{Place, Producer};

const ENTRY_BYTES: u64 = 16;
const PHASE_BYTE: usize = 0;

/// A ring of 16-byte events in guest memory behind one MSI-X vector.
///
/// An interrupt is raised once per arming; an event that finds the queue unarmed is remembered
/// and raises it at the next arming.
#[derive(Debug)]
pub(crate) struct EventQueue {
    base: u64,
    depth: u16,
    vector: u8,
    producer: Producer,
    armed: bool,
    pending: bool,
}

impl EventQueue {
    /// `depth` is a power of two.
    pub(crate) const fn new(base: u64, depth: u16, vector: u8) -> Self {
        Self { base, depth, vector, producer: Producer::new(), armed: false, pending: false }
    }

    /// Reports that completion queue `number` has completions.
    pub(crate) fn completion(&mut self, host: &dyn Host, number: u16) {
        let Some(Place { slot, phase }) = self.producer.next(self.depth) else { return };
        let mut entry = [0_u8; 16];
        entry.put_u8(PHASE_BYTE, phase);
        entry.put_u16(8, number);
        let address = self.base.wrapping_add(slot * ENTRY_BYTES);
        if let Err(fault) = host.publish(address, &entry, PHASE_BYTE) {
            log::warn!("event queue: {fault}");
        }
        if self.armed {
            self.armed = false;
            host.raise(self.vector.into());
        } else {
            self.pending = true;
        }
    }

    /// The driver has read the queue and wants the next interrupt.
    pub(crate) fn arm(&mut self, host: &dyn Host) {
        if self.pending {
            self.pending = false;
            host.raise(self.vector.into());
        } else {
            self.armed = true;
        }
    }
}
