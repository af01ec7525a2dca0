//! Memory regions: registered memory, its keys, and the way from an address to guest pages.

use crate::bytes::index;
use crate::host::GuestMemory;
use crate::page_list::PageList;
use crate::scatter::ScatterList;
use crate::slots::Slots;
use crate::status::AdminStatus;

/// Page addresses that all regions of one device may hold together: 8 GiB of 4 KiB pages.
pub(crate) const MAX_PAGES: usize = 1 << 21;
/// Page sizes that can be registered: 4 KiB to 2 GiB.
pub(crate) const PAGE_SIZES: u64 = 0xffff_f000;

const KEY_SLOT_BITS: u32 = 16;
/// Set in remote keys only, so that a program that mixes the two keys up finds out.
const REMOTE_KEY: u32 = 1 << 24;

/// What may be done to a region, as the registration command encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permissions(pub(crate) u8);

impl Permissions {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const LOCAL_WRITE: Self = Self(1);
    pub(crate) const REMOTE_WRITE: Self = Self(2);
    pub(crate) const REMOTE_READ: Self = Self(4);

    const fn include(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }
}

/// One registered range of virtual addresses.
#[derive(Debug)]
struct MemoryRegion {
    key: u32,
    domain: u16,
    start: u64,
    length: u64,
    page_shift: u32,
    permissions: Permissions,
    pages: Vec<u64>,
}

/// A registration command.
#[derive(Debug)]
pub(crate) struct Registration<'a> {
    pub(crate) domain: u16,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) page_shift: u32,
    pub(crate) permissions: Permissions,
    pub(crate) pages: PageList<'a>,
}

/// The keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) local: u32,
    pub(crate) remote: u32,
}

/// Every region of one device.
///
/// A key is a slot and a generation, so that the key of a region that is gone stays invalid
/// until its slot has been used 255 times more.
#[derive(Debug)]
pub(crate) struct MemoryRegions {
    slots: Slots<MemoryRegion>,
    generation: u32,
    pages: usize,
}

impl MemoryRegions {
    pub(crate) const fn new(limit: u32) -> Self {
        Self { slots: Slots::new(limit), generation: 0, pages: 0 }
    }

    pub(crate) fn register(
        &mut self,
        memory: &dyn GuestMemory,
        registration: &Registration<'_>,
    ) -> Result<Keys, AdminStatus> {
        let &Registration { domain, start, length, page_shift, permissions, pages } = registration;
        let page_size = 1_u64.checked_shl(page_shift).unwrap_or(0);
        if page_size & PAGE_SIZES == 0 || length == 0 || start.checked_add(length).is_none() {
            return Err(AdminStatus::IllegalParameter);
        }
        let count = index((start % page_size).saturating_add(length).div_ceil(page_size));
        let total = self.pages.saturating_add(count);
        if total > MAX_PAGES {
            return Err(AdminStatus::NoResources);
        }
        let pages = pages.read(memory, count)?;
        if pages.iter().any(|page| page % 4096 != 0) {
            return Err(AdminStatus::IllegalParameter);
        }
        self.generation = self.generation % 0xff + 1;
        let generation = self.generation;
        let mut key = 0;
        self.slots.insert_with(|slot| {
            key = generation << KEY_SLOT_BITS | slot;
            MemoryRegion { key, domain, start, length, page_shift, permissions, pages }
        })?;
        self.pages = total;
        Ok(Keys { local: key, remote: key | REMOTE_KEY })
    }

    pub(crate) fn deregister(&mut self, local_key: u32) -> Result<(), AdminStatus> {
        let region = self.find(local_key).ok_or(AdminStatus::IllegalParameter)?;
        let pages = region.pages.len();
        drop(self.slots.remove(slot_of(local_key)));
        self.pages = self.pages.saturating_sub(pages);
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.pages = 0;
    }

    pub(crate) fn uses_domain(&self, domain: u16) -> bool {
        self.slots.iter().any(|region| region.domain == domain)
    }

    /// Appends the pages behind a buffer named by its local key; false if the key does not
    /// allow it.
    pub(crate) fn resolve_local(
        &self,
        domain: u16,
        buffer: crate::work_request::LocalBuffer,
        needed: Permissions,
        list: &mut ScatterList,
    ) -> bool {
        // Without bytes there is nothing to protect, and no key need be given.
        buffer.length == 0
            || self.find(buffer.key).is_some_and(|region| {
                region.resolve(domain, buffer.address, buffer.length, needed, list)
            })
    }

    /// The pages behind a range named by its remote key; none if the key does not allow it.
    pub(crate) fn resolve_remote(
        &self,
        domain: u16,
        buffer: crate::work_request::RemoteBuffer,
        needed: Permissions,
    ) -> Option<ScatterList> {
        let mut list = ScatterList::default();
        if buffer.length == 0 {
            return Some(list);
        }
        let key = buffer.key.checked_sub(REMOTE_KEY)?;
        let region = self.find(key)?;
        region.resolve(domain, buffer.address, buffer.length, needed, &mut list).then_some(list)
    }

    fn find(&self, key: u32) -> Option<&MemoryRegion> {
        self.slots.get(slot_of(key)).filter(|region| region.key == key)
    }
}

const fn slot_of(key: u32) -> u32 {
    key & ((1 << KEY_SLOT_BITS) - 1)
}

impl MemoryRegion {
    fn resolve(
        &self,
        domain: u16,
        address: u64,
        length: u32,
        needed: Permissions,
        list: &mut ScatterList,
    ) -> bool {
        let inside = address >= self.start
            && (address - self.start)
                .checked_add(length.into())
                .is_some_and(|end| end <= self.length);
        if !inside || domain != self.domain || !self.permissions.include(needed) {
            return false;
        }
        let page_size = 1_u64 << self.page_shift;
        let first_page = self.start - self.start % page_size;
        let mut offset = address - first_page;
        let mut left = u64::from(length);
        while left > 0 {
            let Some(page) = self.pages.get(index(offset >> self.page_shift)) else {
                return false;
            };
            let within = offset % page_size;
            let step = left.min(page_size - within);
            list.push(page.wrapping_add(within), step);
            offset += step;
            left -= step;
        }
        true
    }
}
