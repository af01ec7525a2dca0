//! Flows, which bring frames of a port to queue pairs, and their counters.
#![expect(unsafe_code, reason = "the verbs of flow steering, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use crate::{
    errno::{Outcome, object, status},
    ethernet::filter::Specifications,
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    pair::PairRef,
    verb::Verb,
};

/// A rule that brings frames of a port to a queue pair.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) context: u32,
    pub(crate) pair: u32,
    /// The device and its port.
    pub(crate) at: (u32, u8),
    pub(crate) kind: c::ibv_flow_attr_type,
    priority: u16,
    /// Rules after it see the frame as well.
    pub(crate) lets_pass: bool,
    pub(crate) wants: Specifications,
}

impl Flow {
    /// What comes first gets the frame: specific rules before those for what is left, and among them the one of the
    /// smaller number of priority.
    fn rank(&self) -> (c::ibv_flow_attr_type, u16) {
        let kind = match self.kind {
            c::IBV_FLOW_ATTR_MC_DEFAULT => 1,
            c::IBV_FLOW_ATTR_ALL_DEFAULT => 2,
            _ => 0,
        };
        (kind, self.priority)
    }
}

/// Counters of flows.
#[derive(Debug)]
pub(crate) struct FlowCounters {
    pub(crate) context: u32,
    points: Vec<Point>,
    /// Flows that count there.
    flows: u32,
}

/// Something that is counted at an index, to which all that is counted there adds.
#[derive(Debug)]
struct Point {
    index: u32,
    kind: c::ibv_counter_description,
    /// The flow, `None` for all that count there.
    flow: Option<u32>,
    value: u64,
}

/// See `ibv_create_flow(3)`: of datagram pairs, to which no frame comes, and of raw packet pairs.
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
    // SAFETY: the caller gives attributes with their specifications behind them, and live counters.
    let wants = unsafe { Specifications::read(attr) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { *attr };
    object(create(context, pair, &attr, wants))
}

fn create(
    context: ContextRef,
    named: PairRef,
    attr: &c::ibv_flow_attr,
    wants: Outcome<Specifications>,
) -> Outcome<*mut c::ibv_flow> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_create_flow)?;
    let wants = wants?;
    let device = fabric.device(context.device).ok_or(libc::ENODEV)?;
    let known = attr.comp_mask == 0
        && attr.type_ <= c::IBV_FLOW_ATTR_SNIFFER
        && device.description.port(attr.port).is_some();
    let kind = fabric.pairs.get(named.number).map(|pair| pair.kind);
    if !known
        || !matches!(kind, Some(c::IBV_QPT_UD | c::IBV_QPT_RAW_PACKET))
        || (attr.type_ != c::IBV_FLOW_ATTR_NORMAL && (wants.has_filters() || attr.flags != 0))
    {
        return Err(libc::EINVAL);
    }
    if attr.flags & !c::IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if let Some(counters) = wants.counters {
        fabric.flow_counters.get_mut(counters).ok_or(libc::EINVAL)?.flows += 1;
    }
    fabric.pairs.get_mut(named.number).ok_or(libc::EINVAL)?.flows += 1;
    let flow = Flow {
        context: context.number,
        pair: named.number,
        at: (context.device, attr.port),
        kind: attr.type_,
        priority: attr.priority,
        lets_pass: attr.flags & c::IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0,
        wants,
    };
    let rank = flow.rank();
    let ranks_before =
        |&each: &u32| fabric.flows.get(each).is_some_and(|other| other.rank() <= rank);
    let place = fabric.rules.partition_point(ranks_before);
    let number = fabric.flows.insert_with(|_| flow);
    fabric.rules.insert(place, number);
    Ok(Handle::make(c::ibv_flow { comp_mask: 0, context: context.raw, handle: number }, number))
}

impl Fabric {
    /// Takes the flows of a closed context out of force.
    pub(crate) fn end_rules(&mut self, context: u32) {
        let flows = &self.flows;
        self.rules.retain(|&rule| flows.get(rule).is_some_and(|flow| flow.context != context));
    }

    /// Counts a frame that a flow took.
    pub(crate) fn count_frame(&mut self, flow: u32, length: usize) {
        let counters = self.flows.get(flow).and_then(|flow| flow.wants.counters);
        let Some(counters) = counters.and_then(|number| self.flow_counters.get_mut(number)) else {
            return;
        };
        for point in &mut counters.points {
            if point.flow.is_none_or(|counted| counted == flow) {
                point.value += match point.kind {
                    c::IBV_COUNTER_PACKETS => 1,
                    _ => u64::try_from(length).unwrap_or(0),
                };
            }
        }
    }
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
        fabric.rules.retain(|&each| each != number);
        if let Some(pair) = fabric.pairs.get_mut(removed.pair) {
            pair.flows -= 1;
        }
        if let Some(counters) =
            removed.wants.counters.and_then(|it| fabric.flow_counters.get_mut(it))
        {
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

/// See `ibv_attach_counters_point_flow(3)`: `EBUSY` for a point of all flows once a flow counts there, as on
/// ConnectX cards.
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
        let there = fabric.flow_counters.get(number).ok_or(libc::EINVAL)?;
        if attr.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        if attr.counter_desc > c::IBV_COUNTER_BYTES {
            return Err(libc::ENOTSUP);
        }
        if flow.is_none() && there.flows > 0 {
            return Err(libc::EBUSY);
        }
        let mut newly = false;
        if let Some(flow) = flow {
            let flow = fabric.flows.get_mut(flow).ok_or(libc::EINVAL)?;
            match flow.wants.counters.replace(number) {
                None => newly = true,
                Some(same) if same == number => {}
                Some(other) => {
                    flow.wants.counters = Some(other);
                    return Err(libc::EBUSY);
                }
            }
        }
        let there = fabric.flow_counters.get_mut(number).ok_or(libc::EINVAL)?;
        there.flows += u32::from(newly);
        there.points.push(Point { index: attr.index, kind: attr.counter_desc, flow, value: 0 });
        Ok(())
    }))
}

/// See `ibv_read_counters(3)`: 0 at an index where nothing is counted.
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
        let highest = there.points.iter().map(|point| point.index + 1).max().unwrap_or(0);
        if count < highest || flags & !c::IBV_READ_COUNTERS_ATTR_PREFER_CACHED != 0 {
            return Err(libc::EINVAL);
        }
        let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
        // SAFETY: the caller gives `count` places.
        unsafe { values.write_bytes(0, count) };
        for point in &there.points {
            let place = values.wrapping_add(usize::try_from(point.index).unwrap_or(0));
            // SAFETY: the index is below `count`, which was checked.
            let place = unsafe { &mut *place };
            *place += point.value;
        }
        Ok(())
    }))
}
