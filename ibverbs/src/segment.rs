//! Parts of registered memory, as work requests name them.

use std::{fmt, marker::PhantomData};

use crate::LocalKey;

/// A part of a registered region of this side (`ibv_sge`). The region cannot go away while it is held.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Segment<'m> {
    raw: rdma_sys::ibv_sge,
    region: PhantomData<&'m ()>,
}

impl Segment<'_> {
    #[inline]
    pub(crate) const fn new(address: u64, length: u32, key: LocalKey) -> Self {
        let raw = rdma_sys::ibv_sge { addr: address, length, lkey: key.0 };
        Self { raw, region: PhantomData }
    }

    /// What the device calls the first byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.raw.addr
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.raw.length
    }

    /// Whether it covers no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.raw.length == 0
    }

    /// The key of its region.
    #[must_use]
    pub const fn local_key(&self) -> LocalKey {
        LocalKey(self.raw.lkey)
    }

    #[inline]
    pub(crate) const fn to_raw(self) -> rdma_sys::ibv_sge {
        self.raw
    }
}

impl fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("address", &format_args!("{:#x}", self.raw.addr))
            .field("length", &self.raw.length)
            .field("local_key", &self.local_key())
            .finish()
    }
}
