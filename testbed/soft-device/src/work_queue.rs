//! Work queues, and the tables that spread frames over them.
#![expect(unsafe_code, reason = "the verbs of work queues, called from C")]

use std::{ffi::c_int, ptr, slice};

use rdma_sys as c;

use crate::{
    async_event::{Acknowledgements, Element},
    completion_queue::{Completion, Frees, QueueRef},
    domain::DomainRef,
    errno::{Outcome, object, status},
    ethernet::{Arrived, hash::Spreading, stored_length},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    memory::Piece,
    pair::{ReceiveQueue, segments},
    verb::Verb,
};

/// The most entries of a table.
pub(crate) const LARGEST_TABLE: usize = 1024;

/// A receive work queue.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    pub(crate) context: u32,
    /// Address of its C struct.
    pub(crate) raw: usize,
    pub(crate) async_events: Acknowledgements,
    holder: u32,
    queue: u32,
    state: c::ibv_wq_state,
    receive: ReceiveQueue,
    /// The domain whose keys its receives may name.
    domain: u32,
    strips_vlan: bool,
    tables: u32,
}

/// A table that spreads packets over work queues.
#[derive(Debug)]
pub(crate) struct IndirectionTable {
    pub(crate) context: u32,
    queues: Vec<u32>,
    /// Queue pairs that spread by it.
    pub(crate) users: u32,
}

/// See `ibv_create_wq(3)`.
pub(crate) unsafe extern "C" fn create_wq(
    _context: *mut c::ibv_context,
    attr: *mut c::ibv_wq_init_attr,
) -> *mut c::ibv_wq {
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { &*attr };
    if attr.pd.is_null() || attr.cq.is_null() {
        return object(Err(libc::EINVAL));
    }
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(attr.pd) };
    // SAFETY: the caller gives a live completion queue.
    let queue = unsafe { QueueRef::of(attr.cq) };
    object(create(pd, queue, attr))
}

fn create(pd: DomainRef, queue: QueueRef, attr: &c::ibv_wq_init_attr) -> Outcome<*mut c::ibv_wq> {
    let mut fabric = fabric();
    fabric.enter(pd.context.device, Verb::ibv_create_wq)?;
    let limits = fabric.limits(pd.context.device)?;
    if attr.wq_type != c::IBV_WQT_RQ
        || attr.max_wr > limits.max_qp_wr
        || attr.max_sge > limits.max_sge
    {
        return Err(libc::EINVAL);
    }
    let given = attr.comp_mask & c::IBV_WQ_INIT_ATTR_FLAGS != 0;
    let flags = if given { attr.create_flags } else { 0 };
    if flags & !c::IBV_WQ_FLAGS_CVLAN_STRIPPING != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    fabric.join(pd)?;
    fabric.queues.get_mut(queue.number).ok_or(libc::EINVAL)?.users += 1;
    let number = fabric.work_queues.insert_with(|number| WorkQueue {
        context: pd.context.number,
        raw: handle(pd, attr, number).expose_provenance(),
        async_events: Acknowledgements::default(),
        holder: pd.holder,
        queue: queue.number,
        state: c::IBV_WQS_RESET,
        receive: ReceiveQueue::new(attr.max_wr, attr.max_sge),
        domain: pd.number,
        strips_vlan: flags & c::IBV_WQ_FLAGS_CVLAN_STRIPPING != 0,
        tables: 0,
    });
    let raw = fabric.work_queues.get(number).map_or(0, |queue| queue.raw);
    Ok(ptr::with_exposed_provenance_mut(raw))
}

/// Moves the C struct of a queue to the heap.
fn handle(pd: DomainRef, attr: &c::ibv_wq_init_attr, number: u32) -> *mut c::ibv_wq {
    let raw = c::ibv_wq {
        context: pd.context.raw,
        wq_context: attr.wq_context,
        pd: pd.raw,
        cq: attr.cq,
        wq_num: number,
        handle: number,
        state: c::IBV_WQS_RESET,
        wq_type: attr.wq_type,
        post_recv: Some(post_recv),
        ..c::ibv_wq::default()
    };
    Handle::make(raw, number)
}

/// A queue as a caller names it.
///
/// # Safety
///
/// `wq` is a live work queue of this library.
unsafe fn named(wq: *mut c::ibv_wq) -> (ContextRef, u32) {
    // SAFETY: live, by the contract above.
    let raw = unsafe { (*wq).context };
    // SAFETY: it does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: live, by the contract above.
    (context, unsafe { Handle::number(wq) })
}

/// See `ibv_modify_wq(3)`: the state only. The error state flushes.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut c::ibv_wq, attr: *mut c::ibv_wq_attr) -> c_int {
    // SAFETY: the caller gives a live queue.
    let (context, number) = unsafe { named(wq) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { *attr };
    let outcome = modify(context, number, &attr);
    if let Ok(state) = outcome {
        // SAFETY: the queue is live, and libibverbs changes this field in this call too.
        unsafe { (*wq).state = state };
    }
    status(outcome.map(drop))
}

