//! Event channels of the connection manager.
#![expect(unsafe_code, reason = "the functions of librdmacm, called from C")]

use std::{
    collections::VecDeque,
    ffi::{c_char, c_int},
    os::fd::RawFd,
    ptr,
};

use rdma_sys as c;

use super::{
    Side, State,
    event::{Event, Parameters},
    queue_pair::{break_pair, make_ready},
};
use crate::{
    address::Vector,
    errno::{Outcome, minus_one, object},
    fabric::{Fabric, fabric},
    handle::Handle,
    signal::{self, Signal},
};

/// An event channel.
#[derive(Debug)]
pub(super) struct CmChannel {
    signal: Signal,
    events: VecDeque<Event>,
    /// Identifiers that report to it.
    pub(super) identifiers: u32,
}

impl CmChannel {
    pub(super) fn new() -> Outcome<Self> {
        Ok(Self { signal: Signal::new()?, events: VecDeque::new(), identifiers: 0 })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.signal.fd()
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push_back(event);
        self.signal.raise();
    }

    /// Takes the events of an identifier out.
    pub(super) fn take_of(&mut self, identifier: u32) -> Vec<Event> {
        let (mine, others): (Vec<Event>, Vec<Event>) =
            self.events.drain(..).partition(|event| event.identifier == identifier);
        self.events = others.into();
        for _ in &mine {
            self.signal.lower();
        }
        mine
    }
}

/// See `rdma_create_event_channel(3)`.
pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut c::rdma_event_channel {
    object(CmChannel::new().map(|channel| {
        let fd = channel.fd();
        let number = fabric().cm.channels.insert_with(|_| channel);
        Handle::make(c::rdma_event_channel { fd }, number)
    }))
}

/// See `rdma_destroy_event_channel(3)`. Identifiers that still report to it count as a violation.
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut c::rdma_event_channel) {
    // SAFETY: the caller gives a live channel.
    let number = unsafe { Handle::number(channel) };
    let mut fabric = fabric();
    let Some(removed) = fabric.cm.channels.remove(number) else { return };
    if removed.identifiers > 0 {
        let devices: Vec<u32> = fabric
            .cm
            .identifiers
            .iter()
            .filter(|(_, each)| each.channel == number)
            .filter_map(|(_, each)| each.device)
            .collect();
        for device in devices {
            let text = "rdma_destroy_event_channel: an identifier reports to it";
            fabric.violation(device, text.into());
        }
    }
    drop(fabric);
    // SAFETY: the channel is gone and the caller gives it up.
    unsafe { Handle::free(channel) };
}

/// The C struct of an event, and its private data.
#[repr(C)]
struct EventHandle {
    event: c::rdma_cm_event,
    private_data: Box<[u8]>,
    /// Who waits for the acknowledgement when it is destroyed.
    counted: u32,
}

