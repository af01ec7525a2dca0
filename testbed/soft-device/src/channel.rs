//! Completion channels: a file descriptor that is readable when a completion queue has news.
#![expect(unsafe_code, reason = "the verbs of completion channels, called from C")]

use std::{
    collections::VecDeque,
    ffi::{c_int, c_uint, c_void},
    os::fd::RawFd,
    ptr,
};

use rdma_sys as c;

use crate::{
    errno::{Outcome, minus_one, object, status},
    fabric::fabric,
    handle::{ContextRef, Handle},
    signal::{self, Signal},
    verb::Verb,
};

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) context: u32,
    /// Completion queues that report to it.
    pub(crate) queues: u32,
    signal: Signal,
    /// The queues that have news, by number.
    events: VecDeque<u32>,
}

impl Channel {
    pub(crate) fn push(&mut self, queue: u32) {
        self.events.push_back(queue);
        self.signal.raise();
    }

    /// Drops the events of a queue that is being destroyed.
    pub(crate) fn forget(&mut self, queue: u32) {
        let before = self.events.len();
        self.events.retain(|&each| each != queue);
        for _ in self.events.len()..before {
            self.signal.lower();
        }
    }
}

/// See `ibv_create_comp_channel(3)`.
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut c::ibv_context,
) -> *mut c::ibv_comp_channel {
    // SAFETY: the caller gives an open context.
    object(create(unsafe { ContextRef::of(context) }))
}

fn create(context: ContextRef) -> Outcome<*mut c::ibv_comp_channel> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_create_comp_channel)?;
    let signal = Signal::new()?;
    let fd = signal.fd();
    let number = fabric.channels.insert_with(|_| Channel {
        context: context.number,
        queues: 0,
        signal,
        events: VecDeque::new(),
    });
    Ok(Handle::make(c::ibv_comp_channel { context: context.raw, fd, refcnt: 0 }, number))
}

/// See `ibv_create_comp_channel(3)`: `EBUSY` while completion queues report to it.
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(
    channel: *mut c::ibv_comp_channel,
) -> c_int {
    // SAFETY: the caller gives a live channel.
    let raw = unsafe { (*channel).context };
    // SAFETY: a channel does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live channel.
    let number = unsafe { Handle::number(channel) };
    let outcome = destroy(context, number);
    if outcome.is_ok() {
        // SAFETY: the channel is gone and the caller gives it up.
        unsafe { Handle::free(channel) };
    }
    status(outcome)
}

fn destroy(context: ContextRef, number: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_destroy_comp_channel)?;
    if fabric.channels.get(number).ok_or(libc::EINVAL)?.queues > 0 {
        return Err(libc::EBUSY);
    }
    fabric.channels.remove(number);
    Ok(())
}

/// See `ibv_get_cq_event(3)`: waits unless the descriptor was made non-blocking.
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut c::ibv_comp_channel,
    cq: *mut *mut c::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a live channel.
    let number = unsafe { Handle::number(channel) };
    // SAFETY: the caller gives a live channel, and no call changes its fields.
    let c::ibv_comp_channel { context, fd, .. } = unsafe { *channel };
    // SAFETY: a channel does not outlive its context.
    let context = unsafe { ContextRef::of(context) };
    minus_one(next(context, number, fd).map(|(queue, user_data)| {
        // SAFETY: the caller gives a place for the queue.
        unsafe { cq.write(ptr::with_exposed_provenance_mut(queue)) };
        // SAFETY: the caller gives a place for its own data.
        unsafe { cq_context.write(ptr::with_exposed_provenance_mut(user_data)) };
    }))
}

/// The next queue with news: its address and the data its owner gave it.
fn next(context: ContextRef, channel: u32, fd: RawFd) -> Outcome<(usize, usize)> {
    fabric().enter(context.device, Verb::ibv_get_cq_event)?;
    loop {
        signal::wait(fd)?;
        let mut fabric = fabric();
        let events = &mut fabric.channels.get_mut(channel).ok_or(libc::EBADF)?.events;
        let Some(number) = events.pop_front() else { continue };
        if let Some(queue) = fabric.queues.get_mut(number) {
            queue.events.hand_out();
            return Ok((queue.raw, queue.user_data));
        }
    }
}

/// See `ibv_get_cq_event(3)`.
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut c::ibv_cq, count: c_uint) {
    let raw = cq.addr();
    let mut fabric = fabric();
    if let Some((_, queue)) = fabric.queues.iter_mut().find(|(_, each)| each.raw == raw) {
        queue.events.acknowledge(count);
        // SAFETY: the queue is live, and only this call, under the lock, writes the field.
        let completed = unsafe { &mut (*cq).comp_events_completed };
        *completed = completed.wrapping_add(count);
    }
}
