//! `ibv_modify_qp` and `ibv_query_qp`.
#![expect(unsafe_code, reason = "verbs, called from C")]

use std::{
    ffi::c_int,
    sync::atomic::{AtomicU32, Ordering},
};

use rdma_sys as c;

use super::{PairRef, QueuePair, create::initial_attr, transition::rule};
use crate::{
    address::Vector,
    async_event::Element,
    device::Description,
    errno::{Outcome, status},
    fabric::{Fabric, fabric},
    verb::Verb,
};

const PSN_LIMIT: u32 = 1 << 24;

/// See `ibv_modify_qp(3)`: 0 or the errno, and then nothing is changed.
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut c::ibv_qp,
    attr: *mut c::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let pair = unsafe { PairRef::of(qp) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { &*attr };
    let mask = mask.cast_unsigned();
    let outcome = modify(pair, attr, mask);
    if outcome.is_ok() && mask & c::IBV_QP_STATE != 0 {
        // SAFETY: the pair is live, and libibverbs changes this field in this call too.
        unsafe { note_state(qp, attr.qp_state) };
    }
    status(outcome)
}

fn modify(named: PairRef, attr: &c::ibv_qp_attr, mask: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(named.device, Verb::ibv_modify_qp)?;
    let device = fabric.device(named.device).ok_or(libc::ENODEV)?;
    let pair = fabric.pairs.get(named.number).ok_or(libc::EINVAL)?;
    // It has no queues, and so nothing that could be in a state.
    if pair.spreading.is_some() {
        return Err(libc::EOPNOTSUPP);
    }
    let from = pair.state;
    let given = |flag: u32| mask & flag != 0;
    if given(c::IBV_QP_CUR_STATE) && attr.cur_qp_state != from {
        return Err(libc::EINVAL);
    }
    let to = if given(c::IBV_QP_STATE) { attr.qp_state } else { from };
    let rule = rule(pair.kind, from, to).ok_or(libc::EINVAL)?;
    if !rule.allows(mask) {
        return Err(libc::EINVAL);
    }
    check(&device.description, pair, attr, mask)?;
    let pair = fabric.pairs.get_mut(named.number).ok_or(libc::EINVAL)?;
    take_over(pair, attr, mask);
    fabric.enter_state(named.number, to);
    Ok(())
}

