//! Registered memory that nobody but this side's own requests reach.
#![expect(unsafe_code, reason = "lends registered memory as plain slices")]

use std::{
    fmt,
    ops::{Deref, DerefMut, RangeBounds},
    slice,
};

use crate::{
    Access, HostBuffer, MemoryRegion, Parent, ProtectionDomain, Region, Result, Segment, SendWr,
};

/// A registered buffer that is moved into each request, and is plain bytes in between.
///
/// No peer has a key to it, and nothing names it but a request that it was moved into. So it needs no copying in and
/// out: it dereferences to `[u8]`. See [`OwnedQueuePair`](crate::OwnedQueuePair).
pub struct OwnedBuffer<'a, B: HostBuffer> {
    /// Without remote access; a request names it only while this lies in the list of an `OwnedQueuePair`. In a box,
    /// since it moves there and back with each request.
    region: Box<MemoryRegion<'a, B>>,
}

impl<'a, B: HostBuffer> OwnedBuffer<'a, B> {
    /// Registers a buffer in a domain, borrowed (`&domain`) or shared (`&Arc<ProtectionDomain>`). Enters the
    /// kernel and pins the pages, so that it pays to use it again and again.
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register`]. The buffer is dropped then.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        buffer: B,
    ) -> Result<Self> {
        let region = MemoryRegion::register(domain, buffer, Access::LOCAL_WRITE)?;
        Ok(Self { region: Box::new(region) })
    }

    /// Deregisters and gives the buffer back. Enters the kernel.
    ///
    /// # Errors
    ///
    /// As for [`MemoryRegion::into_buffer`].
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_buffer(self) -> Result<B> {
        self.region.into_buffer()
    }

    /// For the receive that it is moved into.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// The request that it is moved into, on a part of it.
    ///
    /// `make` is the caller's code, and could post what it is given to another queue pair, whose request would then
    /// outlast this one. So it is given a segment of the right length that no device follows, and the part is put
    /// in its place when the request is back.
    #[inline]
    pub(crate) fn request<T>(
        &self,
        range: impl RangeBounds<usize>,
        make: impl for<'s> FnOnce(Segment<'s>) -> SendWr<'s, T>,
    ) -> Result<SendWr<'_, T>> {
        let part = self.region.segment(range)?;
        let stand_in = self.region.behind(part.len());
        Ok(make(stand_in).replace(stand_in, part))
    }
}

impl<B: HostBuffer> Deref for OwnedBuffer<'_, B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.region.bytes();
        // SAFETY: initialised and in place while registered; no device writes it while no request names it, and
        // the field says that none does while this can be borrowed.
        unsafe { slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }
    }
}

impl<B: HostBuffer> DerefMut for OwnedBuffer<'_, B> {
    #[expect(clippy::disallowed_methods, reason = "no request names this memory now")]
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.region.bytes();
        // SAFETY: as for `deref`, and borrowed mutably from the only owner.
        unsafe { slice::from_raw_parts_mut(bytes.as_ptr(), bytes.len()) }
    }
}

impl<B: HostBuffer> fmt::Debug for OwnedBuffer<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedBuffer").field(self.region()).finish()
    }
}
