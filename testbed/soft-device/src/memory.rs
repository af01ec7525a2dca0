//! Registered memory: which bytes a key opens, for whom and for what.
//!
//! A key is the number of its region in the upper 24 bits and a tag in the lower 8. Local and remote
//! key of a region differ, so that one taken for the other is noticed.

use rdma_sys as c;

use crate::slab::Slab;

/// Where the bytes of a piece are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the memory of the process, at this address.
    Host(usize),
}

impl Place {
    /// The place `offset` bytes further on.
    pub(crate) fn at(self, offset: usize) -> Self {
        match self {
            Self::Host(address) => Self::Host(address + offset),
        }
    }
}

/// One stretch of bytes that was checked and may be touched while the lock is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) place: Place,
    pub(crate) length: usize,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) context: u32,
    pub(crate) domain: u32,
    /// The address by which work requests name the first byte.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) place: Place,
    pub(crate) access: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// What we mapped for it and unmap with it: address and length.
    pub(crate) mapping: Option<(usize, usize)>,
    /// Its context is closed: the key opens nothing any more.
    pub(crate) cut_off: bool,
}

/// Why a key does not open what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Denied;

/// All keys of the process.
#[derive(Debug)]
pub(crate) struct KeyTable {
    regions: Slab<Region>,
    tag: u8,
}

/// The tag bit that tells remote keys from local ones.
const REMOTE: u32 = 0x80;

impl KeyTable {
    pub(crate) const fn new() -> Self {
        Self { regions: Slab::starting_at(1), tag: 0 }
    }

    /// Adds a region, whose keys are made here; its number.
    pub(crate) fn insert(&mut self, region: Region) -> u32 {
        self.tag = self.tag.wrapping_add(1) & 0x7f;
        let tag = u32::from(self.tag);
        self.regions.insert_with(|number| {
            let lkey = number << 8 | tag;
            Region { lkey, rkey: lkey | REMOTE, ..region }
        })
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Region> {
        self.regions.get(number)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Region> {
        self.regions.remove(number)
    }

    /// The contexts of all regions.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = u32> {
        self.regions.iter().map(|(_, region)| region.context)
    }

    /// The regions of a context, in words.
    pub(crate) fn of_context(&self, context: u32) -> impl Iterator<Item = String> {
        self.regions
            .iter()
            .filter(move |(_, region)| region.context == context)
            .map(|(number, region)| format!("memory region {number} of {} bytes", region.length))
    }

    /// Makes the keys of a context open nothing any more.
    pub(crate) fn cut_off(&mut self, context: u32) {
        for (_, region) in self.regions.iter_mut().filter(|(_, each)| each.context == context) {
            region.cut_off = true;
        }
    }

    /// What a local key opens: `length` bytes at `address`, in a domain, with some access.
    pub(crate) fn local(
        &self,
        key: u32,
        domain: u32,
        address: u64,
        length: u64,
        access: u32,
    ) -> Result<Place, Denied> {
        let region =
            self.regions.get(key >> 8).filter(|region| region.lkey == key).ok_or(Denied)?;
        region.open(domain, address, length, access)
    }

    /// What a remote key opens.
    pub(crate) fn remote(
        &self,
        key: u32,
        domain: u32,
        address: u64,
        length: u64,
        access: u32,
    ) -> Result<Place, Denied> {
        let region =
            self.regions.get(key >> 8).filter(|region| region.rkey == key).ok_or(Denied)?;
        region.open(domain, address, length, access)
    }

    /// Checks a list of segments and adds what they open to `pieces`; how many bytes these are.
    pub(crate) fn gather(
        &self,
        segments: &[c::ibv_sge],
        domain: u32,
        access: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<u64, Denied> {
        let mut total = 0;
        for segment in segments.iter().filter(|segment| segment.length > 0) {
            let length = u64::from(segment.length);
            let place = self.local(segment.lkey, domain, segment.addr, length, access)?;
            pieces.push(Piece { place, length: usize::try_from(length).map_err(|_| Denied)? });
            total += length;
        }
        Ok(total)
    }
}

impl Region {
    /// Where `length` bytes at `address` are, if they are inside and the access is granted.
    fn open(&self, domain: u32, address: u64, length: u64, access: u32) -> Result<Place, Denied> {
        let offset = address.checked_sub(self.iova).ok_or(Denied)?;
        let end = offset.checked_add(length).ok_or(Denied)?;
        let granted = self.access & access == access;
        if self.cut_off || self.domain != domain || end > self.length || !granted {
            return Err(Denied);
        }
        Ok(self.place.at(usize::try_from(offset).map_err(|_| Denied)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (KeyTable, u32, u32) {
        let mut keys = KeyTable::new();
        let number = keys.insert(Region {
            context: 1,
            domain: 7,
            iova: 0x1000,
            length: 100,
            place: Place::Host(0x5000),
            access: c::IBV_ACCESS_REMOTE_READ,
            lkey: 0,
            rkey: 0,
            mapping: None,
            cut_off: false,
        });
        let region = keys.get(number).unwrap();
        let (lkey, rkey) = (region.lkey, region.rkey);
        (keys, lkey, rkey)
    }

    #[test]
    fn a_key_opens_its_own_bytes_only() {
        let (keys, lkey, rkey) = table();
        assert_eq!(keys.local(lkey, 7, 0x1000, 100, 0), Ok(Place::Host(0x5000)));
        assert_eq!(keys.local(lkey, 7, 0x1063, 1, 0), Ok(Place::Host(0x5063)));
        assert_eq!(keys.local(lkey, 7, 0x1064, 1, 0), Err(Denied));
        assert_eq!(keys.local(lkey, 7, 0x0fff, 1, 0), Err(Denied));
        assert_eq!(keys.local(lkey, 7, 0x1001, u64::MAX, 0), Err(Denied));
        assert_eq!(keys.local(lkey, 8, 0x1000, 1, 0), Err(Denied));
        assert_eq!(keys.local(rkey, 7, 0x1000, 1, 0), Err(Denied));
        assert_eq!(keys.remote(lkey, 7, 0x1000, 1, 0), Err(Denied));
        let read = c::IBV_ACCESS_REMOTE_READ;
        assert_eq!(keys.remote(rkey, 7, 0x1000, 1, read), Ok(Place::Host(0x5000)));
        assert_eq!(keys.remote(rkey, 7, 0x1000, 1, c::IBV_ACCESS_REMOTE_WRITE), Err(Denied));
    }

    #[test]
    fn a_key_of_a_removed_region_does_not_open_its_successor() {
        let (mut keys, lkey, _) = table();
        let region = keys.remove(lkey >> 8).unwrap();
        let next = keys.insert(region);
        assert_eq!(next, lkey >> 8);
        assert_eq!(keys.local(lkey, 7, 0x1000, 1, 0), Err(Denied));
    }
}
