//! Memory windows: parts of a region that are opened to peers, and closed again, by the send queue.
//!
//! Registering enters the kernel; binding a window is a work request. Each bind makes a new key, and the one
//! before it stops working, so that a peer's access ends when this side says so.
//!
//! A region to which a window is bound cannot be deregistered (`EBUSY`, with `rxe` `EINVAL`): it would leak its buffer.
//! Unbind the window, or drop it, before the region; one of type 2 also before the queue pair that bound it, whose
//! destruction would wait for it (`rxe` waits a minute).
#![expect(unsafe_code, reason = "owns an ibv_mw")]

use std::{borrow::Cow, fmt, marker::PhantomData, ops::RangeBounds, ptr::NonNull};

use crate::{
    Access, Connected, Error, Parent, PostError, ProtectionDomain, QueuePair, Region, RemoteKey,
    RemoteMemory, RemoteWrite, Result, SendWr, Transport, Verb,
};

/// A kind of memory window.
///
/// # Safety
///
/// `TYPE` is what the methods for this kind are right for.
pub unsafe trait WindowKind: Send + Sync + 'static {
    /// The number of C, `IBV_MW_TYPE_*`.
    const TYPE: u32;

    /// Posts a bind to `part`, or an unbind if that is empty.
    ///
    /// # Safety
    ///
    /// Queue pair, window and region are of one domain.
    #[doc(hidden)]
    unsafe fn post<T: Connected + RemoteWrite>(
        queue_pair: &QueuePair<'_, T>,
        window: &mut MemoryWindow<'_, Self>,
        part: WindowPart<'_>,
        options: BindOptions,
    ) -> Result<(), PostError>
    where
        Self: Sized;
}

/// The device chooses the keys; any queue pair of the domain can use the window.
#[derive(Debug, Clone, Copy)]
pub enum Type1 {}
/// This side chooses the low eight bits of the keys; the window belongs to the queue pair that bound it, and a
/// peer can take its key away by a [send with invalidate](SendWr::send_with_invalidate).
#[derive(Debug, Clone, Copy)]
pub enum Type2 {}

// SAFETY: windows of type 1 are bound by `ibv_bind_mw` only.
unsafe impl WindowKind for Type1 {
    const TYPE: u32 = rdma_sys::IBV_MW_TYPE_1;

    unsafe fn post<T: Connected + RemoteWrite>(
        queue_pair: &QueuePair<'_, T>,
        window: &mut MemoryWindow<'_, Self>,
        part: WindowPart<'_>,
        BindOptions { id, flags }: BindOptions,
    ) -> Result<(), PostError> {
        let verb = Verb::new("ibv_bind_mw");
        // A bind to no bytes unbinds, ibv_bind_mw(3); not every provider takes it without a region.
        let bind_info = part.to_raw();
        let mut bind = rdma_sys::ibv_mw_bind { wr_id: id, send_flags: flags, bind_info };
        let (qp, mw) = (queue_pair.as_raw(), window.as_raw());
        // SAFETY: queue pair, window and region are live, of one domain, and the window is of type 1.
        let returned = unsafe { rdma_sys::ibv_bind_mw(qp, mw, &raw mut bind) };
        let returned = verb.find(returned).and_then(|returned| verb.status(returned));
        returned.map_err(PostError::alone)
    }
}

// SAFETY: windows of type 2 are bound by requests only.
unsafe impl WindowKind for Type2 {
    const TYPE: u32 = rdma_sys::IBV_MW_TYPE_2;

    unsafe fn post<T: Connected + RemoteWrite>(
        queue_pair: &QueuePair<'_, T>,
        window: &mut MemoryWindow<'_, Self>,
        part: WindowPart<'_>,
        BindOptions { id, flags }: BindOptions,
    ) -> Result<(), PostError> {
        let old = window.remote_key();
        if part.length == 0 {
            let mut wr = SendWr::local_invalidate(old).id(id);
            wr.raw.send_flags |= flags;
            return queue_pair.post_send(&mut [wr]);
        }
        let key = rdma_sys::ibv_inc_rkey(old.0);
        let mut wr = SendWr::<T>::without_memory(rdma_sys::IBV_WR_BIND_MW).id(id);
        wr.raw.send_flags |= flags;
        wr.raw.__bindgen_anon_2.bind_mw = rdma_sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw: window.as_raw(),
            rkey: key,
            bind_info: part.to_raw(),
        };
        queue_pair.post_send(&mut [wr])?;
        // SAFETY: `raw` is live, and `&mut` keeps other uses of the window away. For windows of type 2 the key is
        // the caller's to keep, ibv_post_send(3).
        unsafe { (*window.as_raw()).rkey = key };
        Ok(())
    }
}