/// See `rdma_get_cm_event(3)`: waits unless the descriptor was made non-blocking.
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut c::rdma_event_channel,
    event: *mut *mut c::rdma_cm_event,
) -> c_int {
    if channel.is_null() {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: the caller gives a live channel.
    let number = unsafe { Handle::number(channel) };
    // SAFETY: the caller gives a live channel, whose descriptor never changes.
    let fd = unsafe { (*channel).fd };
    minus_one(next(number, fd).map(|found| {
        // SAFETY: the caller gives a place for the event.
        unsafe { event.write(found) };
    }))
}

/// The next event of a channel.
pub(super) fn next(channel: u32, fd: RawFd) -> Outcome<*mut c::rdma_cm_event> {
    loop {
        signal::wait(fd)?;
        let popped = fabric().cm.channels.get_mut(channel).ok_or(libc::EBADF)?.events.pop_front();
        if let Some(event) = popped.map(prepare) {
            return Ok(hand_out(event));
        }
    }
}

/// Does what librdmacm does before it shows an event: it gets the queue pair of an identifier that has
/// one ready when the peer accepted, and breaks it when the peer rejected.
fn prepare(event: Event) -> Event {
    match event.kind {
        c::RDMA_CM_EVENT_CONNECT_RESPONSE => {
            let Some(raw) = pair_of(event.identifier) else { return event };
            match make_ready(event.identifier, raw) {
                Ok(()) => {
                    fabric().establish(event.identifier);
                    Event { kind: c::RDMA_CM_EVENT_ESTABLISHED, ..event }
                }
                Err(code) => {
                    let kind = c::RDMA_CM_EVENT_CONNECT_ERROR;
                    Event { kind, status: -code, ..event }
                }
            }
        }
        c::RDMA_CM_EVENT_REJECTED => {
            if let Some(raw) = pair_of(event.identifier) {
                break_pair(raw);
            }
            event
        }
        _ => event,
    }
}

/// The queue pair of an identifier, if it has one.
fn pair_of(identifier: u32) -> Option<*mut c::ibv_qp> {
    let raw = fabric().cm.identifiers.get(identifier)?.raw;
    let raw: *mut c::rdma_cm_id = ptr::with_exposed_provenance_mut(raw);
    // SAFETY: the struct lives as long as the identifier; librdmacm reads this field here too.
    let qp = unsafe { (*raw).qp };
    (!qp.is_null()).then_some(qp)
}

/// Makes the C struct of an event, and counts it.
fn hand_out(event: Event) -> *mut c::rdma_cm_event {
    let mut fabric = fabric();
    let raw = |fabric: &Fabric, number: u32| {
        let raw = fabric.cm.identifiers.get(number).map_or(0, |identifier| identifier.raw);
        ptr::with_exposed_provenance_mut(raw)
    };
    let request = event.kind == c::RDMA_CM_EVENT_CONNECT_REQUEST;
    let identifier = fabric.cm.identifiers.get(event.identifier);
    let listener = identifier.and_then(|each| each.listener).filter(|_| request);
    // A request is counted at the listener, which cannot go before it is acknowledged.
    let counted = listener.unwrap_or(event.identifier);
    if let Some(counted) = fabric.cm.identifiers.get_mut(counted) {
        counted.events.hand_out();
    }
    let private_data = event.private_data.into_boxed_slice();
    let length = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    let data = match event.context {
        0 if length == 0 => (ptr::null(), 0),
        0 => (private_data.as_ptr().cast(), length),
        context => (ptr::with_exposed_provenance(context), 0),
    };
    let handle = EventHandle {
        event: c::rdma_cm_event {
            id: raw(&fabric, event.identifier),
            listen_id: listener.map_or(ptr::null_mut(), |number| raw(&fabric, number)),
            event: event.kind,
            status: event.status,
            param: parameters(event.parameters, data),
        },
        private_data,
        counted,
    };
    Box::into_raw(Box::new(handle)).cast()
}

fn parameters(
    parameters: Parameters,
    (private_data, private_data_len): (*const std::ffi::c_void, u8),
) -> c::rdma_cm_event__bindgen_ty_1 {
    match parameters {
        Parameters::Datagram(vector, qp_num, qkey) => c::rdma_cm_event__bindgen_ty_1 {
            ud: c::rdma_ud_param {
                private_data,
                private_data_len,
                ah_attr: in_c(vector),
                qp_num,
                qkey,
            },
        },
        Parameters::Connection(peer) => c::rdma_cm_event__bindgen_ty_1 {
            conn: c::rdma_conn_param { private_data, private_data_len, ..conn_param(peer) },
        },
        Parameters::None => c::rdma_cm_event__bindgen_ty_1 {
            conn: c::rdma_conn_param {
                private_data,
                private_data_len,
                ..c::rdma_conn_param::default()
            },
        },
    }
}

fn conn_param(side: Side) -> c::rdma_conn_param {
    c::rdma_conn_param {
        responder_resources: side.responder_resources,
        initiator_depth: side.initiator_depth,
        flow_control: side.flow_control,
        retry_count: side.retry_count,
        rnr_retry_count: side.rnr_retry_count,
        srq: side.srq,
        qp_num: side.qp_num,
        ..c::rdma_conn_param::default()
    }
}

/// An address vector as C has it.
pub(super) fn in_c(vector: Vector) -> c::ibv_ah_attr {
    let global = vector.global.unwrap_or_default();
    c::ibv_ah_attr {
        grh: c::ibv_global_route {
            dgid: c::ibv_gid { raw: global.dgid },
            flow_label: global.flow_label,
            sgid_index: global.sgid_index,
            hop_limit: global.hop_limit,
            traffic_class: global.traffic_class,
        },
        dlid: vector.dlid,
        sl: vector.sl,
        is_global: u8::from(vector.global.is_some()),
        port_num: vector.port,
        ..c::ibv_ah_attr::default()
    }
}

/// See `rdma_ack_cm_event(3)`.
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut c::rdma_cm_event) -> c_int {
    if event.is_null() {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: the caller gives an event that it got from here and gives up now.
    let handle = unsafe { Box::from_raw(event.cast::<EventHandle>()) };
    if let Some(counted) = fabric().cm.identifiers.get_mut(handle.counted) {
        counted.events.acknowledge(1);
    }
    0
}

impl Fabric {
    /// Both sides of a connection are ready, says the side that asked for it.
    pub(super) fn establish(&mut self, number: u32) {
        let Some(identifier) = self.cm.identifiers.get_mut(number) else { return };
        identifier.state = State::Connected;
        let Some(peer) = identifier.peer else { return };
        if let Some(other) = self.cm.identifiers.get_mut(peer)
            && other.state == State::Accepted
        {
            other.state = State::Connected;
            self.tell(Event::new(peer, c::RDMA_CM_EVENT_ESTABLISHED));
        }
    }
}

/// See `rdma_event_str(3)`.
pub(crate) unsafe extern "C" fn rdma_event_str(event: c::rdma_cm_event_type) -> *const c_char {
    let name = match event {
        c::RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c::RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        c::RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c::RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        c::RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c::RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c::RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        c::RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        c::RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        c::RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        c::RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        c::RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c::RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c::RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c::RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        c::RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
