//! What is posted: requests in a send queue, and places in a receive queue.
//!
//! Everything is allocated when the queue is made, so that posting allocates nothing.
#![expect(unsafe_code, reason = "copies inline data out of the memory of callers")]

use std::time::Instant;

use rdma_sys as c;

use super::local::Binding;
use crate::{
    address::Vector,
    errno::Outcome,
    memory::{Piece, Place},
    transfer::copy_host,
};

/// A send request, without its segments.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) opcode: c::ibv_wr_opcode,
    pub(crate) flags: u32,
    /// Immediate data in network order, or the key to invalidate.
    pub(crate) immediate: u32,
    pub(crate) remote_address: u64,
    pub(crate) rkey: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    /// Where a datagram goes.
    pub(crate) vector: Option<Vector>,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    /// The shared receive queue that an XRC message is for.
    pub(crate) srqn: u32,
    /// How many bytes a packet of a stretch has that is to be cut.
    pub(crate) segment_size: u16,
    /// What a memory window is to be bound to.
    pub(crate) binding: Option<Binding>,
}

/// A request in its place, with what it has of segments or inline data.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    request: Request,
    segments: usize,
    inline: Option<usize>,
    /// Bytes of headers.
    header: usize,
    /// It waits, on a pair whose requests wait each for itself: until when, `None` for ever.
    waits: Option<Option<Instant>>,
}

/// The send queue of a pair. Positions count from its creation.
#[derive(Debug)]
pub(crate) struct SendQueue {
    requests: Box<[Entry]>,
    segments: Box<[c::ibv_sge]>,
    inline: Box<[u8]>,
    max_sge: usize,
    /// Bytes that each place has room for, and that a request may bring.
    max_inline: usize,
    most_inline: usize,
    /// Headers of stretches to be cut, and how long each can be.
    headers: Box<[u8]>,
    max_header: usize,
    posted: u64,
    executed: u64,
    freed: u64,
}

/// Whether the segments of a request are registered memory or bytes to be copied now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    Registered,
    Inline,
}