fn modify(context: ContextRef, number: u32, attr: &c::ibv_wq_attr) -> Outcome<c::ibv_wq_state> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_modify_wq)?;
    let queue = fabric.work_queues.get_mut(number).ok_or(libc::EINVAL)?;
    let given = |flag: u32| attr.attr_mask & flag != 0;
    let known = c::IBV_WQ_ATTR_STATE | c::IBV_WQ_ATTR_CURR_STATE;
    if attr.attr_mask & !known != 0
        || (given(c::IBV_WQ_ATTR_CURR_STATE) && attr.curr_wq_state != queue.state)
    {
        return Err(libc::EINVAL);
    }
    if !given(c::IBV_WQ_ATTR_STATE) {
        return Ok(queue.state);
    }
    match (queue.state, attr.wq_state) {
        (_, c::IBV_WQS_RESET) => queue.receive.clear(),
        (c::IBV_WQS_RESET | c::IBV_WQS_RDY, c::IBV_WQS_RDY)
        | (c::IBV_WQS_RDY | c::IBV_WQS_ERR, c::IBV_WQS_ERR) => {}
        _ => return Err(libc::EINVAL),
    }
    queue.state = attr.wq_state;
    let completions = queue.queue;
    if attr.wq_state == c::IBV_WQS_RESET {
        fabric.sweep_those(completions, |it| it.frees == Frees::Work { queue: number });
    }
    fabric.flush_work_queue(number);
    Ok(attr.wq_state)
}

impl Fabric {
    /// Ends the receives of a work queue in the error state.
    fn flush_work_queue(&mut self, number: u32) {
        while let Some(queue) = self.work_queues.get_mut(number)
            && queue.state == c::IBV_WQS_ERR
            && let Some((wr_id, _)) = queue.receive.next()
        {
            queue.receive.advance();
            let target = queue.queue;
            self.report(target, received(number, wr_id).ended(c::IBV_WC_WR_FLUSH_ERR));
        }
    }

    /// Takes the work queues of a closed context out of use.
    pub(crate) fn silence_work_queues(&mut self, context: u32) {
        for (_, queue) in self.work_queues.iter_mut().filter(|(_, it)| it.context == context) {
            queue.state = c::IBV_WQS_RESET;
            queue.receive.clear();
        }
    }

    /// Frees a place of a work queue, whose completion was polled.
    pub(crate) fn free_work(&mut self, number: u32) {
        if let Some(queue) = self.work_queues.get_mut(number) {
            queue.receive.free_one();
        }
    }

    /// Gives a frame to the work queue that its hash leads to, or drops it where that takes none or has no receive.
    pub(crate) fn spread(
        &mut self,
        spreading: &Spreading,
        arrived: Arrived<'_>,
        to: &mut Vec<Piece>,
    ) {
        let Some(table) = self.tables.get(spreading.table) else { return };
        let hash = usize::try_from(spreading.hash(arrived.headers)).unwrap_or(0);
        // The size is a power of two.
        let Some(&number) = table.queues.get(hash & (table.queues.len() - 1)) else { return };
        let Some(queue) = self.work_queues.get_mut(number) else { return };
        if queue.state != c::IBV_WQS_RDY {
            return;
        }
        let Some((wr_id, segments)) = queue.receive.next() else { return };
        let strips = queue.strips_vlan;
        let length = u64::try_from(stored_length(arrived.bytes, strips)).unwrap_or(u64::MAX);
        let room: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
        to.clear();
        let opened = self.keys.gather(segments, queue.domain, c::IBV_ACCESS_LOCAL_WRITE, to);
        queue.receive.advance();
        let target = queue.queue;
        let outcome = match opened {
            _ if length > room => Err(c::IBV_WC_LOC_LEN_ERR),
            Err(_) => Err(c::IBV_WC_LOC_PROT_ERR),
            Ok(_) => self.store_frame(arrived, strips, to).ok_or(c::IBV_WC_GENERAL_ERR),
        };
        match outcome {
            Ok(Completion { byte_len, flow_tag, vlan, wc_flags, .. }) => {
                let completion = received(number, wr_id);
                let special = Completion { byte_len, flow_tag, vlan, wc_flags, ..completion };
                self.report(target, special);
            }
            Err(status) => {
                self.report(target, received(number, wr_id).ended(status));
                if let Some(queue) = self.work_queues.get_mut(number) {
                    queue.state = c::IBV_WQS_ERR;
                    let (context, raw) = (queue.context, queue.raw);
                    self.raise(context, c::IBV_EVENT_WQ_FATAL, Element::Work(number, raw));
                }
                self.flush_work_queue(number);
            }
        }
    }
}

/// The completion of a receive, without what is special about the frame.
fn received(number: u32, wr_id: u64) -> Completion {
    Completion {
        wr_id,
        opcode: c::IBV_WC_RECV,
        qp_num: number,
        frees: Frees::Work { queue: number },
        ..Completion::default()
    }
}

