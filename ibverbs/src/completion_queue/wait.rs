//! Waiting for completions: spin, arm, poll again, sleep.
#![expect(unsafe_code, reason = "arms an ibv_cq")]

use std::{borrow::Cow, hint, time::Duration};

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
    /// Returns the slots that were filled, none if the time is up or there are no slots; [`Duration::MAX`] waits for ever. Polls for a
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
        slots: &'s mut [Completion],
        timeout: Duration,
    ) -> Result<&'s [Completion]> {
        let mut filled = 0;
        self.wait_until(timeout, || {
            filled = self.fill(slots)?;
            Ok(filled > 0 || slots.is_empty())
        })?;
        Ok(&slots[..filled])
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
    what: Cow::Borrowed("the completion queue has no channel to wait on"),
    remedy: "make it with `context.completion_queue(capacity).channel(&channel)`",
};

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use soft_device::SoftDevice;

    use super::*;
    use crate::{ConnectOptions, DeviceSelector, Devices, Rc, RecvWr, SendWr};

    /// What finishes after the queue was found empty and before it was armed raises no event.
    #[test]
    fn a_completion_between_the_last_look_and_arming_ends_the_wait() {
        let device = SoftDevice::new();
        let devices = Devices::of(soft_device::library()).unwrap();
        let context = devices.by_name(device.name()).unwrap().open().unwrap();
        let port = context.local_port(&DeviceSelector::default()).unwrap();
        let domain = context.allocate_protection_domain().unwrap();
        let channel = context.create_completion_channel().unwrap();
        let spin = Duration::ZERO;
        let queue = context.completion_queue(8).channel(&channel).spin(spin).create().unwrap();
        let [a, b] = [(); 2].map(|()| domain.queue_pair::<Rc>(&queue, &queue).create().unwrap());
        let (to_a, to_b) = (a.endpoint(&port), b.endpoint(&port));
        let a = a.connect(&to_b, &ConnectOptions::new(&port)).unwrap();
        let b = b.connect(&to_a, &ConnectOptions::new(&port)).unwrap();
        b.post_receive(&mut [RecvWr::new(1)]).unwrap();

        let timeout = Duration::from_secs(20);
        let (start, mut looks) = (Instant::now(), 0);
        let found = queue.wait_until(timeout, || {
            looks += 1;
            let found = queue.fill(&mut Completion::slots::<1>())?;
            if looks == 1 {
                a.post_send(&mut [SendWr::send(&[])]).unwrap();
            }
            Ok(found > 0)
        });
        assert!(found.unwrap());
        assert_eq!(looks, 2);
        assert!(start.elapsed() < timeout);
    }
}