/// A memory window of kind `K`, bound or not.
///
/// # Examples
///
/// ```
/// use ibverbs::{
///     Access, BindOptions, MemoryRegion, MemoryWindow, PostError, QueuePair, Rc, RemoteMemory, Type2,
/// };
///
/// /// Lets the peer write the first kilobyte; the region has `LOCAL_WRITE` and `WINDOW_BIND`.
/// fn open(
///     pair: &QueuePair<'_, Rc>,
///     window: &mut MemoryWindow<'_, Type2>,
///     region: &MemoryRegion<'_, Vec<u8>>,
/// ) -> Result<RemoteMemory, Box<dyn std::error::Error>> {
///     let part = region.window(..1024, Access::REMOTE_WRITE)?;
///     Ok(pair.bind_window(window, part, BindOptions::new(1))?)
/// }
///
/// /// The peer can write no more when this has completed.
/// fn close(
///     pair: &QueuePair<'_, Rc>,
///     window: &mut MemoryWindow<'_, Type2>,
///     region: &MemoryRegion<'_, Vec<u8>>,
/// ) -> Result<(), PostError> {
///     pair.unbind_window(window, region, BindOptions::new(2))
/// }
/// ```
pub struct MemoryWindow<'a, K> {
    /// From `ibv_alloc_mw` of this kind on `domain`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_mw>,
    /// What it was bound to last, by a request that was posted.
    bound: Option<RemoteMemory>,
    domain: Parent<'a, ProtectionDomain<'a>>,
    kind: PhantomData<K>,
}

impl<'a, K: WindowKind> MemoryWindow<'a, K> {
    /// Makes a window in a domain, borrowed (`&domain`) or shared (`&Arc<ProtectionDomain>`). Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], or [`Error::Verb`] with `EOPNOTSUPP` or `EINVAL`, if the device does not have windows of this kind. See
    /// `ibv_alloc_mw(3)`.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn allocate(domain: impl Into<Parent<'a, ProtectionDomain<'a>>>) -> Result<Self> {
        let domain = domain.into();
        let verb = Verb::new("ibv_alloc_mw");
        // SAFETY: the domain is held.
        let raw = verb.find(unsafe { rdma_sys::ibv_alloc_mw(domain.as_raw(), K::TYPE) })?;
        Ok(Self { raw: verb.object(raw)?, bound: None, domain, kind: PhantomData })
    }

    /// What peers can reach through it, if the last request to bind it succeeded and no peer has taken the key
    /// away since. A window whose bind failed is best dropped: device and library may differ about its key.
    #[must_use]
    pub fn bound(&self) -> Option<RemoteMemory> {
        self.bound
    }

    /// Its key, which works while it is bound.
    #[must_use]
    pub fn remote_key(&self) -> RemoteKey {
        // SAFETY: `raw` is live; the key is changed through `&mut self` only.
        RemoteKey(unsafe { self.raw.as_ref() }.rkey)
    }

    /// Notes that a peer took the key away: its [send with invalidate](SendWr::send_with_invalidate) arrived.
    /// The window can be bound anew.
    pub fn invalidated(&mut self, key: RemoteKey) {
        if self.remote_key() == key {
            self.bound = None;
        }
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        &self.domain
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_mw {
        self.raw.as_ptr()
    }
}

/// A part of a region, and what peers may do with it through a window.
#[derive(Debug, Clone, Copy)]
pub struct WindowPart<'m> {
    region: &'m Region,
    address: u64,
    length: u64,
    access: Access,
}

impl Region {
    /// A part to bind a memory window to.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the range does not lie inside; [`Error::Invalid`] if the region was registered without
    /// [`Access::WINDOW_BIND`], or without [`Access::LOCAL_WRITE`] if the window is to be written.
    pub fn window(&self, range: impl RangeBounds<usize>, access: Access) -> Result<WindowPart<'_>> {
        if !self.access().contains(Access::WINDOW_BIND) {
            return Err(Error::Invalid {
                what: "the region does not allow memory windows".into(),
                remedy: "register it with Access::WINDOW_BIND",
            });
        }
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if writes && !self.access().contains(Access::LOCAL_WRITE) {
            return Err(Error::Invalid {
                what: "a window that peers write needs LOCAL_WRITE on its region".into(),
                remedy: "register the region with Access::LOCAL_WRITE, or bind for reads only",
            });
        }
        let part = self.segment(range)?;
        Ok(WindowPart { region: self, address: part.address(), length: part.len().into(), access })
    }
}

impl WindowPart<'_> {
    fn to_raw(self) -> rdma_sys::ibv_mw_bind_info {
        rdma_sys::ibv_mw_bind_info {
            mr: self.region.as_raw(),
            addr: self.address,
            length: self.length,
            mw_access_flags: self.access.bits(),
        }
    }

    /// What a peer calls it: addresses of a zero-based window count from 0.
    fn remote(&self, key: RemoteKey) -> RemoteMemory {
        let zero_based = self.access.contains(Access::ZERO_BASED);
        RemoteMemory::of_region(if zero_based { 0 } else { self.address }, self.length, key)
    }
}

