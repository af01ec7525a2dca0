//! Event counters: 64-bit counts of completions that the device keeps in guest memory.

use crate::host::GuestMemory;
use crate::status::AdminStatus;

/// The largest count; the next event makes it 0.
pub(crate) const MAX_VALUE: u64 = u64::MAX;
/// How many a device has.
pub(crate) const MAX_COUNTERS: u32 = 1024;

/// What a counter counts, as bits of the attach command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events(pub(crate) u32);

impl Events {
    pub(crate) const SEND: Self = Self(1);
    pub(crate) const SEND_ERROR: Self = Self(1 << 1);
    pub(crate) const RECEIVE: Self = Self(1 << 2);
    pub(crate) const RECEIVE_ERROR: Self = Self(1 << 3);
    pub(crate) const READ: Self = Self(1 << 4);
    pub(crate) const READ_ERROR: Self = Self(1 << 5);
    pub(crate) const WRITE: Self = Self(1 << 6);
    pub(crate) const WRITE_ERROR: Self = Self(1 << 7);
    pub(crate) const REMOTE_READ: Self = Self(1 << 8);
    pub(crate) const REMOTE_WRITE: Self = Self(1 << 9);
    pub(crate) const ALL: Self = Self((1 << 10) - 1);
}

/// One count and the queue pairs whose events it counts.
#[derive(Debug)]
pub(crate) struct EventCounter {
    address: u64,
    value: u64,
    attached: Vec<(u16, Events)>,
}

impl EventCounter {
    /// `address` is a multiple of 8.
    pub(crate) const fn new(address: u64) -> Self {
        Self { address, value: 0, attached: Vec::new() }
    }

    pub(crate) fn set(&mut self, memory: &dyn GuestMemory, value: u64) {
        self.value = value;
        if let Err(fault) = memory.write(self.address, &value.to_le_bytes()) {
            log::warn!("event counter: {fault}");
        }
    }

    pub(crate) fn add(&mut self, memory: &dyn GuestMemory, value: u64) {
        self.set(memory, self.value.wrapping_add(value));
    }

    pub(crate) fn attach(&mut self, queue_pair: u16, events: Events) -> Result<(), AdminStatus> {
        if events.0 & !Events::ALL.0 != 0 {
            return Err(AdminStatus::IllegalParameter);
        }
        match self.attached.iter_mut().find(|(number, _)| *number == queue_pair) {
            Some((_, counted)) => counted.0 |= events.0,
            None => self.attached.push((queue_pair, events)),
        }
        Ok(())
    }

    pub(crate) fn detach(&mut self, queue_pair: u16, events: Events) {
        for (number, counted) in &mut self.attached {
            if *number == queue_pair {
                counted.0 &= !events.0;
            }
        }
        self.attached.retain(|(_, counted)| counted.0 != 0);
    }

    /// Counts `event` of `queue_pair` if this counter is attached to it.
    pub(crate) fn count(&mut self, memory: &dyn GuestMemory, queue_pair: u16, event: Events) {
        let counts =
            |&(number, counted): &(u16, Events)| number == queue_pair && counted.0 & event.0 != 0;
        if self.attached.iter().any(counts) {
            self.add(memory, 1);
        }
    }
}
