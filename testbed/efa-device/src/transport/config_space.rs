//! The PCI configuration space of an EFA function.

use crate::bytes::{PutFields, index};
use crate::layout::VECTORS;

use super::{MSIX_PENDING, MSIX_TABLE};

pub(super) const BYTES: usize = 256;

const VENDOR: u16 = 0x1d0f;
/// The second generation of hardware.
const DEVICE: u16 = 0xefa2;
const CLASS_NETWORK_ETHERNET: u16 = 0x0200;
const HAS_CAPABILITIES: u16 = 1 << 4;
const MSIX_CAPABILITY: usize = 0x40;
const MSIX_CAPABILITY_ID: u8 = 0x11;
/// A BAR that may be mapped anywhere in 64 bits and read ahead of time.
const MEMORY_64_PREFETCHABLE: u32 = 0xc;

/// Configuration space with the little that a guest may change.
#[derive(Debug)]
pub(super) struct ConfigSpace([u8; BYTES]);

impl ConfigSpace {
    pub(super) fn new() -> Self {
        let mut space = [0; BYTES];
        space.put_u16(0x00, VENDOR);
        space.put_u16(0x02, DEVICE);
        space.put_u16(0x06, HAS_CAPABILITIES);
        space.put_u16(0x0a, CLASS_NETWORK_ETHERNET);
        space.put_u32(0x18, MEMORY_64_PREFETCHABLE);
        space.put_u32(0x20, MEMORY_64_PREFETCHABLE);
        space.put_u16(0x2c, VENDOR);
        space.put_u16(0x2e, DEVICE);
        space.put_u8(0x34, 0x40);
        space.put_u8(MSIX_CAPABILITY, MSIX_CAPABILITY_ID);
        space.put_u16(MSIX_CAPABILITY + 2, VECTORS - 1);
        // Both tables are in BAR 0, which the low bits of each offset say.
        space.put_u32(MSIX_CAPABILITY + 4, MSIX_TABLE);
        space.put_u32(MSIX_CAPABILITY + 8, MSIX_PENDING);
        Self(space)
    }

    pub(super) fn read(&self, offset: u64, data: &mut [u8]) {
        for (position, byte) in data.iter_mut().enumerate() {
            let place = index(offset).checked_add(position);
            *byte = place.and_then(|place| self.0.get(place)).copied().unwrap_or(0);
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        for (position, &byte) in data.iter().enumerate() {
            let Some(place) = index(offset).checked_add(position) else { return };
            let writable: u8 = match place {
                // Command register and interrupt line.
                0x04 | 0x05 | 0x3c => 0xff,
                // MSI-X: enable and mask.
                0x43 => 0xc0,
                _ => 0,
            };
            if let Some(old) = self.0.get_mut(place) {
                *old = *old & !writable | byte & writable;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_read_only_and_commands_are_kept() {
        let mut space = ConfigSpace::new();
        space.write(0, &[0xff; 8]);
        let mut identity = [0; 8];
        space.read(0, &mut identity);
        assert_eq!(identity, [0x0f, 0x1d, 0xa2, 0xef, 0xff, 0xff, 0x10, 0]);
    }

    #[test]
    fn accesses_outside_read_zero_and_write_nothing() {
        let mut space = ConfigSpace::new();
        let mut data = [7; 4];
        space.read(254, &mut data);
        assert_eq!(data, [0; 4]);
        space.write(u64::MAX - 1, &data);
        space.read(u64::MAX - 1, &mut data);
    }
}