/// See `ibv_post_wq_recv(3)`: 0 or the errno, and then the first request that was not posted.
unsafe extern "C" fn post_recv(
    wq: *mut c::ibv_wq,
    first: *mut c::ibv_recv_wr,
    bad: *mut *mut c::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller gives a live queue.
    let (context, number) = unsafe { named(wq) };
    let mut fabric = fabric();
    let mut next = first;
    let mut refused = fabric.enter(context.device, Verb::ibv_post_wq_recv);
    while refused.is_ok() && !next.is_null() {
        // SAFETY: each request of the list is a readable struct of the caller.
        let wr = unsafe { ptr::read(next) };
        // SAFETY: the caller vouches for the list of segments.
        refused = unsafe { segments(wr.sg_list, wr.num_sge) }.and_then(|segments| {
            let queue = fabric.work_queues.get_mut(number).ok_or(libc::EINVAL)?;
            if queue.state == c::IBV_WQS_RESET {
                return Err(libc::EINVAL);
            }
            queue.receive.push(wr.wr_id, segments)
        });
        if refused.is_ok() {
            next = wr.next;
        }
    }
    fabric.flush_work_queue(number);
    if refused.is_err() && !bad.is_null() {
        // SAFETY: the caller gives a place for the first request that was not posted.
        unsafe { bad.write(next) };
    }
    refused.err().unwrap_or(0)
}

/// See `ibv_create_wq(3)`: `EBUSY` while a table spreads to it.
///
/// libibverbs waits until every asynchronous event of the queue is acknowledged; so that a test that
/// forgets one ends, this refuses with `EBUSY` and notes a violation.
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut c::ibv_wq) -> c_int {
    // SAFETY: the caller gives a live queue.
    let (context, number) = unsafe { named(wq) };
    let mut fabric = fabric();
    let outcome = fabric.enter(context.device, Verb::ibv_destroy_wq).and_then(|()| {
        let queue = fabric.work_queues.get(number).ok_or(libc::EINVAL)?;
        if queue.tables > 0 {
            return Err(libc::EBUSY);
        }
        let open = queue.async_events.open();
        if open > 0 {
            let text = format!("ibv_destroy_wq: {open} events are not acknowledged");
            fabric.violation(context.device, text);
            return Err(libc::EBUSY);
        }
        let removed = fabric.work_queues.remove(number).ok_or(libc::EINVAL)?;
        fabric.forget_events(removed.context, Element::Work(number, removed.raw));
        fabric.leave(removed.holder);
        fabric.sweep_those(removed.queue, |it| it.frees == Frees::Work { queue: number });
        if let Some(queue) = fabric.queues.get_mut(removed.queue) {
            queue.users -= 1;
        }
        Ok(())
    });
    if outcome.is_ok() {
        // SAFETY: the queue is gone and the caller gives it up.
        unsafe { Handle::free(wq) };
    }
    status(outcome)
}

/// See `ibv_create_rwq_ind_table(3)`.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_rwq_ind_table_init_attr,
) -> *mut c::ibv_rwq_ind_table {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { *attr };
    let Some(count) =
        1usize.checked_shl(attr.log_ind_tbl_size).filter(|&count| count <= LARGEST_TABLE)
    else {
        return object(Err(libc::EINVAL));
    };
    // SAFETY: the caller gives as many queues as the size says.
    let list = unsafe { slice::from_raw_parts(attr.ind_tbl, count) };
    // SAFETY: each queue of the list is live.
    let queues: Vec<u32> = list.iter().map(|&wq| unsafe { named(wq) }.1).collect();
    let mut fabric = fabric();
    object(fabric.enter(context.device, Verb::ibv_create_rwq_ind_table).and_then(|()| {
        if attr.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        for &queue in &queues {
            fabric.work_queues.get_mut(queue).ok_or(libc::EINVAL)?.tables += 1;
        }
        let number = fabric.tables.insert_with(|_| IndirectionTable {
            context: context.number,
            queues,
            users: 0,
        });
        let raw = c::ibv_rwq_ind_table {
            context: context.raw,
            ind_tbl_handle: number.cast_signed(),
            ind_tbl_num: number.cast_signed(),
            comp_mask: 0,
        };
        Ok(Handle::make(raw, number))
    }))
}

/// See `ibv_create_rwq_ind_table(3)`: `EBUSY` while a queue pair spreads by it.
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut c::ibv_rwq_ind_table) -> c_int {
    // SAFETY: the caller gives a live table.
    let raw = unsafe { (*table).context };
    // SAFETY: a table does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live table.
    let number = unsafe { Handle::number(table) };
    let mut fabric = fabric();
    let outcome = fabric.enter(context.device, Verb::ibv_destroy_rwq_ind_table).and_then(|()| {
        if fabric.tables.get(number).ok_or(libc::EINVAL)?.users > 0 {
            return Err(libc::EBUSY);
        }
        let removed = fabric.tables.remove(number).ok_or(libc::EINVAL)?;
        for queue in removed.queues {
            if let Some(queue) = fabric.work_queues.get_mut(queue) {
                queue.tables -= 1;
            }
        }
        Ok(())
    });
    if outcome.is_ok() {
        // SAFETY: the table is gone and the caller gives it up.
        unsafe { Handle::free(table) };
    }
    status(outcome)
}