/// Whether the values are ones that the device can have.
fn check(device: &Description, pair: &QueuePair, attr: &c::ibv_qp_attr, mask: u32) -> Outcome {
    let given = |flag: u32| mask & flag != 0;
    let port_number = if given(c::IBV_QP_PORT) { attr.port_num } else { pair.attr.port_num };
    let port = device.port(port_number);
    if given(c::IBV_QP_PORT) && port.is_none() {
        return Err(libc::EINVAL);
    }
    if given(c::IBV_QP_PKEY_INDEX) {
        let keys = port.map_or(0, |port| port.partition_keys.len());
        if usize::from(attr.pkey_index) >= keys {
            return Err(libc::EINVAL);
        }
    }
    if given(c::IBV_QP_AV) {
        Vector::new(&attr.ah_attr).check(device)?;
    }
    let limits = &device.limits;
    let wrong = [
        (c::IBV_QP_PATH_MTU, !(c::IBV_MTU_256..=device.mtu).contains(&attr.path_mtu)),
        (c::IBV_QP_DEST_QPN, attr.dest_qp_num >= PSN_LIMIT),
        (c::IBV_QP_RQ_PSN, attr.rq_psn >= PSN_LIMIT),
        (c::IBV_QP_SQ_PSN, attr.sq_psn >= PSN_LIMIT),
        (c::IBV_QP_TIMEOUT, attr.timeout > 31),
        (c::IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer > 31),
        (c::IBV_QP_RETRY_CNT, attr.retry_cnt > 7),
        (c::IBV_QP_RNR_RETRY, attr.rnr_retry > 7),
        (c::IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic > limits.max_qp_init_rd_atom),
        (c::IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic > limits.max_qp_rd_atom),
    ];
    if wrong.iter().any(|&(flag, wrong)| given(flag) && wrong) {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// Takes the attributes over that the mask names.
fn take_over(pair: &mut QueuePair, attr: &c::ibv_qp_attr, mask: u32) {
    macro_rules! fields {
        ($($flag:ident => $($field:ident)*;)*) => {
            $(if mask & c::$flag != 0 { $(pair.attr.$field = attr.$field;)* })*
        };
    }
    fields! {
        IBV_QP_EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify;
        IBV_QP_ACCESS_FLAGS => qp_access_flags;
        IBV_QP_PKEY_INDEX => pkey_index;
        IBV_QP_PORT => port_num;
        IBV_QP_QKEY => qkey;
        IBV_QP_AV => ah_attr;
        IBV_QP_PATH_MTU => path_mtu;
        IBV_QP_TIMEOUT => timeout;
        IBV_QP_RETRY_CNT => retry_cnt;
        IBV_QP_RNR_RETRY => rnr_retry;
        IBV_QP_MAX_QP_RD_ATOMIC => max_rd_atomic;
        IBV_QP_ALT_PATH => alt_ah_attr alt_pkey_index alt_port_num alt_timeout;
        IBV_QP_MIN_RNR_TIMER => min_rnr_timer;
        IBV_QP_MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        IBV_QP_PATH_MIG_STATE => path_mig_state;
        IBV_QP_DEST_QPN => dest_qp_num;
        IBV_QP_RATE_LIMIT => rate_limit;
    }
    if mask & c::IBV_QP_SQ_PSN != 0 {
        pair.send_psn = attr.sq_psn;
    }
    if mask & c::IBV_QP_RQ_PSN != 0 {
        pair.receive_psn = attr.rq_psn;
    }
}

impl Fabric {
    /// Brings a pair into a state, with what that does to posted work.
    fn enter_state(&mut self, number: u32, state: c::ibv_qp_state) {
        match state {
            c::IBV_QPS_ERR => self.fail(number, None),
            c::IBV_QPS_RESET => self.reset(number),
            _ => self.run_in(number, state),
        }
        self.wake();
    }

    /// Goes on in a state in which messages are sent or taken. In SQD no request is begun, and none
    /// is ever half done, so that the send queue is drained at once.
    fn run_in(&mut self, number: u32, state: c::ibv_qp_state) {
        let Some(pair) = self.pairs.get_mut(number) else { return };
        let drains = state == c::IBV_QPS_SQD && pair.state == c::IBV_QPS_RTS;
        let tells = pair.attr.en_sqd_async_notify != 0;
        let (context, raw) = (pair.context, pair.raw);
        pair.state = state;
        if drains {
            self.stop_waiting(number);
            if tells {
                let element = Element::Pair(number, raw);
                self.raise(context, c::IBV_EVENT_SQ_DRAINED, element);
            }
        }
        self.progress(number);
    }

    fn reset(&mut self, number: u32) {
        self.stop_waiting(number);
        let Some(pair) = self.pairs.get_mut(number) else { return };
        pair.state = c::IBV_QPS_RESET;
        pair.send.clear();
        pair.receive.clear();
        pair.attr = initial_attr(pair.kind, pair.attr.cap);
        let (send, receive, device) = (pair.send_cq, pair.receive_cq, pair.device);
        if self.device(device).is_some_and(|each| !each.description.keeps_completions) {
            for queue in [send, receive].into_iter().flatten() {
                self.sweep(queue, number);
            }
        }
    }
}

/// See `ibv_query_qp(3)`: answers everything, whatever the mask asks for.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut c::ibv_qp,
    attr: *mut c::ibv_qp_attr,
    _mask: c_int,
    init: *mut c::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let answer = query(unsafe { PairRef::of(qp) });
    status(answer.map(|(answer, signals_all)| {
        // SAFETY: the caller gives a live pair, and libibverbs changes this field in this call too.
        unsafe { note_state(qp, answer.qp_state) };
        // The fields below are constant.
        let initial = c::ibv_qp_init_attr {
            // SAFETY: the caller gives a live pair.
            qp_context: unsafe { (*qp).qp_context },
            // SAFETY: as above.
            send_cq: unsafe { (*qp).send_cq },
            // SAFETY: as above.
            recv_cq: unsafe { (*qp).recv_cq },
            // SAFETY: as above.
            srq: unsafe { (*qp).srq },
            cap: answer.cap,
            // SAFETY: as above.
            qp_type: unsafe { (*qp).qp_type },
            sq_sig_all: c_int::from(signals_all),
        };
        // SAFETY: the caller gives a place for the attributes.
        unsafe { attr.write(answer) };
        // SAFETY: the caller gives a place for the initial attributes.
        unsafe { init.write(initial) };
    }))
}

/// Writes the state into the C object, as libibverbs does. Several threads may at a time.
///
/// # Safety
///
/// The queue pair is live.
unsafe fn note_state(qp: *mut c::ibv_qp, state: c::ibv_qp_state) {
    // SAFETY: as the caller promises.
    let field = unsafe { &raw mut (*qp).state };
    // SAFETY: as above; the field is aligned, and everybody writes it in this way.
    let field = unsafe { AtomicU32::from_ptr(field) };
    field.store(state, Ordering::Relaxed);
}

fn query(named: PairRef) -> Outcome<(c::ibv_qp_attr, bool)> {
    let mut fabric = fabric();
    fabric.enter(named.device, Verb::ibv_query_qp)?;
    let pair = fabric.pairs.get(named.number).ok_or(libc::EINVAL)?;
    let attr = c::ibv_qp_attr {
        qp_state: pair.state,
        cur_qp_state: pair.state,
        sq_psn: pair.send_psn,
        rq_psn: pair.receive_psn,
        ..pair.attr
    };
    Ok((attr, pair.signals_all))
}
