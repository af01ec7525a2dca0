//! Completion queues: creation, delivery, notification, destruction.
#![expect(unsafe_code, reason = "the verbs of completion queues, called from C")]

mod delivery;
mod extended;
mod poll;

use std::{
    collections::VecDeque,
    ffi::{c_int, c_void},
    ptr,
    time::Instant,
};

use rdma_sys as c;

use crate::{
    async_event::{Acknowledgements, Element},
    errno::{Outcome, object, status},
    fabric::fabric,
    handle::{ContextRef, Handle},
    owner_lock::OwnerLock,
    verb::Verb,
};

pub(crate) use extended::{create_cq_ex, efadv_cq_from_ibv_cq_ex, efadv_create_cq};
pub(crate) use poll::poll_cq;

/// Finished work, as the device reports it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) status: c::ibv_wc_status,
    pub(crate) opcode: c::ibv_wc_opcode,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data in network order, or the key that was invalidated.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    /// The pair it is of, whatever a test makes `qp_num` say.
    pub(crate) pair: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) timestamp: u64,
    pub(crate) wallclock: u64,
    pub(crate) solicited: bool,
    /// Of a message to an EFA device: who sent it, and whether it used no receive up.
    pub(crate) sgid: [u8; 16],
    pub(crate) unsolicited: bool,
    /// Of an Ethernet frame: what its flow calls it, and the tag of a VLAN that was taken out.
    pub(crate) flow_tag: u32,
    pub(crate) vlan: u16,
    pub(crate) frees: Frees,
}

/// Which places of work queues are free again once the completion was polled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Frees {
    #[default]
    Nothing,
    /// Of the send queue of a pair, all before this one, counted from its creation.
    Sends { pair: u32, before: u64 },
    /// One of the receive queue of a pair.
    Receive { pair: u32 },
    /// One of a shared receive queue.
    Shared { queue: u32 },
    /// One of a work queue.
    Work { queue: u32 },
}

/// When the next completion raises an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) context: u32,
    pub(crate) device: u32,
    /// Address of its C struct, and the data that its owner gave it.
    pub(crate) raw: usize,
    pub(crate) user_data: usize,
    channel: Option<u32>,
    /// Queue pairs and shared receive queues that report to it, each as often as it does.
    pub(crate) users: u32,
    pub(crate) events: Acknowledgements,
    pub(crate) async_events: Acknowledgements,
    capacity: usize,
    entries: VecDeque<Completion>,
    armed: Armed,
    overrun: bool,
    ignores_overrun: bool,
    has_clocks: bool,
    /// After how many completions, or microseconds, an event comes.
    moderation: c::ibv_moderate_cq,
    /// Completions since the queue was armed, and when the event comes if there are no more.
    counted: u16,
    event_due: Option<Instant>,
}

/// The C struct of a queue, and what the extended poller needs between two calls.
#[repr(C)]
pub(crate) struct QueueHandle {
    ex: c::ibv_cq_ex,
    number: u32,
    device: u32,
    lock: OwnerLock,
    current: Completion,
    efa: c::efadv_cq,
}

/// A completion queue as a caller names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueRef {
    pub(crate) number: u32,
    pub(crate) device: u32,
}

impl QueueRef {
    /// Which queue a caller means.
    ///
    /// # Safety
    ///
    /// `raw` is a live completion queue of this library.
    pub(crate) unsafe fn of(raw: *mut c::ibv_cq) -> Self {
        let handle: *mut QueueHandle = raw.cast();
        // SAFETY: the queue is live, and no call changes this field.
        let number = unsafe { (*handle).number };
        // SAFETY: the queue is live, and no call changes this field.
        let device = unsafe { (*handle).device };
        Self { number, device }
    }
}

/// What a queue is made with, by either verb.
struct Request {
    context: ContextRef,
    capacity: u32,
    user_data: *mut c_void,
    channel: *mut c::ibv_comp_channel,
    channel_number: Option<u32>,
    vector: u32,
    ignores_overrun: bool,
    has_clocks: bool,
    efa: c::efadv_cq,
}

