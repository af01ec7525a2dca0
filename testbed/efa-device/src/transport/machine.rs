//! The machine that a device is plugged into, as far as QEMU has shown it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError, RwLock};

use crate::bytes::index;
use crate::host::{DmaFault, GuestMemory, Host};
use crate::layout::VECTORS;

use super::guest_ram::GuestRam;
use super::mapping::{Mapping, anonymous_file};

/// Guest memory, interrupt lines and send queue memory of one device.
#[derive(Debug)]
pub(crate) struct Machine {
    ram: RwLock<GuestRam>,
    vectors: Mutex<Vec<Vector>>,
    send_queues: Mapping,
    send_queue_file: File,
}

/// An MSI-X vector: where to signal it, and whether that is owed.
#[derive(Debug, Default)]
struct Vector {
    signal: Option<File>,
    /// Raised while QEMU was rewiring its vectors.
    owed: bool,
}

impl Machine {
    /// A machine that QEMU has not shown anything of, with `bytes` of send queue memory.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        let send_queue_file = anonymous_file(bytes)?;
        let send_queues = Mapping::new(&send_queue_file, 0, bytes, true)?;
        let vectors = (0..VECTORS).map(|_| Vector::default()).collect();
        Ok(Self {
            ram: RwLock::default(),
            vectors: Mutex::new(vectors),
            send_queues,
            send_queue_file,
        })
    }

    pub(super) fn send_queue_descriptor(&self) -> RawFd {
        self.send_queue_file.as_raw_fd()
    }

    pub(super) fn write_send_queue(&self, offset: u64, data: &[u8]) {
        if !self.send_queues.write(index(offset), data) {
            log::debug!("write outside the send queue memory at {offset:#x}");
        }
    }

    pub(super) fn map(&self, address: u64, length: u64, mapping: Mapping) {
        self.ram.write().unwrap_or_else(PoisonError::into_inner).map(address, length, mapping);
    }

    pub(super) fn unmap(&self, address: u64, length: u64) {
        self.ram.write().unwrap_or_else(PoisonError::into_inner).unmap(address, length);
    }

    /// Forgets the memory and the interrupt lines of a machine that went away.
    pub(super) fn unplug(&self) {
        self.ram.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.forget_vectors();
        for vector in &mut *self.vectors.lock().unwrap_or_else(PoisonError::into_inner) {
            vector.owed = false;
        }
    }

    /// Unwires every vector.
    pub(super) fn forget_vectors(&self) {
        for vector in &mut *self.vectors.lock().unwrap_or_else(PoisonError::into_inner) {
            vector.signal = None;
        }
    }

    /// Wires vectors from `first` on; false if there are fewer.
    pub(super) fn wire(&self, first: u32, signals: Vec<Option<File>>) -> bool {
        let mut vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        let first = index(first.into());
        let Some(chosen) = vectors.get_mut(first..first.saturating_add(signals.len())) else {
            return false;
        };
        for (vector, signal) in chosen.iter_mut().zip(signals) {
            vector.signal = signal;
            if vector.owed && vector.signal.is_some() {
                vector.owed = false;
                vector.send();
            }
        }
        true
    }
}

impl Vector {
    fn send(&self) {
        let sent = self.signal.as_ref().map(|mut signal| signal.write_all(&1_u64.to_ne_bytes()));
        if let Some(Err(error)) = sent {
            log::warn!("interrupt: {error}");
        }
    }
}

impl GuestMemory for Machine {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.ram.read().unwrap_or_else(PoisonError::into_inner).read(address, into)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.ram.read().unwrap_or_else(PoisonError::into_inner).write(address, from)
    }

    fn publish(&self, address: u64, entry: &[u8], flag: usize) -> Result<(), DmaFault> {
        let fault = DmaFault { address, length: entry.len() };
        let (before, rest) = entry.split_at_checked(flag).ok_or(fault)?;
        let (&byte, after) = rest.split_first().ok_or(fault)?;
        let flag_address = address.checked_add(flag as u64).ok_or(fault)?;
        let ram = self.ram.read().unwrap_or_else(PoisonError::into_inner);
        ram.write(address, before)?;
        ram.write(flag_address.checked_add(1).ok_or(fault)?, after)?;
        ram.publish(flag_address, byte)
    }
}

impl Host for Machine {
    fn raise(&self, vector: u16) {
        let mut vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vector) = vectors.get_mut(usize::from(vector)) {
            if vector.signal.is_some() {
                vector.send();
            } else {
                vector.owed = true;
            }
        }
    }

    fn read_send_queue(&self, offset: u64, into: &mut [u8]) {
        if !self.send_queues.read(index(offset), into) {
            into.fill(0);
        }
    }
}
