//! Polling with what a vendor's completion queue tells besides.

use std::time::Duration;

use rdma_sys::ibv_cq_ex;

use super::{Poller, take};
use crate::{ExtendedCompletion, Result};

impl Poller<'_> {
    /// Copies what has finished into `room`, from the first place on; returns how many. Never waits, never
    /// allocates.
    ///
    /// For queues of [`CompletionQueue::from_raw`](crate::CompletionQueue::from_raw): `make` gets each completion while the queue is on it,
    /// so that the vendor's functions can be asked about it. Completions that another way of polling copied
    /// before come first, and without the queue.
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next).
    ///
    /// # Safety
    ///
    /// `make` does nothing with the queue but read the completion that it is on, by functions that the queue has,
    /// and does not panic: the provider's lock is held.
    pub unsafe fn poll_with<E>(
        &mut self,
        room: &mut [E],
        make: impl Fn(ExtendedCompletion, Option<*mut ibv_cq_ex>) -> E,
    ) -> Result<usize> {
        let Some(found) = self.found.as_mut() else { return Ok(0) };
        let mut filled = 0;
        let left = found.entries.get(found.next..found.filled).unwrap_or_default();
        for (place, entry) in room.iter_mut().zip(left) {
            *place = make(*entry, None);
            filled += 1;
        }
        found.next += filled;
        if filled > 0 {
            return Ok(filled);
        }
        let (cq, fields) = (self.queue.as_raw().cast::<ibv_cq_ex>(), found.fields);
        let copy = |place: &mut E| {
            let mut entry = ExtendedCompletion::new(fields);
            // SAFETY: on a completion, by the contract of `take`, and `has_all` saw the entries for `fields`.
            unsafe { entry.read(cq, fields) };
            *place = make(entry, Some(cq));
        };
        found.tell_failure()?;
        // SAFETY: a live extended queue, which `has_all` looked at; `make` by this function's contract.
        let (filled, ended) = unsafe { take(cq, self.one_by_one, room, copy) };
        found.note_end(filled, ended)?;
        Ok(filled)
    }

    /// As [`poll_with`](Self::poll_with), but waits for the first completion for up to `timeout`, in the way of
    /// [`CompletionQueue::wait`](crate::CompletionQueue::wait).
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    ///
    /// # Safety
    ///
    /// As for [`poll_with`](Self::poll_with).
    pub unsafe fn wait_with<E>(
        &mut self,
        timeout: Duration,
        room: &mut [E],
        make: impl Fn(ExtendedCompletion, Option<*mut ibv_cq_ex>) -> E,
    ) -> Result<usize> {
        let mut filled = 0;
        let queue = self.queue.again();
        queue.wait_until(timeout, || {
            // SAFETY: by this function's contract.
            filled = unsafe { self.poll_with(room, &make) }?;
            Ok(filled > 0 || room.is_empty())
        })?;
        Ok(filled)
    }
}
