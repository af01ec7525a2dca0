//! Shared receive queues, plain ones and those of XRC.
#![expect(unsafe_code, reason = "the verbs of shared receive queues, called from C")]

use std::{ffi::c_int, ptr};

use rdma_sys as c;

use crate::{
    async_event::{Acknowledgements, Element},
    completion_queue::QueueRef,
    domain::DomainRef,
    errno::{Outcome, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    pair::{ReceiveQueue, segments},
    verb::Verb,
};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceive {
    pub(crate) context: u32,
    /// Address of its C struct.
    pub(crate) raw: usize,
    pub(crate) domain: u32,
    holder: u32,
    pub(crate) receive: ReceiveQueue,
    attr: c::ibv_srq_attr,
    /// Of an XRC queue: its domain, and the completion queue that its receives report to.
    pub(crate) xrc: Option<(u32, u32)>,
    /// Queue pairs that take receives from it.
    pub(crate) users: u32,
    pub(crate) async_events: Acknowledgements,
}

/// What a queue is made with, by either verb.
struct Creation {
    verb: Verb,
    pd: DomainRef,
    user_data: *mut std::ffi::c_void,
    attr: c::ibv_srq_attr,
    xrc: Option<(u32, u32)>,
}

/// See `ibv_create_srq(3)`. The capacity is not rounded up.
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut c::ibv_pd,
    init: *mut c::ibv_srq_init_attr,
) -> *mut c::ibv_srq {
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(pd) };
    // SAFETY: the caller gives a readable struct.
    let init = unsafe { &*init };
    let (attr, user_data) = (init.attr, init.srq_context);
    object(create(&Creation { verb: Verb::ibv_create_srq, pd, user_data, attr, xrc: None }))
}

/// See `ibv_create_srq_ex(3)`: plain and XRC queues, no tag matching.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut c::ibv_context,
    init: *mut c::ibv_srq_init_attr_ex,
) -> *mut c::ibv_srq {
    // SAFETY: the caller gives a readable struct.
    let init = unsafe { &*init };
    let given = |flag: u32| init.comp_mask & flag != 0;
    let kind = if given(c::IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { c::IBV_SRQT_BASIC };
    let whole_xrc = given(c::IBV_SRQ_INIT_ATTR_XRCD) && given(c::IBV_SRQ_INIT_ATTR_CQ);
    let wrong = match kind {
        c::IBV_SRQT_BASIC => false,
        c::IBV_SRQT_XRC => !whole_xrc || init.xrcd.is_null() || init.cq.is_null(),
        _ => return object(Err(libc::EOPNOTSUPP)),
    };
    if wrong || !given(c::IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() {
        return object(Err(libc::EINVAL));
    }
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(init.pd) };
    let xrc = (kind == c::IBV_SRQT_XRC).then(|| {
        // SAFETY: the caller gives a live XRC domain, which was checked not to be null.
        let domain = unsafe { Handle::number(init.xrcd) };
        // SAFETY: the caller gives a live completion queue, which was checked not to be null.
        (domain, unsafe { QueueRef::of(init.cq) }.number)
    });
    let (attr, user_data) = (init.attr, init.srq_context);
    object(create(&Creation { verb: Verb::ibv_create_srq_ex, pd, user_data, attr, xrc }))
}

fn create(creation: &Creation) -> Outcome<*mut c::ibv_srq> {
    let &Creation { verb, pd, user_data, attr, xrc } = creation;
    let mut fabric = fabric();
    fabric.enter(pd.context.device, verb)?;
    let limits = fabric.limits(pd.context.device)?;
    if attr.max_wr == 0 || attr.max_wr > limits.max_srq_wr || attr.max_sge > limits.max_srq_sge {
        return Err(libc::EINVAL);
    }
    let most = limits.max_srq;
    let there = fabric.shared.iter().map(|(_, each)| each.context);
    fabric.within(most, there, pd.context.device)?;
    if let Some((domain, queue)) = xrc {
        fabric.queues.get_mut(queue).ok_or(libc::EINVAL)?.users += 1;
        fabric.xrc_domains.get_mut(domain).ok_or(libc::EINVAL)?.users += 1;
    }
    fabric.join(pd)?;
    let number = fabric.shared.insert_with(|number| {
        let raw = c::ibv_srq {
            context: pd.context.raw,
            srq_context: user_data,
            pd: pd.raw,
            handle: number,
            ..c::ibv_srq::default()
        };
        SharedReceive {
            context: pd.context.number,
            raw: Handle::make(raw, number).expose_provenance(),
            domain: pd.number,
            holder: pd.holder,
            receive: ReceiveQueue::new(attr.max_wr, attr.max_sge),
            attr: c::ibv_srq_attr { srq_limit: 0, ..attr },
            xrc,
            users: 0,
            async_events: Acknowledgements::default(),
        }
    });
    let raw = fabric.shared.get(number).map_or(0, |shared| shared.raw);
    Ok(ptr::with_exposed_provenance_mut(raw))
}

/// A shared receive queue as a caller names it.
///
/// # Safety
///
/// `srq` is a live shared receive queue of this library.
unsafe fn named(srq: *mut c::ibv_srq) -> (ContextRef, u32) {
    // SAFETY: live, by the contract above.
    let raw = unsafe { (*srq).context };
    // SAFETY: it does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: live, by the contract above.
    (context, unsafe { Handle::number(srq) })
}

/// See `ibv_modify_srq(3)`: arms the limit event. The capacity cannot be changed.
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut c::ibv_srq,
    attr: *mut c::ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller gives a live queue.
    let (context, number) = unsafe { named(srq) };
    // SAFETY: the caller gives a readable struct.
    let limit = unsafe { (*attr).srq_limit };
    status(modify(context, number, limit, mask.cast_unsigned()))
}

