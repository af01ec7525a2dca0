//! Flows and their counters: kept, checked and counted as children, but no packet comes their way.
#![expect(unsafe_code, reason = "the verbs of flow steering, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use crate::{
    errno::{Outcome, object, status},
    fabric::fabric,
    handle::{ContextRef, Handle},
    pair::PairRef,
    verb::Verb,
};

/// A rule that would bring packets to a queue pair.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) context: u32,
    pair: u32,
    counters: Option<u32>,
}

/// Counters of flows.
#[derive(Debug)]
pub(crate) struct FlowCounters {
    pub(crate) context: u32,
    /// What each index counts.
    points: Vec<u32>,
    flows: u32,
}

/// See `ibv_create_flow(3)`: of datagram pairs.
pub(crate) unsafe extern "C" fn create_flow(
    qp: *mut c::ibv_qp,
    attr: *mut c::ibv_flow_attr,
) -> *mut c::ibv_flow {
    // SAFETY: the caller gives a live pair.
    let pair = unsafe { PairRef::of(qp) };
    // SAFETY: the caller gives a live pair.
    let raw = unsafe { (*qp).context };
    // SAFETY: a pair does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { *attr };
    // SAFETY: the caller gives a live pair, and no call changes this field.
    let kind = unsafe { (*qp).qp_type };
    object(create(context, pair, kind, &attr))
}

fn create(
    context: ContextRef,
    pair: PairRef,
    kind: c::ibv_qp_type,
    attr: &c::ibv_flow_attr,
) -> Outcome<*mut c::ibv_flow> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_create_flow)?;
    let flags = c::IBV_FLOW_ATTR_FLAGS_DONT_TRAP | c::IBV_FLOW_ATTR_FLAGS_EGRESS;
    let device = fabric.device(context.device).ok_or(libc::ENODEV)?;
    let known = attr.comp_mask == 0
        && attr.type_ <= c::IBV_FLOW_ATTR_SNIFFER
        && attr.flags & !flags == 0
        && device.description.port(attr.port).is_some();
    if !known || kind != c::IBV_QPT_UD {
        return Err(libc::EINVAL);
    }
    fabric.pairs.get_mut(pair.number).ok_or(libc::EINVAL)?.flows += 1;
    let number = fabric.flows.insert_with(|_| Flow {
        context: context.number,
        pair: pair.number,
        counters: None,
    });
    Ok(Handle::make(c::ibv_flow { comp_mask: 0, context: context.raw, handle: number }, number))
}

/// See `ibv_create_flow(3)`.
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut c::ibv_flow) -> c_int {
    // SAFETY: the caller gives a live flow.
    let raw = unsafe { (*flow).context };
    // SAFETY: a flow does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live flow.
    let number = unsafe { Handle::number(flow) };
    let mut fabric = fabric();
    let outcome = fabric.enter(context.device, Verb::ibv_destroy_flow).and_then(|()| {
        let removed = fabric.flows.remove(number).ok_or(libc::EINVAL)?;
        if let Some(pair) = fabric.pairs.get_mut(removed.pair) {
            pair.flows -= 1;
        }
        if let Some(counters) = removed.counters.and_then(|it| fabric.flow_counters.get_mut(it)) {
            counters.flows -= 1;
        }
        Ok(())
    });
    if outcome.is_ok() {
        // SAFETY: the flow is gone and the caller gives it up.
        unsafe { Handle::free(flow) };
    }
    status(outcome)
}

/// See `ibv_create_counters(3)`.
pub(crate) unsafe extern "C" fn create_counters(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_counters_init_attr,
) -> *mut c::ibv_counters {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    let mask = unsafe { (*attr).comp_mask };
    let mut fabric = fabric();
    object(fabric.enter(context.device, Verb::ibv_create_counters).and_then(|()| {
        if mask != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let number = fabric.flow_counters.insert_with(|_| FlowCounters {
            context: context.number,
            points: Vec::new(),
            flows: 0,
        });
        Ok(Handle::make(c::ibv_counters { context: context.raw }, number))
    }))
}

/// Counters as a caller names them.
///
/// # Safety
///
/// `counters` are live counters of this library.
unsafe fn named(counters: *mut c::ibv_counters) -> (ContextRef, u32) {
    // SAFETY: live, by the contract above.
    let raw = unsafe { (*counters).context };
    // SAFETY: they do not outlive their context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: live, by the contract above.
    (context, unsafe { Handle::number(counters) })
}

/// See `ibv_create_counters(3)`: `EBUSY` while a flow counts there.
pub(crate) unsafe extern "C" fn destroy_counters(counters: *mut c::ibv_counters) -> c_int {
    // SAFETY: the caller gives live counters.
    let (context, number) = unsafe { named(counters) };
    let mut fabric = fabric();
    let outcome = fabric.enter(context.device, Verb::ibv_destroy_counters).and_then(|()| {
        if fabric.flow_counters.get(number).ok_or(libc::EINVAL)?.flows > 0 {
            return Err(libc::EBUSY);
        }
        fabric.flow_counters.remove(number);
        Ok(())
    });
    if outcome.is_ok() {
        // SAFETY: the counters are gone and the caller gives them up.
        unsafe { Handle::free(counters) };
    }
    status(outcome)
}

/// See `ibv_attach_counters_point_flow(3)`.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut c::ibv_counters,
    attr: *mut c::ibv_counter_attach_attr,
    flow: *mut c::ibv_flow,
) -> c_int {
    // SAFETY: the caller gives live counters.
    let (context, number) = unsafe { named(counters) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { *attr };
    // SAFETY: the caller gives null, for a static point, or a live flow.
    let flow = (!flow.is_null()).then(|| unsafe { Handle::number(flow) });
    let mut fabric = fabric();
    let entered = fabric.enter(context.device, Verb::ibv_attach_counters_point_flow);
    status(entered.and_then(|()| {
        let known = attr.counter_desc <= c::IBV_COUNTER_BYTES && attr.comp_mask == 0;
        let there = fabric.flow_counters.get_mut(number).ok_or(libc::EINVAL)?;
        if !known || there.points.contains(&attr.index) {
            return Err(libc::EINVAL);
        }
        there.points.push(attr.index);
        let Some(flow) = flow else { return Ok(()) };
        let flow = fabric.flows.get_mut(flow).ok_or(libc::EINVAL)?;
        if flow.counters.replace(number).is_none()
            && let Some(counters) = fabric.flow_counters.get_mut(number)
        {
            counters.flows += 1;
        }
        Ok(())
    }))
}

/// See `ibv_read_counters(3)`: no packet was counted.
pub(crate) unsafe extern "C" fn read_counters(
    counters: *mut c::ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    // SAFETY: the caller gives live counters.
    let (context, number) = unsafe { named(counters) };
    let mut fabric = fabric();
    status(fabric.enter(context.device, Verb::ibv_read_counters).and_then(|()| {
        let there = fabric.flow_counters.get(number).ok_or(libc::EINVAL)?;
        let highest = there.points.iter().max().map_or(0, |&index| index + 1);
        if count < highest || flags & !c::IBV_READ_COUNTERS_ATTR_PREFER_CACHED != 0 {
            return Err(libc::EINVAL);
        }
        let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
        // SAFETY: the caller gives `count` places.
        unsafe { values.write_bytes(0, count) };
        Ok(())
    }))
}