/// See `ibv_create_cq(3)`. The capacity is not rounded up.
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut c::ibv_context,
    capacity: c_int,
    user_data: *mut c_void,
    channel: *mut c::ibv_comp_channel,
    vector: c_int,
) -> *mut c::ibv_cq {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives null or a live channel.
    let channel_number = unsafe { channel_number(channel) };
    let (Ok(capacity), Ok(vector)) = (u32::try_from(capacity), u32::try_from(vector)) else {
        return object(Err(libc::EINVAL));
    };
    let request = Request {
        context,
        capacity,
        user_data,
        channel,
        channel_number,
        vector,
        ignores_overrun: false,
        has_clocks: false,
        efa: c::efadv_cq::default(),
    };
    object(create(&request, Verb::ibv_create_cq, |_| {})).cast()
}

/// # Safety
///
/// `channel` is null or a live channel.
unsafe fn channel_number(channel: *mut c::ibv_comp_channel) -> Option<u32> {
    // SAFETY: a channel that is not null is live, by the contract above.
    (!channel.is_null()).then(|| unsafe { Handle::number(channel) })
}

fn create(
    request: &Request,
    verb: Verb,
    extend: impl FnOnce(&mut c::ibv_cq_ex),
) -> Outcome<*mut c::ibv_cq_ex> {
    let context = request.context;
    let mut fabric = fabric();
    fabric.enter(context.device, verb)?;
    let limits = fabric.limits(context.device)?;
    // SAFETY: the context is open while objects are made on it.
    let vectors = unsafe { (*context.raw).num_comp_vectors };
    if request.capacity == 0
        || request.capacity > limits.max_cqe
        || i64::from(request.vector) >= i64::from(vectors)
    {
        return Err(libc::EINVAL);
    }
    let most = limits.max_cq;
    fabric.within(most, fabric.queues.iter().map(|(_, each)| each.context), context.device)?;
    if let Some(channel) = request.channel_number {
        fabric.channels.get_mut(channel).ok_or(libc::EINVAL)?.queues += 1;
        // SAFETY: the channel is live, and this field is written under the lock only.
        unsafe { (*request.channel).refcnt += 1 };
    }
    let capacity = usize::try_from(request.capacity).map_err(|_| libc::EINVAL)?;
    let mut ex = c::ibv_cq_ex {
        context: context.raw,
        channel: request.channel,
        cq_context: request.user_data,
        cqe: c_int::try_from(request.capacity).map_err(|_| libc::EINVAL)?,
        ..c::ibv_cq_ex::default()
    };
    extend(&mut ex);
    let number = fabric.queues.insert_with(|number| {
        ex.handle = number;
        let handle = QueueHandle {
            ex,
            number,
            device: context.device,
            lock: OwnerLock::default(),
            current: Completion::default(),
            efa: request.efa,
        };
        CompletionQueue {
            context: context.number,
            device: context.device,
            raw: Box::into_raw(Box::new(handle)).expose_provenance(),
            user_data: request.user_data.expose_provenance(),
            channel: request.channel_number,
            users: 0,
            events: Acknowledgements::default(),
            async_events: Acknowledgements::default(),
            capacity,
            entries: VecDeque::with_capacity(capacity),
            armed: Armed::No,
            overrun: false,
            ignores_overrun: request.ignores_overrun,
            has_clocks: request.has_clocks,
            moderation: c::ibv_moderate_cq::default(),
            counted: 0,
            event_due: None,
        }
    });
    let raw = fabric.queues.get(number).map_or(0, |queue| queue.raw);
    Ok(ptr::with_exposed_provenance_mut(raw))
}

/// See `ibv_create_cq(3)`: `EBUSY` while a queue pair reports to it.
///
/// libibverbs waits until every event of the queue is acknowledged; so that a test that forgets one
/// ends, this refuses with `EBUSY` and notes a violation.
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut c::ibv_cq) -> c_int {
    // SAFETY: the caller gives a live queue.
    let queue = unsafe { QueueRef::of(cq) };
    // SAFETY: the caller gives a live queue.
    let channel = unsafe { (*cq).channel };
    let outcome = destroy(queue, channel);
    if outcome.is_ok() {
        // SAFETY: the queue is gone, the caller gives it up, and it came from a box of this type.
        drop(unsafe { Box::from_raw(cq.cast::<QueueHandle>()) });
    }
    status(outcome)
}