/// How a request to bind or unbind reports.
#[derive(Debug, Clone, Copy)]
pub struct BindOptions {
    id: u64,
    flags: u32,
}

impl BindOptions {
    /// The number that its completion carries; it is signaled.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self { id, flags: rdma_sys::IBV_SEND_SIGNALED }
    }

    /// Reports only if it fails.
    #[must_use]
    pub const fn unsignaled(self) -> Self {
        Self { flags: self.flags & !rdma_sys::IBV_SEND_SIGNALED, ..self }
    }

    /// Starts only after the reads and atomics before it have finished.
    #[must_use]
    pub const fn fenced(self) -> Self {
        Self { flags: self.flags | rdma_sys::IBV_SEND_FENCE, ..self }
    }
}

impl<T: Transport> QueuePair<'_, T> {
    /// Binds a window to a part of a region: posts a request, and tells what to publish when it has completed.
    /// The window's key before this one stops working.
    ///
    /// Later requests of this queue pair find the window bound, so that the handle can be sent behind the bind
    /// without waiting. Windows of type 2 need [`Operations::BIND_WINDOW`](crate::Operations::BIND_WINDOW) and [`Operations::LOCAL_INVALIDATE`](crate::Operations::LOCAL_INVALIDATE) if the queue pair posts by
    /// `ibv_wr_*`.
    ///
    /// # Errors
    ///
    /// [`PostError`] if window, region and queue pair are not of one domain, if the part is empty, if the queue is full,
    /// or if the device does not have windows. See
    /// `ibv_bind_mw(3)`, `ibv_post_send(3)`.
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "ibv_wr_bind_mw")]
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind_window<K: WindowKind>(
        &self,
        window: &mut MemoryWindow<'_, K>,
        part: WindowPart<'_>,
        options: BindOptions,
    ) -> Result<RemoteMemory, PostError>
    where
        T: RemoteWrite + Connected,
    {
        if part.length == 0 {
            return Err(PostError::alone(Error::Invalid {
                what: "a window cannot be bound to 0 bytes".into(),
                remedy: "name some, or unbind it",
            }));
        }
        self.post_bind(window, part, options)?;
        let memory = part.remote(window.remote_key());
        window.bound = Some(memory);
        Ok(memory)
    }

    /// Unbinds a window from the region that it is bound to: posts a request. Its key stops working when that has
    /// completed.
    ///
    /// # Errors
    ///
    /// As for [`bind_window`](Self::bind_window). For a window of type 2 that is not bound the completion of the request fails.
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn unbind_window<K: WindowKind>(
        &self,
        window: &mut MemoryWindow<'_, K>,
        region: &Region,
        options: BindOptions,
    ) -> Result<(), PostError>
    where
        T: RemoteWrite + Connected,
    {
        let nothing =
            WindowPart { region, address: region.address(), length: 0, access: Access::empty() };
        self.post_bind(window, nothing, options)?;
        window.bound = None;
        Ok(())
    }

    fn post_bind<K: WindowKind>(
        &self,
        window: &mut MemoryWindow<'_, K>,
        part: WindowPart<'_>,
        options: BindOptions,
    ) -> Result<(), PostError>
    where
        T: RemoteWrite + Connected,
    {
        // SAFETY: the region is live.
        let region = unsafe { (*part.region.as_raw()).pd };
        if [region, window.domain.as_raw()] != [self.protection_domain().as_raw(); 2] {
            return Err(PostError::alone(OTHER_DOMAIN));
        }
        // SAFETY: just checked.
        unsafe { K::post(self, window, part, options) }
    }
}

/// What C's inline checks before it binds.
const OTHER_DOMAIN: Error = Error::Invalid {
    what: Cow::Borrowed("window, region and queue pair are not of one protection domain"),
    remedy: "make all of them in one `ProtectionDomain`",
};

impl<K> Drop for MemoryWindow<'_, K> {
    fn drop(&mut self) {
        let verb = Verb::new("ibv_dealloc_mw");
        // SAFETY: `raw` is live, and nothing reads it after this. Freeing a window unbinds it.
        if let Some(returned) = unsafe { rdma_sys::ibv_dealloc_mw(self.raw.as_ptr()) } {
            verb.log_refusal(returned);
        }
    }
}

impl<K: WindowKind> fmt::Debug for MemoryWindow<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("type", &K::TYPE)
            .field("remote_key", &self.remote_key())
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl<K> Send for MemoryWindow<'_, K> {}
// SAFETY: as for `Send`; the C object is changed through `&mut self` only.
unsafe impl<K> Sync for MemoryWindow<'_, K> {}
