//! Polling with what a vendor's completion queue tells besides.

use std::time::Duration;

use rdma_sys::ibv_cq_ex;

use super::Poller;
use crate::{ExtendedCompletion, Result, Verb};

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
        let (verb, cq) = (Verb::new("ibv_start_poll"), self.queue.as_raw().cast::<ibv_cq_ex>());
        if filled > 0 {
            return Ok(filled);
        }
        if let Some(code) = found.failure.take() {
            verb.status(code)?;
        }
        let mut attributes = rdma_sys::ibv_poll_cq_attr::default();
        while filled < room.len() {
            // SAFETY: a live extended queue, which always has this entry (`has_all`); no thread has it locked
            // for longer than this function runs.
            match unsafe { rdma_sys::ibv_start_poll(cq, &raw mut attributes) } {
                0 => {}
                libc::ENOENT => break,
                code if filled == 0 => return verb.status(code).map(|()| 0),
                code => {
                    found.failure = Some(code);
                    break;
                }
            }
            let mut ended = false;
            while let Some(place) = room.get_mut(filled) {
                let mut entry = ExtendedCompletion::default();
                // SAFETY: locked, on a completion, and `has_all` saw the entries for `fields`.
                unsafe { entry.read(cq, self.fields) };
                *place = make(entry, Some(cq));
                filled += 1;
                if self.one_by_one || filled == room.len() {
                    break;
                }
                // SAFETY: as above; every extended queue has this entry.
                let code = unsafe { rdma_sys::ibv_next_poll(cq) };
                if code != 0 {
                    found.failure = (code != libc::ENOENT).then_some(code);
                    ended = true;
                    break;
                }
            }
            // SAFETY: as above, after a start that succeeded.
            unsafe { rdma_sys::ibv_end_poll(cq) };
            if ended {
                break;
            }
        }
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
            Ok(filled > 0)
        })?;
        Ok(filled)
    }
}
