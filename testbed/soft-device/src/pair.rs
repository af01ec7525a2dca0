//! Queue pairs: what they are, and their end.
#![expect(unsafe_code, reason = "the verbs of queue pairs, called from C")]

mod connected;
mod create;
mod datagram;
mod execute;
mod extended;
mod extras;
mod local;
mod modify;
mod post;
mod raw;
mod receive;
mod route;
mod scalable;
mod transition;
mod wait;
mod work;

use std::{ffi::c_int, time::Instant};

use rdma_sys as c;

use crate::{
    async_event::{Acknowledgements, Element},
    errno::{Outcome, status},
    ethernet::hash::Spreading,
    fabric::{Fabric, fabric},
    owner_lock::OwnerLock,
    verb::Verb,
};

pub(crate) use create::{create_qp_ex, create_scalable, ibv_create_qp, open_qp};
pub(crate) use extended::{efadv_qp_from_ibv_qp_ex, ibv_qp_to_qp_ex};
pub(crate) use extras::{
    ibv_attach_mcast, ibv_detach_mcast, ibv_query_ece, ibv_query_qp_data_in_order, ibv_set_ece,
    modify_qp_rate_limit,
};
pub(crate) use local::Binding;
pub(crate) use modify::{ibv_modify_qp, ibv_query_qp};
pub(crate) use post::{post_recv, post_send, segments};
pub(crate) use scalable::Lingering;
pub(crate) use work::ReceiveQueue;

use extended::Building;
use wait::Waiting;
use work::SendQueue;

/// A queue pair.
pub(crate) struct QueuePair {
    pub(crate) context: u32,
    pub(crate) device: u32,
    /// Address of its C struct, the first one if there are several.
    pub(crate) raw: usize,
    pub(crate) kind: c::ibv_qp_type,
    /// The protection domain, and the one that is busy while the pair is there. 0 for the target of
    /// an XRC connection, which has none.
    pub(crate) domain: u32,
    holder: u32,
    send_cq: Option<u32>,
    receive_cq: Option<u32>,
    srq: Option<u32>,
    /// Of the target of an XRC connection.
    xrc_domain: Option<u32>,
    pub(crate) state: c::ibv_qp_state,
    /// The attributes as they were set last; state and packet numbers are kept apart.
    pub(crate) attr: c::ibv_qp_attr,
    signals_all: bool,
    /// Multicast messages that it sends do not come back to it.
    blocks_loopback: bool,
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
    pub(crate) async_events: Acknowledgements,
    /// The number of the next packet it sends, and of the next one it expects.
    send_psn: u32,
    receive_psn: u32,
    waiting: Option<Waiting>,
    /// How many C structs stand for it: more than one for a shared target of XRC.
    handles: u32,
    ece: c::ibv_ece,
    /// Flows that lead to it.
    pub(crate) flows: u32,
    /// Of a pair that has no queues of its own: how it spreads what comes over work queues.
    pub(crate) spreading: Option<Spreading>,
    /// It takes the tags of VLANs out of the frames that come.
    strips_vlan: bool,
    /// Of a scalable reliable datagram pair: writes with immediate use no receive up, and writes may
    /// bring their data along.
    unsolicited: bool,
    inline_writes: bool,
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
    /// What an extended pair was made for, `IBV_QP_EX_WITH_*`; `None` for a classic one.
    operations: Option<u64>,
    lock: OwnerLock,
    building: Building,
    efa: c::efadv_qp,
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

/// See `ibv_create_qp(3)`: `EBUSY` while the pair is in a multicast group or a flow
/// leads to it.
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
    let pair = fabric.pairs.get_mut(named.number).ok_or(libc::EINVAL)?;
    if pair.handles > 1 {
        pair.handles -= 1;
        return Ok(());
    }
    let open = pair.async_events.open();
    if open > 0 {
        let text = format!("ibv_destroy_qp: {open} events are not acknowledged");
        fabric.violation(named.device, text);
        return Err(libc::EBUSY);
    }
    let flows = fabric.pairs.get(named.number).map_or(0, |pair| pair.flows);
    if flows > 0 || fabric.members.iter().any(|member| member.pair == named.number) {
        return Err(libc::EBUSY);
    }
    let pair = fabric.pairs.remove(named.number).ok_or(libc::EINVAL)?;
    fabric.waiting.retain(|&each| each != named.number);
    fabric.detach_counters(named.number);
    fabric.forget_events(pair.context, Element::Pair(named.number, pair.raw));
    let keeps = fabric.device(named.device).is_some_and(|each| each.description.keeps_completions);
    for queue in [pair.send_cq, pair.receive_cq].into_iter().flatten() {
        if !keeps {
            fabric.sweep(queue, named.number);
        }
        if let Some(queue) = fabric.queues.get_mut(queue) {
            queue.users -= 1;
        }
    }
    if let Some(shared) = pair.srq.and_then(|srq| fabric.shared.get_mut(srq)) {
        shared.users -= 1;
    }
    if let Some(table) = pair.spreading.and_then(|it| fabric.tables.get_mut(it.table)) {
        table.users -= 1;
    }
    if let Some(domain) = pair.xrc_domain {
        fabric.leave_xrc_domain(domain);
    }
    fabric.leave(pair.holder);
    Ok(())
}

impl Fabric {
    /// Ends a pair whose context is closed: it does nothing more, and its peers hear nothing.
    pub(crate) fn silence(&mut self, number: u32) {
        self.waiting.retain(|&each| each != number);
        self.members.retain(|member| member.pair != number);
        if let Some(pair) = self.pairs.get_mut(number) {
            pair.state = c::IBV_QPS_RESET;
            pair.waiting = None;
            pair.send.clear();
            pair.receive.clear();
        }
    }
}
