//! Transfers of any length, as requests that the device can take.

use std::ops::{Bound, RangeBounds};

use ibverbs::{Destination, Region, RemoteMemory, RemoteSegment, SendWr};

use crate::{Peer, Result, Srd, chunks::Chunks};

/// Which way the bytes go.
#[derive(Debug, Clone, Copy)]
enum Direction {
    Write,
    Read,
}

/// The requests of one transfer, in the order of their bytes; see [`write_wrs`] and [`read_wrs`].
///
/// Each is made when it is asked for, and nothing is allocated. Clone it to begin anew.
#[derive(Debug, Clone)]
pub struct TransferWrs<'m> {
    direction: Direction,
    chunks: Chunks,
    region: &'m Region,
    /// As long as all chunks together.
    remote: RemoteMemory,
    /// How many bytes of the region stand before the transfer.
    start: usize,
    peer: Destination<'m>,
    next_id: u64,
}

/// Writes a range of a region to a peer's memory, in requests of at most `chunk` bytes, usually the
/// [`max_rdma_size`](crate::EfaDeviceAttributes::max_rdma_size) of the device.
///
/// The requests are numbered from 0 on, or from [`ids_from`](TransferWrs::ids_from), and each completes on its own: the transfer is
/// done when all have, in whatever order. They arrive in any order too, so that nothing tells the peer which came
/// last: tell it by a send or a write with immediate that is posted when all have completed.
///
/// # Errors
///
/// [`Error::Verbs`](crate::Error::Verbs) with [`OutOfBounds`](ibverbs::Error::OutOfBounds) for a range that does not lie inside of the region,
/// [`DoesNotFit`](ibverbs::Error::DoesNotFit) if it is longer than the peer's memory, [`Invalid`](ibverbs::Error::Invalid) for
/// chunks of no bytes.
///
/// # Examples
///
/// ```no_run
/// # use efa::{Peer, Srd, ibverbs::{QueuePair, Region, RemoteMemory}};
/// # fn f(pair: &QueuePair<'_, Srd>, from: &Region, to: &RemoteMemory, peer: &Peer<'_>)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let attributes = efa::query_device(pair.protection_domain().context())?;
/// for request in efa::write_wrs(from, .., &to.at(0)?, peer, attributes.max_rdma_size())? {
///     // Poll completions first where the send queue has not room for all.
///     pair.post_send(&mut [request])?;
/// }
/// # Ok(())
/// # }
/// ```
pub fn write_wrs<'m>(
    from: &'m Region,
    range: impl RangeBounds<usize>,
    to: &RemoteSegment,
    peer: &'m Peer<'_>,
    chunk: u32,
) -> Result<TransferWrs<'m>> {
    TransferWrs::new(Direction::Write, from, range, to, peer, chunk)
}

/// Reads a peer's memory into a range of a region with `LOCAL_WRITE`, as many bytes as the range has, in requests of
/// at most `chunk` bytes. See [`write_wrs`].
///
/// # Errors
///
/// As for [`write_wrs`].
pub fn read_wrs<'m>(
    into: &'m Region,
    range: impl RangeBounds<usize>,
    from: &RemoteSegment,
    peer: &'m Peer<'_>,
    chunk: u32,
) -> Result<TransferWrs<'m>> {
    TransferWrs::new(Direction::Read, into, range, from, peer, chunk)
}

impl<'m> TransferWrs<'m> {
    fn new(
        direction: Direction,
        region: &'m Region,
        range: impl RangeBounds<usize>,
        remote: &RemoteSegment,
        peer: &'m Peer<'_>,
        chunk: u32,
    ) -> Result<Self> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => region.len(),
        };
        let chunks = Chunks::new("the memory region", start..end, region.len(), chunk)?;
        let length = chunks.bytes() as u64;
        if length > remote.len() {
            return Err(ibverbs::Error::DoesNotFit {
                bytes: length,
                room: remote.len(),
                place: "the remote segment",
                remedy: "shorten the range, or name a longer part of the peer's memory",
            }
            .into());
        }
        let remote = RemoteMemory::new(remote.address(), length, remote.key())?;
        let peer = peer.destination();
        Ok(Self { direction, chunks, region, remote, start, peer, next_id: 0 })
    }

    /// Numbers the requests from `first` on.
    #[must_use]
    pub fn ids_from(self, first: u64) -> Self {
        Self { next_id: first, ..self }
    }
}

impl<'m> Iterator for TransferWrs<'m> {
    type Item = SendWr<'m, Srd>;

    #[inline]
    fn next(&mut self) -> Option<SendWr<'m, Srd>> {
        let range = self.chunks.next()?;
        let place = (range.start - self.start) as u64;
        let there = self.remote.part(place..place + range.len() as u64).ok()?;
        // Neither refuses: the range lies inside, and a chunk has at most 2^32 - 1 bytes.
        let here = self.region.segment(range).ok()?;
        let wr = match self.direction {
            Direction::Write => SendWr::write_to(here, &there, self.peer),
            Direction::Read => SendWr::read_from(here, &there, self.peer),
        };
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        Some(wr.id(id))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.chunks.size_hint()
    }
}

impl ExactSizeIterator for TransferWrs<'_> {}
