//! Registered memory: which bytes a key opens, for whom and for what.
//!
//! A key is the number of its region or window in the upper 24 bits and a tag in the lower 8. Local and
//! remote key of a region differ, so that one taken for the other is noticed.

use rdma_sys as c;

use crate::{slab::Slab, window::Window};

/// Where the bytes of a piece are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the memory of the process, at this address.
    Host(usize),
    /// In memory that an engine reaches: which, and how far from its start.
    Engine { attachment: u32, offset: u64 },
    /// Nowhere: what is read there is 0, what is written is lost.
    Nowhere,
}

impl Place {
    /// The place `offset` bytes further on.
    pub(crate) fn at(self, offset: usize) -> Self {
        match self {
            Self::Host(address) => Self::Host(address + offset),
            Self::Engine { attachment, offset: start } => {
                let further = u64::try_from(offset).unwrap_or(u64::MAX);
                Self::Engine { attachment, offset: start.saturating_add(further) }
            }
            Self::Nowhere => Self::Nowhere,
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
    /// The domain that is busy while it is there.
    pub(crate) holder: u32,
    /// The address by which work requests name the first byte.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) place: Place,
    pub(crate) access: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// What its bytes are kept in, given back with it.
    pub(crate) backing: Backing,
    /// Windows that are bound to it.
    pub(crate) windows: u32,
    /// Its context is closed: the key opens nothing any more.
    pub(crate) cut_off: bool,
}

/// What the bytes of a region are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Memory of the caller, or none.
    Caller,
    /// A mapping that was made for it: address and length.
    Mapping(usize, usize),
    /// Memory of the device, by its number.
    Device(u32),
    /// Memory that an engine reaches, by its number.
    Engine(u32),
}

impl Region {
    /// A region of no bytes; its keys come from [`KeyTable::insert`].
    pub(crate) fn new(context: u32, domain: u32, holder: u32, place: Place) -> Self {
        Self {
            context,
            domain,
            holder,
            iova: 0,
            length: 0,
            place,
            access: 0,
            lkey: 0,
            rkey: 0,
            backing: Backing::Caller,
            windows: 0,
            cut_off: false,
        }
    }

    /// Where `length` bytes at `address` are, if they are inside and the access is granted.
    fn open(&self, domain: u32, address: u64, length: u64, access: u32) -> Result<Place, Denied> {
        if self.cut_off || self.domain != domain || self.access & access != access {
            return Err(Denied);
        }
        self.at(address, length)
    }

    /// Where `length` bytes at `address` are, if they are inside.
    pub(crate) fn at(&self, address: u64, length: u64) -> Result<Place, Denied> {
        let offset = address.checked_sub(self.iova).ok_or(Denied)?;
        let end = offset.checked_add(length).ok_or(Denied)?;
        if end > self.length {
            return Err(Denied);
        }
        Ok(self.place.at(usize::try_from(offset).map_err(|_| Denied)?))
    }
}

/// Why a key does not open what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Denied;

/// What a key stands for.
#[derive(Debug)]
pub(crate) enum Keyed {
    Region(Region),
    Window(Window),
}

impl Keyed {
    fn context(&self) -> u32 {
        match self {
            Self::Region(region) => region.context,
            Self::Window(window) => window.context,
        }
    }
}

/// Who asks with a remote key: the pair that a request came to, and its domain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    pub(crate) pair: u32,
    pub(crate) domain: u32,
}

/// All keys of the process.
#[derive(Debug)]
pub(crate) struct KeyTable {
    entries: Slab<Keyed>,
    tag: u8,
}

/// The tag bit that tells remote keys from local ones.
const REMOTE: u32 = 0x80;

impl KeyTable {
    pub(crate) const fn new() -> Self {
        Self { entries: Slab::starting_at(1), tag: 0 }
    }

    /// A tag for the keys of a new entry, so that they differ from those of its predecessor.
    fn next_tag(&mut self) -> u32 {
        self.tag = self.tag.wrapping_add(1) & 0x7f;
        self.tag.into()
    }

    /// Adds a region, whose keys are made here; its number.
    pub(crate) fn insert(&mut self, region: Region) -> u32 {
        let tag = self.next_tag();
        self.entries.insert_with(|number| {
            let lkey = number << 8 | tag;
            Keyed::Region(Region { lkey, rkey: lkey | REMOTE, ..region })
        })
    }

    /// Adds a window, whose key is made here; its number.
    pub(crate) fn insert_window(&mut self, window: Window) -> u32 {
        let tag = self.next_tag();
        self.entries.insert_with(|number| {
            Keyed::Window(Window { rkey: number << 8 | tag | REMOTE, ..window })
        })
    }