fn modify(context: ContextRef, number: u32, limit: u32, mask: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_modify_srq)?;
    let shared = fabric.shared.get_mut(number).ok_or(libc::EINVAL)?;
    if mask & !c::IBV_SRQ_LIMIT != 0 || limit > shared.attr.max_wr {
        return Err(libc::EINVAL);
    }
    if mask & c::IBV_SRQ_LIMIT != 0 {
        shared.attr.srq_limit = limit;
        fabric.check_limit(number);
    }
    Ok(())
}

/// See `ibv_query_srq(3)`.
pub(crate) unsafe extern "C" fn ibv_query_srq(
    srq: *mut c::ibv_srq,
    attr: *mut c::ibv_srq_attr,
) -> c_int {
    // SAFETY: the caller gives a live queue.
    let (context, number) = unsafe { named(srq) };
    let mut fabric = fabric();
    let answer = fabric.enter(context.device, Verb::ibv_query_srq);
    let answer = answer.and_then(|()| Ok(fabric.shared.get(number).ok_or(libc::EINVAL)?.attr));
    status(answer.map(|answer| {
        // SAFETY: the caller gives a place for the answer.
        unsafe { attr.write(answer) };
    }))
}

/// See `ibv_get_srq_num(3)`: of an XRC queue only.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut c::ibv_srq, out: *mut u32) -> c_int {
    // SAFETY: the caller gives a live queue.
    let (context, number) = unsafe { named(srq) };
    let mut fabric = fabric();
    let answer = fabric.enter(context.device, Verb::ibv_get_srq_num).and_then(|()| {
        fabric.shared.get(number).and_then(|shared| shared.xrc).map(|_| number).ok_or(libc::EINVAL)
    });
    status(answer.map(|answer| {
        // SAFETY: the caller gives a place for the answer.
        unsafe { out.write(answer) };
    }))
}

/// See `ibv_create_srq(3)`: `EBUSY` while a queue pair takes receives from it.
///
/// libibverbs waits until every asynchronous event of the queue is acknowledged; so that a test that
/// forgets one ends, this refuses with `EBUSY` and notes a violation.
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut c::ibv_srq) -> c_int {
    // SAFETY: the caller gives a live queue.
    let (context, number) = unsafe { named(srq) };
    let outcome = destroy(context, number);
    if outcome.is_ok() {
        // SAFETY: the queue is gone and the caller gives it up.
        unsafe { Handle::free(srq) };
    }
    status(outcome)
}

fn destroy(context: ContextRef, number: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_destroy_srq)?;
    let shared = fabric.shared.get(number).ok_or(libc::EINVAL)?;
    if shared.users > 0 {
        return Err(libc::EBUSY);
    }
    let open = shared.async_events.open();
    if open > 0 {
        let text = format!("ibv_destroy_srq: {open} events are not acknowledged");
        fabric.violation(context.device, text);
        return Err(libc::EBUSY);
    }
    let shared = fabric.shared.remove(number).ok_or(libc::EINVAL)?;
    fabric.forget_events(shared.context, Element::Shared(number, shared.raw));
    fabric.leave(shared.holder);
    if let Some((domain, queue)) = shared.xrc {
        if let Some(queue) = fabric.queues.get_mut(queue) {
            queue.users -= 1;
        }
        fabric.leave_xrc_domain(domain);
    }
    Ok(())
}

/// See `ibv_post_srq_recv(3)`: 0 or the errno, and then the first request that was not posted.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut c::ibv_srq,
    first: *mut c::ibv_recv_wr,
    bad: *mut *mut c::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller gives a live queue.
    let (context, number) = unsafe { named(srq) };
    let mut fabric = fabric();
    let mut next = first;
    let mut refused = fabric.enter(context.device, Verb::ibv_post_srq_recv);
    while refused.is_ok() && !next.is_null() {
        // SAFETY: each request of the list is a readable struct of the caller.
        let wr = unsafe { ptr::read(next) };
        // SAFETY: the caller vouches for the list of segments.
        refused = unsafe { segments(wr.sg_list, wr.num_sge) }.and_then(|segments| {
            let shared = fabric.shared.get_mut(number).ok_or(libc::EINVAL)?;
            shared.receive.push(wr.wr_id, segments)
        });
        if refused.is_ok() {
            next = wr.next;
        }
    }
    fabric.wake();
    if refused.is_err() && !bad.is_null() {
        // SAFETY: the caller gives a place for the first request that was not posted.
        unsafe { bad.write(next) };
    }
    refused.err().unwrap_or(0)
}

impl Fabric {
    /// Raises the limit event once fewer receives are left than the armed limit.
    pub(crate) fn check_limit(&mut self, number: u32) {
        let Some(shared) = self.shared.get_mut(number) else { return };
        if u64::from(shared.attr.srq_limit) > shared.receive.waiting() {
            shared.attr.srq_limit = 0;
            let (context, raw) = (shared.context, shared.raw);
            self.raise(context, c::IBV_EVENT_SRQ_LIMIT_REACHED, Element::Shared(number, raw));
        }
    }
}
