//! A pool that registers memory once and lends it in pieces.
//!
//! Registration enters the kernel and pins pages, so that it must not happen per message. The pool registers
//! slabs, cuts each into blocks of one power of two, and takes blocks back when they are dropped.

use std::{
    fmt,
    ops::{Range, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    Access, Error, MemoryRegion, PageAligned, Parent, ProtectionDomain, RemoteMemory, Result,
    Segment, SharedBytes, bounds,
};

/// Registered memory to borrow from. Cheap to clone; all clones are one pool.
///
/// A block that is dropped while a request still names it is lent again, and the transfer then mixes its bytes into the
/// next borrower's: hold blocks until their requests have completed. No memory is freed under a device.
///
/// # Examples
///
/// ```
/// use ibverbs::{Access, PoolOptions, PooledMemory, ProtectionDomain, RegionPool};
///
/// fn message<'a>(
///     domain: &'a ProtectionDomain<'a>,
///     text: &[u8],
/// ) -> ibverbs::Result<(RegionPool<'a>, PooledMemory<'a>)> {
///     let pool = RegionPool::new(domain, PoolOptions::new(Access::LOCAL_WRITE));
///     let block = pool.lend(text.len())?;
///     block.bytes().write(0, text)?;
///     // `block.segment(..)` goes into a request; the block goes back when it is dropped.
///     Ok((pool, block))
/// }
/// ```
#[derive(Clone)]
pub struct RegionPool<'a> {
    shared: Arc<Shared<'a>>,
}

/// How a pool grows.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    access: Access,
    smallest_block: usize,
    slab_length: usize,
    most_registered: usize,
}

impl PoolOptions {
    /// Blocks of at least 4 KiB, cut out of slabs of 4 MiB, 1 GiB at most in all.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self { access, smallest_block: 4096, slab_length: 4 << 20, most_registered: 1 << 30 }
    }

    /// The smallest block in bytes, rounded up to a power of two.
    #[must_use]
    pub fn smallest_block(self, bytes: usize) -> Self {
        Self { smallest_block: bytes, ..self }
    }

    /// How many bytes are registered at a time; longer requests get a slab of their own.
    #[must_use]
    pub fn slab_length(self, bytes: usize) -> Self {
        Self { slab_length: bytes, ..self }
    }

    /// How many bytes are registered at most in all.
    #[must_use]
    pub fn most_registered(self, bytes: usize) -> Self {
        Self { most_registered: bytes, ..self }
    }
}

/// What a pool has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Bytes that are registered.
    pub registered: usize,
    /// Bytes that are lent, in whole blocks.
    pub lent: usize,
    /// The most bytes that were lent at one time.
    pub most_lent: usize,
    /// Requests that were answered without registering.
    pub reused: u64,
    /// Registrations.
    pub registrations: u64,
    /// Registrations given back to make room.
    pub released: u64,
}

struct Shared<'a> {
    domain: Parent<'a, ProtectionDomain<'a>>,
    options: PoolOptions,
    state: Mutex<State<'a>>,
}

#[derive(Default)]
struct State<'a> {
    slabs: Vec<Slab<'a>>,
    statistics: PoolStatistics,
}

/// One registration, cut into blocks of one length.
struct Slab<'a> {
    region: Arc<MemoryRegion<'a, PageAligned>>,
    block: usize,
    /// Offsets of the blocks that are not lent.
    free: Vec<usize>,
}

impl<'a> RegionPool<'a> {
    /// A pool in a domain, borrowed or shared. Registers nothing yet.
    #[must_use]
    pub fn new(domain: impl Into<Parent<'a, ProtectionDomain<'a>>>, options: PoolOptions) -> Self {
        let state = Mutex::default();
        Self { shared: Arc::new(Shared { domain: domain.into(), options, state }) }
    }

