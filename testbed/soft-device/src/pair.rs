//! Queue pairs: creation and destruction.
#![expect(unsafe_code, reason = "the verbs of queue pairs, called from C")]

mod execute;
mod extended;
mod modify;
mod post;
mod transition;
mod wait;
mod work;

use std::{ffi::c_int, ptr, time::Instant};

use rdma_sys as c;

use crate::{
    async_event::{Acknowledgements, Element},
    completion_queue::QueueRef,
    errno::{Outcome, object, status},
    fabric::{Fabric, fabric},
    handle::ContextRef,
    owner_lock::OwnerLock,
    region::DomainRef,
    verb::Verb,
};

pub(crate) use extended::{create_qp_ex, ibv_qp_to_qp_ex};
pub(crate) use modify::{ibv_modify_qp, ibv_query_qp};
pub(crate) use post::{post_recv, post_send};

use extended::Building;
use wait::Waiting;
use work::{ReceiveQueue, SendQueue};

/// A queue pair.
pub(crate) struct QueuePair {
    pub(crate) context: u32,
    pub(crate) device: u32,
    /// Address of its C struct.
    pub(crate) raw: usize,
    pub(crate) kind: c::ibv_qp_type,
    pub(crate) domain: u32,
    pub(crate) send_cq: u32,
    pub(crate) receive_cq: u32,
    pub(crate) state: c::ibv_qp_state,
    /// The attributes as they were set last; state and packet numbers are kept apart.
    pub(crate) attr: c::ibv_qp_attr,
    pub(crate) signals_all: bool,
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
    pub(crate) async_events: Acknowledgements,
    /// The number of the next packet it sends, and of the next one it expects.
    pub(crate) send_psn: u32,
    pub(crate) receive_psn: u32,
    waiting: Option<Waiting>,
}

impl QueuePair {
    /// When the wait of its oldest request is over, if it waits and not for ever.
    pub(crate) fn wait_ends(&self) -> Option<Instant> {
        self.waiting.as_ref()?.ends
    }
}

/// The C struct of a pair, and what extended posting needs between two calls.
#[repr(C)]
pub(crate) struct PairHandle {
    ex: c::ibv_qp_ex,
    number: u32,
    device: u32,
    extended: bool,
    lock: OwnerLock,
    building: Building,
}

/// A queue pair as a caller names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairRef {
    pub(crate) number: u32,
    pub(crate) device: u32,
}

impl PairRef {
    /// Which pair a caller means.
    ///
    /// # Safety
    ///
    /// `raw` is a live queue pair of this library.
    pub(crate) unsafe fn of(raw: *mut c::ibv_qp) -> Self {
        let handle: *mut PairHandle = raw.cast();
        // SAFETY: the pair is live, and no call changes this field.
        let number = unsafe { (*handle).number };
        // SAFETY: the pair is live, and no call changes this field.
        let device = unsafe { (*handle).device };
        Self { number, device }
    }
}

/// What a pair is made with, by either verb.
struct Creation<'a> {
    verb: Verb,
    context: ContextRef,
    pd: DomainRef,
    send_cq: (*mut c::ibv_cq, u32),
    receive_cq: (*mut c::ibv_cq, u32),
    init: &'a mut c::ibv_qp_init_attr,
    extended: bool,
}

/// See `ibv_create_qp(3)`. The capacities are not rounded up.
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut c::ibv_pd,
    attr: *mut c::ibv_qp_init_attr,
) -> *mut c::ibv_qp {
    // SAFETY: the caller gives a struct of its own.
    let init = unsafe { &mut *attr };
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(pd) };
    // SAFETY: the caller gives null or a live queue.
    let send_cq = unsafe { queue(init.send_cq) };
    // SAFETY: the caller gives null or a live queue.
    let receive_cq = unsafe { queue(init.recv_cq) };
    let (Some(send_cq), Some(receive_cq)) = (send_cq, receive_cq) else {
        return object(Err(libc::EINVAL));
    };
    object(create(
        Creation {
            verb: Verb::ibv_create_qp,
            context: pd.context,
            pd,
            send_cq,
            receive_cq,
            init,
            extended: false,
        },
        |_| {},
    ))
}

/// The number of a completion queue, `None` for null.
///
/// # Safety
///
/// `raw` is null or a live completion queue of this library.
unsafe fn queue(raw: *mut c::ibv_cq) -> Option<(*mut c::ibv_cq, u32)> {
    // SAFETY: a queue that is not null is live, by the contract above.
    (!raw.is_null()).then(|| (raw, unsafe { QueueRef::of(raw) }.number))
}

