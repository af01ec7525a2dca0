//! Guest-physical memory, put together from what QEMU shares.

use std::ops::Range;

use crate::bytes::index;
use crate::host::DmaFault;

use super::mapping::Mapping;

/// Mapped ranges of guest-physical addresses.
#[derive(Debug, Default)]
pub(super) struct GuestRam {
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Region {
    addresses: Range<u64>,
    mapping: Mapping,
}

impl GuestRam {
    pub(super) fn map(&mut self, address: u64, length: u64, mapping: Mapping) {
        let addresses = address..address.saturating_add(length);
        self.regions.push(Region { addresses, mapping });
    }

    /// Removes what lies wholly inside the range.
    pub(super) fn unmap(&mut self, address: u64, length: u64) {
        let gone = address..address.saturating_add(length);
        self.regions.retain(|region| {
            region.addresses.start < gone.start || region.addresses.end > gone.end
        });
    }

    pub(super) fn clear(&mut self) {
        self.regions.clear();
    }

    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let length = into.len();
        self.walk(address, length, |mapping, offset, part| {
            into.get_mut(part).is_some_and(|bytes| mapping.read(offset, bytes))
        })
    }

    pub(super) fn write(&self, address: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.walk(address, from.len(), |mapping, offset, part| {
            from.get(part).is_some_and(|bytes| mapping.write(offset, bytes))
        })
    }

    pub(super) fn publish(&self, address: u64, byte: u8) -> Result<(), DmaFault> {
        self.walk(address, 1, |mapping, offset, _| mapping.publish(offset, byte))
    }

    /// Calls `access` for each piece of the range: its mapping, the offset there, and the part of
    /// the caller's bytes.
    fn walk(
        &self,
        address: u64,
        length: usize,
        mut access: impl FnMut(&Mapping, usize, Range<usize>) -> bool,
    ) -> Result<(), DmaFault> {
        let fault = DmaFault { address, length };
        let mut done = 0;
        while done < length {
            let at = address.checked_add(done as u64).ok_or(fault)?;
            let region = self.regions.iter().find(|region| region.addresses.contains(&at));
            let region = region.ok_or(fault)?;
            let step = index(region.addresses.end - at).min(length - done);
            let offset = index(at - region.addresses.start);
            if !access(&region.mapping, offset, done..done + step) {
                return Err(fault);
            }
            done += step;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::mapping::anonymous_file;
    use super::*;

    #[test]
    fn a_range_may_cross_mappings_but_not_holes() {
        let file = anonymous_file(3 * 4096).expect("memory");
        let mut ram = GuestRam::default();
        for page in [0_u64, 1, 2] {
            // The pages of the file stand in memory the other way round, with a hole after two.
            let address = if page == 2 { 0x9000 } else { 0x2000 - page * 4096 };
            let mapping = Mapping::new(&file, page * 4096, 4096, true).expect("mapping");
            ram.map(address, 4096, mapping);
        }
        assert_eq!(ram.write(0x1ffe, b"over"), Ok(()));
        let mut bytes = [0; 4];
        assert_eq!(ram.read(0x1ffe, &mut bytes), Ok(()));
        assert_eq!(&bytes, b"over");
        assert!(ram.write(0x2ffe, b"hole").is_err());
        assert!(ram.read(u64::MAX - 1, &mut bytes).is_err());
        ram.unmap(0x1000, 4096);
        assert!(ram.read(0x1ffe, &mut bytes).is_err());
        assert_eq!(ram.read(0x2000, &mut bytes), Ok(()));
    }
}