    /// Lends `length` bytes; what was in them is left there. Takes a lock; registers if no block is free.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for no bytes, or if the pool may not register as many more; [`Error::Verb`] if registration
    /// is refused.
    pub fn lend(&self, length: usize) -> Result<PooledMemory<'a>> {
        let options = &self.shared.options;
        let most = options.most_registered;
        let remedy = "`PoolOptions::most_registered` is how much the pool may register";
        Error::check_or("the length of a block", length as u64, 1..=most as u64, remedy)?;
        let block = length.max(options.smallest_block);
        let block = block.checked_next_power_of_two().ok_or(Error::OutOfRange {
            what: "the length of a block",
            asked: block as u64,
            minimum: 1,
            maximum: 1 << (usize::BITS - 1),
            remedy: Some("blocks have a power of two of bytes"),
        })?;
        let mut state = self.shared.lock();
        if let Some(memory) = state.take(&self.shared, block, length) {
            state.statistics.reused += 1;
            return Ok(memory);
        }
        let slab_length = options.slab_length.max(block);
        state.make_room(slab_length, most)?;
        let buffer = PageAligned::new(slab_length)?;
        let region = MemoryRegion::register(self.shared.domain.again(), buffer, options.access)?;
        let free = (0..slab_length / block).rev().map(|index| index * block).collect();
        state.slabs.push(Slab { region: Arc::new(region), block, free });
        state.statistics.registered += slab_length;
        state.statistics.registrations += 1;
        // The slab that was just pushed has a block of this length.
        state.take(&self.shared, block, length).ok_or_else(|| Error::Invalid {
            what: "a new slab of the pool has no block".into(),
            remedy: "choose a slab length of at least one block",
        })
    }

    /// Gives back every registration of which nothing is lent.
    pub fn release_idle(&self) {
        let mut state = self.shared.lock();
        state.release_idle(0);
    }

    /// What it has done so far.
    #[must_use]
    pub fn statistics(&self) -> PoolStatistics {
        self.shared.lock().statistics
    }
}

/// What to do about a pool that may not register more.
const POOL_IS_FULL: &str =
    "drop blocks that are lent, or make the pool with a larger `PoolOptions::most_registered`";

impl<'a> Shared<'a> {
    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        // The state is whole between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> State<'a> {
    /// A free block, if there is one.
    fn take(
        &mut self,
        shared: &Arc<Shared<'a>>,
        block: usize,
        length: usize,
    ) -> Option<PooledMemory<'a>> {
        let slab =
            self.slabs.iter_mut().find(|slab| slab.block == block && !slab.free.is_empty())?;
        let start = slab.free.pop()?;
        self.statistics.lent += block;
        self.statistics.most_lent = self.statistics.most_lent.max(self.statistics.lent);
        let region = Arc::clone(&slab.region);
        Some(PooledMemory { shared: Arc::clone(shared), region, start, length, block })
    }

    /// Releases idle slabs until `more` bytes fit under `most`.
    fn make_room(&mut self, more: usize, most: usize) -> Result<()> {
        if self.statistics.registered.saturating_add(more) > most {
            self.release_idle(most.saturating_sub(more));
        }
        let asked = self.statistics.registered.saturating_add(more) as u64;
        let what = "the number of bytes that the pool has registered";
        Error::check_or(what, asked, 0..=most as u64, POOL_IS_FULL)
    }

    /// Releases slabs of which nothing is lent until at most `keep` bytes are registered.
    fn release_idle(&mut self, keep: usize) {
        let statistics = &mut self.statistics;
        self.slabs.retain(|slab| {
            let length = slab.region.len();
            let idle = slab.free.len() == length / slab.block;
            let release = idle && statistics.registered > keep;
            if release {
                statistics.registered -= length;
                statistics.released += 1;
            }
            !release
        });
    }
}

impl fmt::Debug for RegionPool<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionPool")
            .field("options", &self.shared.options)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

/// A block lent by a [`RegionPool`]; goes back when dropped.
pub struct PooledMemory<'a> {
    shared: Arc<Shared<'a>>,
    region: Arc<MemoryRegion<'a, PageAligned>>,
    start: usize,
    length: usize,
    block: usize,
}

impl PooledMemory<'_> {
    /// The length in bytes, as it was asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Always false: no empty block is lent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A part for a work request of this side.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the range does not lie inside, [`Error::OutOfRange`] if it is longer than 4 GiB - 1.
    pub fn segment(&self, range: impl RangeBounds<usize>) -> Result<Segment<'_>> {
        let Range { start, end } = bounds::inside("the pooled memory", range, self.length)?;
        self.region.segment(self.start + start..self.start + end)
    }

    /// The bytes, to be copied in and out.
    #[must_use]
    pub fn bytes(&self) -> SharedBytes<'_> {
        self.region.bytes().within(self.start, self.length)
    }

    /// The handle that a peer needs to reach this block.
    ///
    /// Its key is that of the whole slab: a peer that does not keep to the handle's bounds reaches other blocks too.
    /// Give peers that are not trusted a region of their own.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        let address = self.region.address() + self.start as u64;
        RemoteMemory::of_region(address, self.length as u64, self.region.remote_key())
    }
}

impl Drop for PooledMemory<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.statistics.lent -= self.block;
        let same = |slab: &&mut Slab<'_>| Arc::ptr_eq(&slab.region, &self.region);
        if let Some(slab) = state.slabs.iter_mut().find(same) {
            slab.free.push(self.start);
        }
    }
}

impl fmt::Debug for PooledMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledMemory")
            .field("start", &self.start)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
