//! Answering a request, and ending a connection.
#![expect(unsafe_code, reason = "the functions of librdmacm, called from C")]

use std::ffi::{c_int, c_void};

use rdma_sys as c;

use super::{
    Identifier, Side, State,
    connect::{Wanted, data},
    event::{BY_CONSUMER, Event, LOOKUP_REPLY_DATA, Parameters, REJECT_DATA, REPLY_DATA},
    identifier::{complete, number},
    queue_pair::{break_pair, make_ready, route_between},
};
use crate::{
    errno::{Outcome, minus_one},
    fabric::{Fabric, fabric},
    verb::Verb,
};

/// See `rdma_accept(3)`: gets the queue pair of the identifier ready, if it has one.
pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut c::rdma_cm_id,
    param: *mut c::rdma_conn_param,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    // SAFETY: the caller gives null or readable parameters.
    let wanted = unsafe { Wanted::read(id, param) };
    // SAFETY: the caller is in a call on the identifier.
    let qp = unsafe { (*id).qp };
    let outcome = accept(number, &wanted, qp);
    let datagram = fabric().cm.identifiers.get(number).is_some_and(|it| it.ps == c::RDMA_PS_UDP);
    if datagram {
        return minus_one(outcome);
    }
    // SAFETY: the caller gives a live identifier.
    unsafe { complete(id, outcome) }
}

fn accept(number: u32, wanted: &Wanted<'_>, qp: *mut c::ibv_qp) -> Outcome {
    let datagram = {
        let mut fabric = fabric();
        let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
        let (ps, psn, device) = (identifier.ps, identifier.own.psn, identifier.device);
        if identifier.state != State::Requested || wanted.data.len() > REPLY_DATA {
            return Err(libc::EINVAL);
        }
        let device = device.ok_or(libc::EINVAL)?;
        fabric.enter(device, Verb::rdma_accept)?;
        let peer = identifier_peer(&fabric, number)?;
        // What the peer did not say to answer is not asked of it.
        let heard = fabric.heard(peer);
        let mut side = fabric.clamp(device, wanted.side)?;
        side.initiator_depth = side.initiator_depth.min(heard.initiator_depth);
        side.responder_resources = side.responder_resources.min(heard.responder_resources);
        side.retry_count = heard.retry_count;
        let identifier = fabric.cm.identifiers.get_mut(number).ok_or(libc::EINVAL)?;
        identifier.own = Side { psn, ..side };
        ps == c::RDMA_PS_UDP
    };
    if !datagram && !qp.is_null() {
        make_ready(number, qp)?;
    }
    let mut fabric = fabric();
    let peer = identifier_peer(&fabric, number)?;
    let answer = if datagram { State::Connected } else { State::Accepted };
    let mut qp_num = 0;
    if let Some(identifier) = fabric.cm.identifiers.get_mut(number) {
        identifier.state = answer;
        qp_num = identifier.own.qp_num;
    }
    if let Some(other) = fabric.cm.identifiers.get_mut(peer) {
        other.state = if datagram { State::Connected } else { State::Responded };
    }
    if datagram {
        let vector = route_between(&fabric, peer)?;
        let mut event = Event::new(peer, c::RDMA_CM_EVENT_ESTABLISHED);
        event.parameters = Parameters::Datagram(vector, qp_num, c::RDMA_UDP_QKEY);
        fabric.tell(event.data(wanted.data, LOOKUP_REPLY_DATA));
        return Ok(());
    }
    let heard = fabric.heard(number);
    if let Some(other) = fabric.cm.identifiers.get_mut(peer) {
        other.own.responder_resources = heard.responder_resources;
        other.own.initiator_depth = heard.initiator_depth;
    }
    let event = Event::new(peer, c::RDMA_CM_EVENT_CONNECT_RESPONSE).connection(heard);
    fabric.tell(event.data(wanted.data, REPLY_DATA));
    Ok(())
}

/// The identifier at the other end, if it is still there.
fn identifier_peer(fabric: &Fabric, number: u32) -> Outcome<u32> {
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    identifier.peer.ok_or(libc::ECONNRESET)
}

/// See `rdma_establish(3)`: says that the own queue pair is ready.
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut c::rdma_cm_id) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    // SAFETY: the caller is in a call on the identifier.
    if !unsafe { (*id).qp }.is_null() {
        return minus_one(Err(libc::EINVAL));
    }
    let mut fabric = fabric();
    let waits = |it: &Identifier| it.state == State::Responded;
    if let Err(code) = fabric.enter_with(number, Verb::rdma_establish) {
        return minus_one(Err(code));
    }
    minus_one(if fabric.cm.identifiers.get(number).is_some_and(waits) {
        fabric.establish(number);
        Ok(())
    } else {
        Err(libc::EINVAL)
    })
}

