//! The memory that messages come from and go to.

use std::ops::Range;

use example_support::AnyError;
use ibverbs::{
    Access, Gather, MemoryRegion, PageAligned, ProtectionDomain, RemoteMemory, Scatter, SharedBytes,
};

/// Room in front of each box that is at least a page long, so that messages begin at a page.
const PAGE: usize = 4096;
/// Room in front of smaller ones: a cache line, and enough for the header of a datagram.
const LINE: usize = 64;

/// Where each lane has its outbox and its inbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    lead: usize,
    stride: usize,
    lanes: usize,
}

impl Layout {
    pub(crate) fn new(lanes: usize, longest: usize) -> Result<Self, AnyError> {
        let lead = if longest >= PAGE { PAGE } else { LINE };
        let stride = lead + longest.next_multiple_of(lead);
        let total = stride.checked_mul(lanes * 2).filter(|total| *total <= 1 << 40);
        total.ok_or("-q times -s is more memory than there can be: lower one of them")?;
        Ok(Self { lead, stride, lanes })
    }

    /// Bytes of all boxes.
    pub(crate) const fn total(&self) -> usize {
        self.stride * self.lanes * 2
    }

    /// What a lane sends.
    pub(crate) const fn outbox(&self, lane: usize, size: usize) -> Range<usize> {
        let start = self.stride * lane * 2 + self.lead;
        start..start + size
    }

    /// What a lane gets.
    pub(crate) const fn inbox(&self, lane: usize, size: usize) -> Range<usize> {
        let start = self.stride * (lane * 2 + 1) + self.lead;
        start..start + size
    }
}

/// Registered memory of the host, or of a GPU.
#[derive(Debug)]
pub(crate) enum Memory<'a> {
    Host(MemoryRegion<'a, PageAligned>),
    #[cfg(feature = "cuda")]
    Gpu(super::gpu::GpuMemory<'a>),
}

impl<'a> Memory<'a> {
    pub(crate) fn new(
        domain: &'a ProtectionDomain<'a>,
        length: usize,
        access: Access,
        gpu: Option<usize>,
    ) -> Result<Self, AnyError> {
        match gpu {
            None => Ok(Self::Host(domain.register(PageAligned::new(length)?, access)?)),
            #[cfg(feature = "cuda")]
            Some(ordinal) => {
                Ok(Self::Gpu(super::gpu::GpuMemory::new(domain, length, access, ordinal)?))
            }
            #[cfg(not(feature = "cuda"))]
            Some(_) => {
                Err("this rdma4rs was built without GPUs: install it with --features cuda".into())
            }
        }
    }

    /// Bytes to send.
    pub(crate) fn outgoing(&self, range: Range<usize>) -> Result<Gather<'_>, AnyError> {
        match self {
            Self::Host(region) => Ok(region.segment(range)?.into()),
            #[cfg(feature = "cuda")]
            Self::Gpu(memory) => memory.outgoing(range),
        }
    }

    /// Room for what comes.
    pub(crate) fn incoming(&self, range: Range<usize>) -> Result<Scatter<'_>, AnyError> {
        match self {
            Self::Host(region) => Ok(region.segment(range)?.into()),
            #[cfg(feature = "cuda")]
            Self::Gpu(memory) => memory.incoming(range),
        }
    }

    /// What the other side needs to reach it.
    pub(crate) fn remote(&self) -> Result<RemoteMemory, AnyError> {
        match self {
            Self::Host(region) => Ok(region.remote()),
            #[cfg(feature = "cuda")]
            Self::Gpu(memory) => memory.remote(),
        }
    }

    /// The bytes, where the CPU can reach them.
    pub(crate) fn shared(&self) -> Option<SharedBytes<'_>> {
        match self {
            Self::Host(region) => Some(region.bytes()),
            #[cfg(feature = "cuda")]
            Self::Gpu(_) => None,
        }
    }

    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), AnyError> {
        match self {
            Self::Host(region) => Ok(region.bytes().write(offset, bytes)?),
            #[cfg(feature = "cuda")]
            Self::Gpu(memory) => memory.write(offset, bytes),
        }
    }

    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AnyError> {
        match self {
            Self::Host(region) => Ok(region.bytes().read(offset, bytes)?),
            #[cfg(feature = "cuda")]
            Self::Gpu(memory) => memory.read(offset, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_lie_apart_with_room_in_front() {
        for longest in [1, 8, 100, 4096, 5000] {
            let layout = Layout::new(3, longest).unwrap();
            let mut boxes = Vec::new();
            for lane in 0..3 {
                boxes.extend([layout.outbox(lane, longest), layout.inbox(lane, longest)]);
            }
            let mut end = 0;
            for range in boxes {
                assert!(range.start >= end + 40 && range.start % 64 == 0, "{longest}: {range:?}");
                assert!(longest < 4096 || range.start % 4096 == 0, "{longest}: {range:?}");
                end = range.end;
            }
            assert!(end <= layout.total());
        }
        Layout::new(4096, 1 << 30).unwrap_err();
    }
}
