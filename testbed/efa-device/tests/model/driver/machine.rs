//! A machine with a little memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use efa_device::{DmaFault, GuestMemory, Host, VECTORS};

pub(crate) const MEMORY_BYTES: usize = 16 << 20;

/// Memory at address 0, send queue memory, and counts of interrupts.
#[derive(Debug)]
pub(crate) struct Machine {
    memory: Mutex<Vec<u8>>,
    pub(crate) send_queues: Mutex<Vec<u8>>,
    interrupts: [AtomicUsize; VECTORS as usize],
}

impl Machine {
    pub(crate) fn new(send_queue_bytes: u64) -> Self {
        Self {
            memory: Mutex::new(vec![0; MEMORY_BYTES]),
            send_queues: Mutex::new(vec![0; usize::try_from(send_queue_bytes).unwrap()]),
            interrupts: Default::default(),
        }
    }

    /// Interrupts on `vector` since the last call.
    pub(crate) fn interrupts(&self, vector: usize) -> usize {
        self.interrupts[vector].swap(0, Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read(address, &mut bytes).expect("inside memory");
        bytes
    }
}

fn range(address: u64, length: usize) -> Result<std::ops::Range<usize>, DmaFault> {
    usize::try_from(address)
        .ok()
        .and_then(|start| Some(start..start.checked_add(length)?))
        .filter(|range| range.end <= MEMORY_BYTES)
        .ok_or(DmaFault { address, length })
}

impl GuestMemory for Machine {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        into.copy_from_slice(&self.memory.lock().unwrap()[range(address, into.len())?]);
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.memory.lock().unwrap()[range(address, from.len())?].copy_from_slice(from);
        Ok(())
    }

    fn publish(&self, address: u64, entry: &[u8], flag: usize) -> Result<(), DmaFault> {
        assert!(flag < entry.len());
        self.write(address, entry)
    }
}

impl Host for Machine {
    fn raise(&self, vector: u16) {
        self.interrupts[usize::from(vector)].fetch_add(1, Ordering::Relaxed);
    }

    fn read_send_queue(&self, offset: u64, into: &mut [u8]) {
        let memory = self.send_queues.lock().unwrap();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = start.checked_add(into.len()).and_then(|end| memory.get(start..end));
        match bytes {
            Some(bytes) => into.copy_from_slice(bytes),
            None => into.fill(0),
        }
    }
}