/// See `rdma_notify(3)`: the queue pair heard from the peer before the peer said that it is ready.
pub(crate) unsafe extern "C" fn rdma_notify(
    id: *mut c::rdma_cm_id,
    event: c::ibv_event_type,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    let mut fabric = fabric();
    if let Err(code) = fabric.enter_with(number, Verb::rdma_notify) {
        return minus_one(Err(code));
    }
    let Some(identifier) = fabric.cm.identifiers.get_mut(number) else {
        return minus_one(Err(libc::EINVAL));
    };
    minus_one(match (event, identifier.state) {
        (c::IBV_EVENT_COMM_EST, State::Accepted) => {
            identifier.state = State::Connected;
            fabric.tell(Event::new(number, c::RDMA_CM_EVENT_ESTABLISHED));
            Ok(())
        }
        (c::IBV_EVENT_COMM_EST, State::Connected) => Ok(()),
        _ => Err(libc::EINVAL),
    })
}

/// See `rdma_reject(3)`.
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut c::rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    let param = c::rdma_conn_param {
        private_data,
        private_data_len: length,
        ..c::rdma_conn_param::default()
    };
    // SAFETY: the caller gives `length` bytes.
    minus_one(reject(number, unsafe { data(&param) }))
}

/// See `rdma_reject(3)`: as [`rdma_reject`], for the reason that the options do not fit.
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut c::rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the two have the same contract.
    unsafe { rdma_reject(id, private_data, length) }
}

fn reject(number: u32, data: &[u8]) -> Outcome {
    let mut fabric = fabric();
    fabric.enter_with(number, Verb::rdma_reject)?;
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    let (state, ps) = (identifier.state, identifier.ps);
    if !matches!(state, State::Requested | State::Responded) || data.len() > REJECT_DATA {
        return Err(libc::EINVAL);
    }
    let peer = identifier_peer(&fabric, number);
    for each in [Ok(number), peer].into_iter().flatten() {
        if let Some(identifier) = fabric.cm.identifiers.get_mut(each) {
            identifier.state = State::Disconnected;
            identifier.peer = None;
        }
    }
    if let Ok(peer) = peer {
        let (kind, room) = if ps == c::RDMA_PS_UDP {
            (c::RDMA_CM_EVENT_UNREACHABLE, LOOKUP_REPLY_DATA)
        } else {
            (c::RDMA_CM_EVENT_REJECTED, REJECT_DATA)
        };
        let data = data.get(..data.len().min(room)).unwrap_or(&[]);
        fabric.tell(Event::new(peer, kind).status(BY_CONSUMER).data(data, room));
    }
    Ok(())
}

/// See `rdma_disconnect(3)`: puts the queue pair of the identifier into error and tells both ends. The
/// answer of the peer is not waited for.
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut c::rdma_cm_id) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    // SAFETY: the caller is in a call on the identifier.
    let qp = unsafe { (*id).qp };
    let outcome = disconnect(number);
    if outcome.is_ok() && !qp.is_null() {
        break_pair(qp);
    }
    // The end of a connection that was over already brings no event to wait for.
    if outcome != Ok(true) {
        return minus_one(outcome.map(drop));
    }
    // SAFETY: the caller gives a live identifier.
    unsafe { complete(id, Ok(())) }
}

/// Ends a connection; whether it was there.
fn disconnect(number: u32) -> Outcome<bool> {
    let mut fabric = fabric();
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    let (state, device) = (identifier.state, identifier.device);
    if let Some(device) = device {
        fabric.enter(device, Verb::rdma_disconnect)?;
    }
    match state {
        State::Connected | State::Accepted | State::Responded => {}
        State::Disconnected => return Ok(false),
        _ => return Err(libc::EINVAL),
    }
    fabric.desert(number);
    if let Some(identifier) = fabric.cm.identifiers.get_mut(number) {
        identifier.state = State::Disconnected;
    }
    fabric.tell(Event::new(number, c::RDMA_CM_EVENT_DISCONNECTED));
    fabric.tell(Event::new(number, c::RDMA_CM_EVENT_TIMEWAIT_EXIT));
    Ok(true)
}