    pub(crate) fn region(&self, number: u32) -> Option<&Region> {
        match self.entries.get(number)? {
            Keyed::Region(region) => Some(region),
            Keyed::Window(_) => None,
        }
    }

    pub(crate) fn region_mut(&mut self, number: u32) -> Option<&mut Region> {
        match self.entries.get_mut(number)? {
            Keyed::Region(region) => Some(region),
            Keyed::Window(_) => None,
        }
    }

    /// Gives a region new keys, which it returns.
    pub(crate) fn renew(&mut self, number: u32) -> (u32, u32) {
        let lkey = number << 8 | self.next_tag();
        if let Some(region) = self.region_mut(number) {
            (region.lkey, region.rkey) = (lkey, lkey | REMOTE);
        }
        (lkey, lkey | REMOTE)
    }

    pub(crate) fn window(&self, number: u32) -> Option<&Window> {
        match self.entries.get(number)? {
            Keyed::Region(_) => None,
            Keyed::Window(window) => Some(window),
        }
    }

    pub(crate) fn window_mut(&mut self, number: u32) -> Option<&mut Window> {
        match self.entries.get_mut(number)? {
            Keyed::Region(_) => None,
            Keyed::Window(window) => Some(window),
        }
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Keyed> {
        self.entries.remove(number)
    }

    /// How many regions or windows, as `counts` says, are on each context.
    pub(crate) fn contexts(&self, counts: impl Fn(&Keyed) -> bool) -> impl Iterator<Item = u32> {
        self.entries.iter().filter(move |(_, each)| counts(each)).map(|(_, each)| each.context())
    }

    /// The regions and windows of a context, in words.
    pub(crate) fn of_context(&self, context: u32) -> impl Iterator<Item = String> {
        self.entries.iter().filter(move |(_, each)| each.context() == context).map(
            |(number, each)| match each {
                Keyed::Region(region) => {
                    format!("memory region {number} of {} bytes", region.length)
                }
                Keyed::Window(_) => format!("memory window {number}"),
            },
        )
    }

    /// Makes the keys of a context open nothing any more.
    pub(crate) fn cut_off(&mut self, context: u32) {
        for (_, each) in self.entries.iter_mut().filter(|(_, each)| each.context() == context) {
            match each {
                Keyed::Region(region) => region.cut_off = true,
                Keyed::Window(window) => window.bound = None,
            }
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
        let region = self.region(key >> 8).filter(|region| region.lkey == key).ok_or(Denied)?;
        region.open(domain, address, length, access)
    }

    /// What a remote key opens.
    pub(crate) fn remote(
        &self,
        key: u32,
        asker: Asker,
        address: u64,
        length: u64,
        access: u32,
    ) -> Result<Place, Denied> {
        match self.entries.get(key >> 8).ok_or(Denied)? {
            Keyed::Region(region) if region.rkey == key => {
                region.open(asker.domain, address, length, access)
            }
            Keyed::Window(window) if window.rkey == key => {
                let (region, address) = window.open(asker, address, length, access)?;
                let region = self.region(region).filter(|region| !region.cut_off).ok_or(Denied)?;
                region.at(address, length)
            }
            _ => Err(Denied),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Asker = Asker { pair: 1, domain: 7 };

    fn bytes() -> Region {
        Region { iova: 0x1000, length: 100, ..Region::new(1, 7, 7, Place::Host(0x5000)) }
    }

    fn table() -> (KeyTable, u32, u32) {
        let mut keys = KeyTable::new();
        let access = c::IBV_ACCESS_REMOTE_READ;
        let number = keys.insert(Region { access, ..bytes() });
        let region = keys.region(number).unwrap();
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
        assert_eq!(keys.remote(lkey, OWNER, 0x1000, 1, 0), Err(Denied));
        let read = c::IBV_ACCESS_REMOTE_READ;
        assert_eq!(keys.remote(rkey, OWNER, 0x1000, 1, read), Ok(Place::Host(0x5000)));
        assert_eq!(keys.remote(rkey, OWNER, 0x1000, 1, c::IBV_ACCESS_REMOTE_WRITE), Err(Denied));
        let other = Asker { domain: 8, ..OWNER };
        assert_eq!(keys.remote(rkey, other, 0x1000, 1, read), Err(Denied));
    }

    #[test]
    fn a_key_of_a_removed_region_does_not_open_its_successor() {
        let (mut keys, lkey, _) = table();
        assert!(keys.remove(lkey >> 8).is_some());
        let next = keys.insert(bytes());
        assert_eq!(next, lkey >> 8);
        assert_eq!(keys.local(lkey, 7, 0x1000, 1, 0), Err(Denied));
    }
}
