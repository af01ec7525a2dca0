//! Memory of the host that the target allocated.

use std::sync::{Arc, Mutex};

use crate::{Memory, memory::HostMemory};

#[derive(Debug)]
pub(super) struct Region {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) bytes: Mutex<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct FakeMemory(pub(super) Arc<Region>);

impl Memory for FakeMemory {
    fn address(&self) -> u64 {
        self.0.address
    }

    fn remote_key(&self) -> u32 {
        self.0.key
    }

    fn length(&self) -> usize {
        self.0.bytes.lock().unwrap().len()
    }

    fn copy_to(&self, offset: usize, into: &mut [u8]) -> bool {
        let bytes = self.0.bytes.lock().unwrap();
        let Some(from) = bytes.get(offset..).and_then(|rest| rest.get(..into.len())) else {
            return false;
        };
        into.copy_from_slice(from);
        true
    }
}

impl HostMemory for FakeMemory {
    fn copy_from(&self, offset: usize, from: &[u8]) -> bool {
        let mut bytes = self.0.bytes.lock().unwrap();
        let Some(into) = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..from.len())) else {
            return false;
        };
        into.copy_from_slice(from);
        true
    }
}