/// A number of entries as a length.
fn length(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Where the entry of a position is in a ring of `places`.
fn ring(position: u64, places: usize) -> usize {
    let places = u64::try_from(places.max(1)).unwrap_or(u64::MAX);
    usize::try_from(position % places).unwrap_or(0)
}

impl SendQueue {
    pub(crate) fn new(cap: &c::ibv_qp_cap, max_header: u16) -> Self {
        let max_header = usize::from(max_header);
        let (places, max_sge) = (length(cap.max_send_wr), length(cap.max_send_sge));
        // An atomic write brings its eight bytes along, whatever the capacity.
        let max_inline = length(cap.max_inline_data).max(8);
        Self {
            requests: vec![Entry::default(); places].into(),
            segments: vec![c::ibv_sge::default(); places * max_sge].into(),
            inline: vec![0; places * max_inline].into(),
            max_sge,
            max_inline,
            most_inline: length(cap.max_inline_data),
            headers: vec![0; places * max_header].into(),
            max_header,
            posted: 0,
            executed: 0,
            freed: 0,
        }
    }

    /// Queues a request: `ENOMEM` if there is no place, `EINVAL` if it has too many segments or too
    /// much inline data.
    ///
    /// # Safety
    ///
    /// With inline payload, each segment is memory of the process that can be read now.
    pub(crate) unsafe fn push(
        &mut self,
        request: Request,
        segments: &[c::ibv_sge],
        payload: Payload,
    ) -> Outcome {
        if self.posted - self.freed >= u64::try_from(self.requests.len()).unwrap_or(0) {
            return Err(libc::ENOMEM);
        }
        let place = ring(self.posted, self.requests.len());
        let inline = match payload {
            Payload::Registered => {
                if segments.len() > self.max_sge {
                    return Err(libc::EINVAL);
                }
                let start = place * self.max_sge;
                let room = self.segments.get_mut(start..start + segments.len());
                room.ok_or(libc::EINVAL)?.copy_from_slice(segments);
                None
            }
            Payload::Inline => {
                let total: usize = segments.iter().map(|segment| length(segment.length)).sum();
                let most =
                    if request.opcode == c::IBV_WR_ATOMIC_WRITE { 8 } else { self.most_inline };
                if total > most {
                    return Err(libc::EINVAL);
                }
                let mut to = place * self.max_inline;
                for segment in segments {
                    let bytes = length(segment.length);
                    let room = self.inline.get_mut(to..to + bytes).ok_or(libc::EINVAL)?;
                    let target = room.as_mut_ptr().expose_provenance();
                    let source = usize::try_from(segment.addr).map_err(|_| libc::EINVAL)?;
                    // SAFETY: the caller vouches for the source, and the target is `room`.
                    unsafe { copy_host(source, target, bytes) };
                    to += bytes;
                }
                Some(total)
            }
        };
        if let Some(entry) = self.requests.get_mut(place) {
            let segments = if inline.is_some() { 0 } else { segments.len() };
            *entry = Entry { request, segments, inline, header: 0, waits: None };
        }
        self.posted += 1;
        Ok(())
    }

    /// Whether requests can have headers of this length.
    pub(crate) fn has_room_for_header(&self, length: usize) -> bool {
        (1..=self.max_header).contains(&length)
    }

    /// Gives the last request its headers.
    ///
    /// # Safety
    ///
    /// `length` bytes can be read at `address` now.
    pub(crate) unsafe fn set_header(&mut self, address: usize, length: usize) {
        let Some(last) = self.posted.checked_sub(1) else { return };
        let place = ring(last, self.requests.len());
        let start = place * self.max_header;
        if let Some(room) = self.headers.get_mut(start..start + length)
            && let Some(entry) = self.requests.get_mut(place)
        {
            // SAFETY: the caller vouches for the source, and the target is `room`.
            unsafe { copy_host(address, room.as_mut_ptr().expose_provenance(), length) };
            entry.header = length;
        }
    }

    /// The headers of the request at a position.
    pub(crate) fn header(&self, position: u64) -> &[u8] {
        let place = ring(position, self.requests.len());
        let length = self.requests.get(place).map_or(0, |entry| entry.header);
        let start = place * self.max_header;
        self.headers.get(start..start + length).unwrap_or(&[])
    }

    /// The position after the last request.
    pub(crate) fn end(&self) -> u64 {
        self.posted
    }

    /// Takes back the requests from a position on, none of which was executed.
    pub(crate) fn truncate(&mut self, end: u64) {
        self.posted = end.max(self.executed);
    }

    /// The oldest request that is not done, and its position.
    pub(crate) fn next(&self) -> Option<(u64, Request)> {
        let place = ring(self.executed, self.requests.len());
        (self.executed < self.posted).then_some(())?;
        Some((self.executed, self.requests.get(place)?.request))
    }

    /// The request at a position.
    pub(crate) fn request(&self, position: u64) -> Option<Request> {
        Some(self.requests.get(ring(position, self.requests.len()))?.request)
    }

    /// Makes the request at a position the next one, in exchange for the one that was.
    pub(crate) fn bring_forward(&mut self, position: u64) {
        let (a, b) =
            (ring(self.executed, self.requests.len()), ring(position, self.requests.len()));
        self.requests.swap(a, b);
        for place in 0..self.max_sge {
            self.segments.swap(a * self.max_sge + place, b * self.max_sge + place);
        }
        for place in 0..self.max_inline {
            self.inline.swap(a * self.max_inline + place, b * self.max_inline + place);
        }
    }

    /// Until when the request at a position waits; `ends` tells if it begins to now.
    pub(crate) fn waits_until(
        &mut self,
        position: u64,
        ends: impl FnOnce() -> Option<Instant>,
    ) -> Option<Instant> {
        let place = ring(position, self.requests.len());
        *self.requests.get_mut(place)?.waits.get_or_insert_with(ends)
    }

    /// When the first request stops waiting.
    pub(crate) fn earliest_end(&self) -> Option<Instant> {
        (self.executed..self.posted)
            .filter_map(|position| self.requests.get(ring(position, self.requests.len()))?.waits?)
            .min()
    }

    /// The segments of the request at a position.
    pub(crate) fn segments(&self, position: u64) -> &[c::ibv_sge] {
        let place = ring(position, self.requests.len());
        let count = self.requests.get(place).map_or(0, |entry| entry.segments);
        self.segments.get(place * self.max_sge..place * self.max_sge + count).unwrap_or(&[])
    }

    /// The inline data of the request at a position, as memory of the device.
    pub(crate) fn inline(&self, position: u64) -> Option<Piece> {
        let place = ring(position, self.requests.len());
        let length = self.requests.get(place)?.inline?;
        let start = place * self.max_inline;
        let bytes = self.inline.get(start..start + length)?;
        Some(Piece { place: Place::Host(bytes.as_ptr().expose_provenance()), length })
    }

    /// Goes on to the next request.
    pub(crate) fn advance(&mut self) {
        self.executed += 1;
    }

    /// Frees the places before a position, whose completion was polled.
    pub(crate) fn free_before(&mut self, before: u64) {
        self.freed = self.freed.max(before);
    }

    /// Forgets every request.
    pub(crate) fn clear(&mut self) {
        self.executed = self.posted;
        self.freed = self.posted;
    }
}

/// The receive queue of a pair, or a shared one.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    /// Request number and count of segments of each place.
    requests: Box<[(u64, usize)]>,
    segments: Box<[c::ibv_sge]>,
    max_sge: usize,
    posted: u64,
    taken: u64,
    freed: u64,
}

