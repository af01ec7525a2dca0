//! What every registered range of memory has in common.
#![expect(unsafe_code, reason = "owns an ibv_mr")]

use std::{
    fmt,
    ops::{Range, RangeBounds},
    ptr::{self, NonNull},
};

use crate::{
    Access, Error, LocalKey, RemoteKey, RemoteMemory, Result, Segment, SharedBytes, bounds,
    error::verb,
};

/// A registered range of memory, whoever owns its bytes: segments for work requests, the handle for
/// peers, and access by copying.
///
/// [`MemoryRegion`](crate::MemoryRegion) and the regions of a [`Scope`](crate::Scope) dereference to this.
pub struct Region {
    /// From a registration verb of `library`; freed only by `deregister`.
    raw: NonNull<rdma_sys::ibv_mr>,
    library: &'static rdma_sys::Library,
    /// What the device calls the first byte. Not what C's `addr` says: for a dma-buf that is an offset.
    address: u64,
    length: usize,
    access: Access,
    /// Whether the device, or a peer, ever had the right to write. A transfer that was under way when it was taken
    /// away may still use it: drivers differ in whether they wait for those, and in what becomes of windows.
    written: bool,
    /// Whether the kernel knows it, so that its rights can be changed.
    changeable: bool,
    /// Where the CPU reaches the first byte, if it does; then valid for `length` initialised bytes
    /// until the region is deregistered, and reached by raw pointers only.
    host: Option<NonNull<u8>>,
}

impl Region {
    /// Takes over what a registration verb returned.
    ///
    /// # Safety
    ///
    /// `raw` is a live registration of `length` bytes whose first byte the device calls `address`, nobody
    /// else deregisters it, and `host`, if given, keeps the field's invariant.
    pub(crate) unsafe fn new(
        raw: NonNull<rdma_sys::ibv_mr>,
        library: &'static rdma_sys::Library,
        (address, length): (u64, usize),
        access: Access,
        host: Option<NonNull<u8>>,
    ) -> Self {
        let (written, changeable) = (access.writes(), true);
        Self { raw, library, address, length, access, written, changeable, host }
    }

    /// The same registration, which only the library knows: its number in the kernel may be another one's.
    pub(crate) fn unknown_to_the_kernel(self) -> Self {
        Self { changeable: false, ..self }
    }

    /// The same registration, of memory that the CPU does not reach at its address.
    pub(crate) fn out_of_reach(self) -> Self {
        Self { host: None, ..self }
    }

    /// Ends the registration. After an `Ok` no device touches the memory. Enters the kernel.
    #[doc(alias = "ibv_dereg_mr")]
    pub(crate) fn deregister(&mut self) -> Result<()> {
        let (verb, deregister) = verb!(self.library, ibv_dereg_mr)?;
        // SAFETY: `raw` is live; after a success the owner of this forgets it.
        verb.status(unsafe { deregister(self.raw.as_ptr()) })
    }

    /// Gives other rights to the registration. Enters the kernel.
    pub(crate) fn change_access(&mut self, access: Access) -> Result<()> {
        if !self.changeable {
            return Err(Error::Invalid {
                what: "the rights of a region without memory cannot be changed".into(),
                remedy: "use it as it is",
            });
        }
        let (verb, change) = verb!(self.library, ibv_rereg_mr)?;
        let (flags, bits) =
            (rdma_sys::IBV_REREG_MR_CHANGE_ACCESS.cast_signed(), access.bits_signed());
        let (raw, nowhere) = (self.raw.as_ptr(), ptr::null_mut());
        // SAFETY: `raw` is live; domain and place are not changed, so that null and 0 are not looked at.
        let returned = unsafe { change(raw, flags, ptr::null_mut(), nowhere, 0, bits) };
        // After a failure the region may have either set of rights.
        self.access |= access;
        self.written |= access.writes();
        verb.reregistered(returned)?;
        self.access = access;
        Ok(())
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it covers no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What this side's work requests and its peers call the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// What it was registered for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether the device, or a peer, could write it at any time.
    pub(crate) fn could_be_written(&self) -> bool {
        self.written
    }

    /// The key for this side's work requests.
    #[must_use]
    #[doc(alias = "lkey")]
    pub fn local_key(&self) -> LocalKey {
        // SAFETY: `raw` is live, and only `&mut self` changes the keys.
        LocalKey(unsafe { self.raw.as_ref() }.lkey)
    }

    /// The key for peers.
    #[must_use]
    #[doc(alias = "rkey")]
    pub fn remote_key(&self) -> RemoteKey {
        // SAFETY: `raw` is live, and only `&mut self` changes the keys.
        RemoteKey(unsafe { self.raw.as_ref() }.rkey)
    }

    /// A part for a work request of this side. Costs a bounds check.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the range does not lie inside, [`Error::OutOfRange`] if it is longer than
    /// a work request can say (4 GiB - 1).
    #[doc(alias = "ibv_sge")]
    #[inline]
    pub fn segment(&self, range: impl RangeBounds<usize>) -> Result<Segment<'_>> {
        let Range { start, end } = bounds::inside("the memory region", range, self.length)?;
        let Ok(length) = u32::try_from(end - start) else {
            return Err(too_long(end - start));
        };
        Ok(Segment::new(self.address + start as u64, length, self.local_key()))
    }

    /// A segment that begins where the region ends: a request that names it fails, unless it is empty.
    pub(crate) fn behind(&self, length: u32) -> Segment<'_> {
        Segment::new(self.address.wrapping_add(self.length as u64), length, self.local_key())
    }

    /// The handle that a peer needs to reach this region.
    ///
    /// Publishing it is giving what [`access`](Self::access) allows to whoever gets it.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory::of_region(self.address, self.length as u64, self.remote_key())
    }

    /// The bytes, to be copied in and out; `None` for memory that the CPU cannot reach.
    #[must_use]
    pub fn shared_bytes(&self) -> Option<SharedBytes<'_>> {
        // SAFETY: by the invariant of `host`.
        self.host.map(|address| unsafe { SharedBytes::new(address, self.length) })
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_mr {
        self.raw.as_ptr()
    }
}

#[cold]
fn too_long(length: usize) -> Error {
    Error::OutOfRange {
        what: "the length of a segment in bytes",
        asked: length as u64,
        minimum: 0,
        maximum: u32::MAX.into(),
        remedy: Some("cut the transfer into several requests"),
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("address", &format_args!("{:#x}", self.address))
            .field("length", &self.length)
            .field("access", &self.access)
            .field("local_key", &self.local_key())
            .field("remote_key", &self.remote_key())
            .finish_non_exhaustive()
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3), and the bytes are
// reached by `SharedBytes` only.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; nothing is changed through `&self`.
unsafe impl Sync for Region {}
