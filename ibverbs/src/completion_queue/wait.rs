//! Waiting for completions: spin, arm, poll again, sleep.
#![expect(unsafe_code, reason = "arms an ibv_cq")]

use std::{hint, mem::MaybeUninit, slice, time::Duration};

use super::CompletionQueue;
use crate::{Completion, Error, Result, Verb, descriptor::Deadline};

/// Which completions raise an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notification {
    /// The next one.
    Any,
    /// The next receive whose sender asked for it ([`SendWr::solicited`](crate::SendWr::solicited)), or the
    /// next failure.
    Solicited,
}

impl CompletionQueue<'_> {
    /// Arms the queue: the next completion raises one event on its channel.
    ///
    /// What is in the queue already raises none, so poll once more before waiting. Arming a queue that is armed
    /// changes nothing, except that `Any` widens `Solicited`. Does not wait; enters the kernel only where the
    /// provider does.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the queue was made without a channel, [`Error::Verb`] if the device is gone. See
    /// `ibv_req_notify_cq(3)`.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_notification(&self, which: Notification) -> Result<()> {
        if self.channel.is_none() {
            return Err(NO_CHANNEL);
        }
        let solicited = i32::from(which == Notification::Solicited);
        // SAFETY: `raw` is live, and its context has the entry.
        let returned = unsafe { rdma_sys::ibv_req_notify_cq(self.as_raw(), solicited) };
        Verb::new("ibv_req_notify_cq").status(returned)
    }

    /// Takes up to `slots.len()` completions off the queue, and waits for the first for up to `timeout`.
    ///
    /// Returns the slots that were filled, none if the time is up; [`Duration::MAX`] waits for ever. Polls for a
    /// while ([`spin`](crate::CompletionQueueBuilder::spin)), then arms the queue, polls once more and sleeps, so that
    /// no wake-up is lost. Several threads may wait for one queue, and for several queues of one channel; each
    /// completion goes to one of them.
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll) and [`request_notification`](Self::request_notification).
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait<'s>(
        &self,
        slots: &'s mut [MaybeUninit<Completion>],
        timeout: Duration,
    ) -> Result<&'s [Completion]> {
        let mut filled = 0;
        self.wait_until(timeout, || {
            filled = self.fill(slots)?;
            Ok(filled > 0)
        })?;
        // SAFETY: the last `fill` wrote that many, from the first on.
        Ok(unsafe { slice::from_raw_parts(slots.as_ptr().cast(), filled) })
    }

    /// Calls `poll` until it says that it found something, and sleeps in between.
    pub(super) fn wait_until(
        &self,
        timeout: Duration,
        mut poll: impl FnMut() -> Result<bool>,
    ) -> Result<bool> {
        let Some(channel) = &self.channel else { return Err(NO_CHANNEL) };
        let deadline = Deadline::after(timeout);
        let spinning = Deadline::after(self.spin.min(timeout));
        loop {
            if poll()? {
                return Ok(true);
            }
            if spinning.has_passed() {
                break;
            }
            hint::spin_loop();
        }
        loop {
            // In this order: an event after the count ends the sleep, and a completion before the queue
            // was armed, which raises none, is found by polling again.
            let seen = channel.taken(self.id);
            self.request_notification(Notification::Any)?;
            if poll()? {
                return Ok(true);
            }
            if !channel.sleep(self.id, seen, deadline)? {
                return poll();
            }
            if poll()? {
                return Ok(true);
            }
        }
    }
}

const NO_CHANNEL: Error = Error::Invalid {
    what: "the completion queue has no channel to wait on",
    remedy: "make it with `context.completion_queue(capacity).channel(&channel)`",
};