fn destroy(named: QueueRef, channel: *mut c::ibv_comp_channel) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(named.device, Verb::ibv_destroy_cq)?;
    let queue = fabric.queues.get(named.number).ok_or(libc::EINVAL)?;
    if queue.users > 0 {
        return Err(libc::EBUSY);
    }
    let open = queue.events.open() + queue.async_events.open();
    if open > 0 {
        let text = format!("ibv_destroy_cq: {open} events are not acknowledged");
        fabric.violation(named.device, text);
        return Err(libc::EBUSY);
    }
    let queue = fabric.queues.remove(named.number).ok_or(libc::EINVAL)?;
    fabric.forget_events(queue.context, Element::Queue(named.number, queue.raw));
    if let Some(channel) = queue.channel.and_then(|number| fabric.channels.get_mut(number)) {
        channel.forget(named.number);
        channel.queues -= 1;
    }
    if !channel.is_null() {
        // SAFETY: a channel outlives its queues, and this field is written under the lock only.
        unsafe { (*channel).refcnt -= 1 };
    }
    if let Some(control) = fabric.control(named.device) {
        control.forget_held(|held| held.queue == named.number);
    }
    Ok(())
}

/// See `ibv_req_notify_cq(3)`: completions that are in the queue already raise no event.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut c::ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller gives a live queue.
    let queue = unsafe { QueueRef::of(cq) };
    status(arm(queue, solicited_only != 0))
}

fn arm(named: QueueRef, solicited_only: bool) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(named.device, Verb::ibv_req_notify_cq)?;
    let queue = fabric.queues.get_mut(named.number).ok_or(libc::EINVAL)?;
    // A queue that is armed for every completion stays so.
    if queue.armed != Armed::Any {
        queue.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
    }
    Ok(())
}

/// See `ibv_resize_cq(3)`: `EINVAL` if what is in the queue does not fit.
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut c::ibv_cq, capacity: c_int) -> c_int {
    // SAFETY: the caller gives a live queue.
    let named = unsafe { QueueRef::of(cq) };
    let outcome = resize(named, capacity);
    if outcome.is_ok() {
        // SAFETY: the queue is live, and libibverbs changes this field in this call too.
        unsafe { (*cq).cqe = capacity };
    }
    status(outcome)
}

fn resize(named: QueueRef, capacity: c_int) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(named.device, Verb::ibv_resize_cq)?;
    let most = fabric.limits(named.device)?.max_cqe;
    let wanted = u32::try_from(capacity).map_err(|_| libc::EINVAL)?;
    let queue = fabric.queues.get_mut(named.number).ok_or(libc::EINVAL)?;
    let places = usize::try_from(wanted).map_err(|_| libc::EINVAL)?;
    if wanted == 0 || wanted > most || places < queue.entries.len() {
        return Err(libc::EINVAL);
    }
    queue.entries.reserve(places.saturating_sub(queue.entries.len()));
    queue.capacity = places;
    Ok(())
}

/// See `ibv_modify_cq(3)`: an event comes after `cq_count` completions, or `cq_period` microseconds
/// after the first of them.
pub(crate) unsafe extern "C" fn modify_cq(
    cq: *mut c::ibv_cq,
    attr: *mut c::ibv_modify_cq_attr,
) -> c_int {
    // SAFETY: the caller gives a live queue.
    let named = unsafe { QueueRef::of(cq) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { *attr };
    let mut fabric = fabric();
    status(fabric.enter(named.device, Verb::ibv_modify_cq).and_then(|()| {
        if attr.attr_mask != c::IBV_CQ_ATTR_MODERATE {
            return Err(libc::EINVAL);
        }
        let queue = fabric.queues.get_mut(named.number).ok_or(libc::EINVAL)?;
        queue.moderation = attr.moderate;
        Ok(())
    }))
}