impl ReceiveQueue {
    pub(crate) fn new(places: u32, max_sge: u32) -> Self {
        let (places, max_sge) = (length(places), length(max_sge));
        Self {
            requests: vec![(0, 0); places].into(),
            segments: vec![c::ibv_sge::default(); places * max_sge].into(),
            max_sge,
            posted: 0,
            taken: 0,
            freed: 0,
        }
    }

    /// Queues a place: `ENOMEM` if there is no room, `EINVAL` if it has too many segments.
    pub(crate) fn push(&mut self, wr_id: u64, segments: &[c::ibv_sge]) -> Outcome {
        if self.posted - self.freed >= u64::try_from(self.requests.len()).unwrap_or(0) {
            return Err(libc::ENOMEM);
        }
        if segments.len() > self.max_sge {
            return Err(libc::EINVAL);
        }
        let place = ring(self.posted, self.requests.len());
        let start = place * self.max_sge;
        let room = self.segments.get_mut(start..start + segments.len()).ok_or(libc::EINVAL)?;
        room.copy_from_slice(segments);
        if let Some(entry) = self.requests.get_mut(place) {
            *entry = (wr_id, segments.len());
        }
        self.posted += 1;
        Ok(())
    }

    /// The oldest place that is not used: its request number and its segments.
    pub(crate) fn next(&self) -> Option<(u64, &[c::ibv_sge])> {
        (self.taken < self.posted).then_some(())?;
        let place = ring(self.taken, self.requests.len());
        let &(wr_id, count) = self.requests.get(place)?;
        let start = place * self.max_sge;
        Some((wr_id, self.segments.get(start..start + count)?))
    }

    /// Uses the oldest place up.
    pub(crate) fn advance(&mut self) {
        self.taken += 1;
    }

    /// How many places are unused.
    pub(crate) fn waiting(&self) -> u64 {
        self.posted - self.taken
    }

    /// Frees one place, whose completion was polled.
    pub(crate) fn free_one(&mut self) {
        self.freed = self.taken.min(self.freed + 1);
    }

    /// Forgets every place.
    pub(crate) fn clear(&mut self) {
        self.taken = self.posted;
        self.freed = self.posted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_queue_is_full_until_a_completion_frees_all_before_it() {
        let cap = c::ibv_qp_cap { max_send_wr: 2, max_send_sge: 1, ..c::ibv_qp_cap::default() };
        let mut queue = SendQueue::new(&cap, 0);
        let push = |queue: &mut SendQueue| {
            // SAFETY: there is no inline data.
            unsafe { queue.push(Request::default(), &[], Payload::Registered) }
        };
        assert_eq!(push(&mut queue), Ok(()));
        assert_eq!(push(&mut queue), Ok(()));
        queue.advance();
        queue.advance();
        assert_eq!(push(&mut queue), Err(libc::ENOMEM));
        queue.free_before(2);
        assert_eq!(push(&mut queue), Ok(()));
        assert_eq!(queue.next().unwrap().0, 2);
    }

    #[test]
    fn a_queue_without_places_takes_nothing() {
        let mut queue = ReceiveQueue::new(0, 1);
        assert_eq!(queue.push(1, &[]), Err(libc::ENOMEM));
        assert!(queue.next().is_none());
    }
}