fn create(
    creation: Creation<'_>,
    extend: impl FnOnce(&mut c::ibv_qp_ex),
) -> Outcome<*mut c::ibv_qp> {
    let Creation { verb, context, pd, send_cq, receive_cq, init, extended } = creation;
    let mut fabric = fabric();
    fabric.enter(context.device, verb)?;
    let limits = fabric.limits(context.device)?;
    let cap = init.cap;
    if cap.max_send_wr > limits.max_qp_wr
        || cap.max_recv_wr > limits.max_qp_wr
        || cap.max_send_sge > limits.max_sge
        || cap.max_recv_sge > limits.max_sge
        || cap.max_inline_data > limits.max_inline_data
    {
        return Err(libc::EINVAL);
    }
    if init.qp_type != c::IBV_QPT_RC {
        return Err(libc::EOPNOTSUPP);
    }
    let most = limits.max_qp;
    fabric.within(most, fabric.pairs.iter().map(|(_, each)| each.context), context.device)?;
    for queue in [send_cq.1, receive_cq.1] {
        let owner = fabric.queues.get(queue).map(|queue| queue.context);
        if owner != Some(context.number) {
            return Err(libc::EINVAL);
        }
    }
    fabric.domains.get_mut(pd.number).ok_or(libc::EINVAL)?.children += 1;
    for queue in [send_cq.1, receive_cq.1] {
        if let Some(queue) = fabric.queues.get_mut(queue) {
            queue.users += 1;
        }
    }
    let mut ex = c::ibv_qp_ex {
        qp_base: c::ibv_qp {
            context: context.raw,
            qp_context: init.qp_context,
            pd: pd.raw,
            send_cq: send_cq.0,
            recv_cq: receive_cq.0,
            srq: init.srq,
            qp_type: init.qp_type,
            state: c::IBV_QPS_RESET,
            ..c::ibv_qp::default()
        },
        ..c::ibv_qp_ex::default()
    };
    extend(&mut ex);
    let number = fabric.pairs.insert_with(|number| {
        ex.qp_base.handle = number;
        ex.qp_base.qp_num = number;
        let handle = PairHandle {
            ex,
            number,
            device: context.device,
            extended,
            lock: OwnerLock::default(),
            building: Building::new(if extended { &cap } else { &NOTHING }),
        };
        QueuePair {
            context: context.number,
            device: context.device,
            raw: Box::into_raw(Box::new(handle)).expose_provenance(),
            kind: init.qp_type,
            domain: pd.number,
            send_cq: send_cq.1,
            receive_cq: receive_cq.1,
            state: c::IBV_QPS_RESET,
            attr: c::ibv_qp_attr { cap, ..c::ibv_qp_attr::default() },
            signals_all: init.sq_sig_all != 0,
            send: SendQueue::new(&cap),
            receive: ReceiveQueue::new(cap.max_recv_wr, cap.max_recv_sge),
            async_events: Acknowledgements::default(),
            send_psn: 0,
            receive_psn: 0,
            waiting: None,
        }
    });
    let raw = fabric.pairs.get(number).map_or(0, |pair| pair.raw);
    Ok(ptr::with_exposed_provenance_mut(raw))
}

/// The capacities of a pair that cannot build requests.
const NOTHING: c::ibv_qp_cap = c::ibv_qp_cap {
    max_send_wr: 0,
    max_recv_wr: 0,
    max_send_sge: 0,
    max_recv_sge: 0,
    max_inline_data: 0,
};

/// See `ibv_create_qp(3)`.
///
/// libibverbs waits until every asynchronous event of the pair is acknowledged; so that a test that
/// forgets one ends, this refuses with `EBUSY` and notes a violation.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut c::ibv_qp) -> c_int {
    // SAFETY: the caller gives a live pair.
    let outcome = destroy(unsafe { PairRef::of(qp) });
    if outcome.is_ok() {
        // SAFETY: the pair is gone, the caller gives it up, and it came from a box of this type.
        drop(unsafe { Box::from_raw(qp.cast::<PairHandle>()) });
    }
    status(outcome)
}

fn destroy(named: PairRef) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(named.device, Verb::ibv_destroy_qp)?;
    let open = fabric.pairs.get(named.number).ok_or(libc::EINVAL)?.async_events.open();
    if open > 0 {
        let text = format!("ibv_destroy_qp: {open} events are not acknowledged");
        fabric.violation(named.device, text);
        return Err(libc::EBUSY);
    }
    let pair = fabric.pairs.remove(named.number).ok_or(libc::EINVAL)?;
    fabric.waiting.retain(|&each| each != named.number);
    fabric.forget_events(pair.context, Element::Pair(named.number, pair.raw));
    let keeps = fabric.device(named.device).is_some_and(|each| each.description.keeps_completions);
    for queue in [pair.send_cq, pair.receive_cq] {
        if !keeps {
            fabric.sweep(queue, named.number);
        }
        if let Some(queue) = fabric.queues.get_mut(queue) {
            queue.users -= 1;
        }
    }
    if let Some(domain) = fabric.domains.get_mut(pair.domain) {
        domain.children -= 1;
    }
    Ok(())
}

impl Fabric {
    /// Ends a pair whose context is closed: it does nothing more, and its peers hear nothing.
    pub(crate) fn silence(&mut self, number: u32) {
        self.waiting.retain(|&each| each != number);
        if let Some(pair) = self.pairs.get_mut(number) {
            pair.state = c::IBV_QPS_RESET;
            pair.waiting = None;
            pair.send.clear();
            pair.receive.clear();
        }
    }
}
