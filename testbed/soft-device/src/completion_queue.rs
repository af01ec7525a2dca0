//! Completion queues: creation, delivery, notification, destruction.
#![expect(unsafe_code, reason = "the verbs of completion queues, called from C")]

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
    CompletionFault,
    async_event::{Acknowledgements, Element},
    clock,
    control::{Delivery, Held},
    errno::{Outcome, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    owner_lock::OwnerLock,
    verb::Verb,
};

pub(crate) use extended::create_cq_ex;
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
    pub(crate) channel: Option<u32>,
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
}

/// The C struct of a queue, and what the extended poller needs between two calls.
#[repr(C)]
pub(crate) struct QueueHandle {
    ex: c::ibv_cq_ex,
    number: u32,
    device: u32,
    lock: OwnerLock,
    current: Completion,
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

impl Fabric {
    /// Reports finished work, in the way that a test may have asked for.
    pub(crate) fn report(&mut self, queue: u32, mut completion: Completion) {
        let Some(device) = self.queues.get(queue).map(|queue| queue.device) else { return };
        let Some(control) = self.control(device) else { return };
        let mut times = 1;
        match control.next_fault() {
            None => {}
            Some(CompletionFault::Drop) => return,
            Some(CompletionFault::Repeat) => times = 2,
            Some(CompletionFault::Status(status)) => completion.status = status,
            Some(CompletionFault::Opcode(opcode)) => completion.opcode = opcode,
            Some(CompletionFault::WorkRequestId(wr_id)) => completion.wr_id = wr_id,
            Some(CompletionFault::ByteLength(byte_len)) => completion.byte_len = byte_len,
            Some(CompletionFault::VendorError(vendor_err)) => completion.vendor_err = vendor_err,
            Some(CompletionFault::QueuePairNumber(qp_num)) => completion.qp_num = qp_num,
        }
        let due = match control.delivery {
            Delivery::Prompt => {
                for _ in 0..times {
                    self.deliver(queue, completion);
                }
                return;
            }
            Delivery::Held => None,
            Delivery::After(delay) => Instant::now().checked_add(delay),
        };
        for _ in 0..times {
            control.hold(Held { due, queue, completion });
        }
        if due.is_some() {
            self.watch_the_clock();
        }
    }

    /// Puts a completion into its queue and raises the event that was asked for.
    pub(crate) fn deliver(&mut self, number: u32, completion: Completion) {
        let Some(queue) = self.queues.get_mut(number) else { return };
        if queue.entries.len() >= queue.capacity {
            let (context, raw) = (queue.context, queue.raw);
            let first = !queue.overrun && !queue.ignores_overrun;
            queue.overrun = true;
            if first {
                self.raise(context, c::IBV_EVENT_CQ_ERR, Element::Queue(number, raw));
            }
            return;
        }
        let clocks = queue.has_clocks;
        queue.entries.push_back(Completion {
            timestamp: if clocks { clock::ticks() } else { 0 },
            wallclock: if clocks { clock::wallclock() } else { 0 },
            ..completion
        });
        let wanted = match queue.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited || completion.status != c::IBV_WC_SUCCESS,
        };
        if wanted && let Some(channel) = queue.channel {
            queue.armed = Armed::No;
            if let Some(channel) = self.channels.get_mut(channel) {
                channel.push(number);
            }
        }
    }

    /// Takes the oldest completion out of a queue, and frees the places that it held.
    fn take(&mut self, queue: u32) -> Option<Completion> {
        let completion = self.queues.get_mut(queue)?.entries.pop_front()?;
        match completion.frees {
            Frees::Nothing => {}
            Frees::Sends { pair, before } => {
                if let Some(pair) = self.pairs.get_mut(pair) {
                    pair.send.free_before(before);
                }
            }
            Frees::Receive { pair } => {
                if let Some(pair) = self.pairs.get_mut(pair) {
                    pair.receive.free_one();
                }
            }
        }
        Some(completion)
    }

    /// Removes the completions of a pair that is destroyed or reset, on their way or there.
    pub(crate) fn sweep(&mut self, queue: u32, pair: u32) {
        let Some(there) = self.queues.get_mut(queue) else { return };
        there.entries.retain(|completion| completion.pair != pair);
        let device = there.device;
        if let Some(control) = self.control(device) {
            control.forget_held(|held| held.queue == queue && held.completion.pair == pair);
        }
    }
}
