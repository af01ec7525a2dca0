//! Queue pairs of identifiers, and the attributes that connect them.
#![expect(
    unsafe_code,
    reason = "the functions of librdmacm, called from C, and the verbs they call"
)]

use std::{ffi::c_int, ptr};

use rdma_sys as c;

use super::{State, address::gid_of, channel::in_c, identifier::number};
use crate::{
    address::{Global, Vector},
    channel::{ibv_create_comp_channel, ibv_destroy_comp_channel},
    completion_queue::{ibv_create_cq, ibv_destroy_cq},
    errno::{Outcome, errno, minus_one},
    fabric::{Fabric, fabric},
    pair::{create_qp_ex, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp},
    verb::Verb,
};

/// See `rdma_create_qp(3)`: makes completion queues as well where none are given.
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut c::rdma_cm_id,
    pd: *mut c::ibv_pd,
    init: *mut c::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller gives a struct of its own.
    let init = unsafe { &mut *init };
    let mut whole = c::ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: if pd.is_null() { 0 } else { c::IBV_QP_INIT_ATTR_PD },
        pd,
        ..c::ibv_qp_init_attr_ex::default()
    };
    // SAFETY: the identifier and the objects in the struct are live.
    let code = unsafe { rdma_create_qp_ex(id, &raw mut whole) };
    init.cap = whole.cap;
    code
}

/// See `rdma_create_qp(3)`: a datagram pair is ready to send, a connected one initialized.
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut c::rdma_cm_id,
    init: *mut c::ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the caller gives a struct of its own.
    let init = unsafe { &mut *init };
    // SAFETY: the caller gives a live identifier.
    if let Err(code) = fabric().enter_with(unsafe { number(id) }, Verb::rdma_create_qp) {
        return minus_one(Err(code));
    }
    // SAFETY: the caller is in a call on the identifier.
    let raw = unsafe { &mut *id };
    if init.comp_mask & c::IBV_QP_INIT_ATTR_PD == 0 {
        init.comp_mask |= c::IBV_QP_INIT_ATTR_PD;
        init.pd = raw.pd;
    }
    if !raw.qp.is_null() || raw.verbs.is_null() || init.pd.is_null() {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: the caller gives a live domain.
    if unsafe { (*init.pd).context } != raw.verbs {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: the identifier is live and has a device.
    if let Err(code) = unsafe { add_queues(raw, init) } {
        return minus_one(Err(code));
    }
    // SAFETY: the objects in the struct are live.
    let made = unsafe { create_pair(raw.verbs, init) };
    // SAFETY: the identifier is live.
    let number = unsafe { number(id) };
    let ready = made.and_then(|qp| begin(number, qp).map(|()| qp));
    match ready {
        Ok(qp) => {
            raw.qp = qp;
            raw.pd = init.pd;
            0
        }
        Err(code) => {
            if let Ok(qp) = made {
                // SAFETY: the pair has just been made, and nobody knows it.
                unsafe { ibv_destroy_qp(qp) };
            }
            // SAFETY: the identifier is live.
            unsafe { remove_queues(raw) };
            minus_one(Err(code))
        }
    }
}

/// Makes a pair by the verb that knows all that was asked for.
///
/// # Safety
///
/// The objects in `init` are live.
unsafe fn create_pair(
    context: *mut c::ibv_context,
    init: &mut c::ibv_qp_init_attr_ex,
) -> Outcome<*mut c::ibv_qp> {
    let made = if init.comp_mask == c::IBV_QP_INIT_ATTR_PD {
        let mut plain = c::ibv_qp_init_attr {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
        };
        // SAFETY: by the contract above.
        let made = unsafe { ibv_create_qp(init.pd, &raw mut plain) };
        init.cap = plain.cap;
        made
    } else {
        // SAFETY: by the contract above.
        unsafe { create_qp_ex(context, ptr::from_mut(init)) }
    };
    if made.is_null() { Err(errno()) } else { Ok(made) }
}

/// Makes the completion queues that are missing, each with a channel.
///
/// # Safety
///
/// `raw` is a live identifier with a device.
unsafe fn add_queues(raw: &mut c::rdma_cm_id, init: &mut c::ibv_qp_init_attr_ex) -> Outcome {
    let context = raw.verbs;
    let make = |entries: u32| {
        // SAFETY: the context of an identifier is open.
        let channel = unsafe { ibv_create_comp_channel(context) };
        if channel.is_null() {
            return Err(errno());
        }
        let entries = c_int::try_from(entries.max(1)).map_err(|_| libc::EINVAL)?;
        // SAFETY: the context is open, and the channel has just been made.
        let queue = unsafe { ibv_create_cq(context, entries, ptr::null_mut(), channel, 0) };
        if queue.is_null() {
            let code = errno();
            // SAFETY: the channel has just been made, and nobody knows it.
            unsafe { ibv_destroy_comp_channel(channel) };
            return Err(code);
        }
        Ok((channel, queue))
    };
    if init.recv_cq.is_null() {
        (raw.recv_cq_channel, raw.recv_cq) = make(init.cap.max_recv_wr)?;
        init.recv_cq = raw.recv_cq;
    }
    if init.send_cq.is_null() {
        (raw.send_cq_channel, raw.send_cq) = make(init.cap.max_send_wr)?;
        init.send_cq = raw.send_cq;
    }
    Ok(())
}

/// Destroys the completion queues that were made with the pair.
///
/// # Safety
///
/// `raw` is a live identifier whose pair is gone.
unsafe fn remove_queues(raw: &mut c::rdma_cm_id) {
    for queue in [&mut raw.recv_cq, &mut raw.send_cq] {
        if !queue.is_null() {
            // SAFETY: the queue was made with the pair, which is gone.
            unsafe { ibv_destroy_cq(*queue) };
            *queue = ptr::null_mut();
        }
    }
    for channel in [&mut raw.recv_cq_channel, &mut raw.send_cq_channel] {
        if !channel.is_null() {
            // SAFETY: the channel was made with the pair, and its queue is gone.
            unsafe { ibv_destroy_comp_channel(*channel) };
            *channel = ptr::null_mut();
        }
    }
}

/// See `rdma_destroy_qp(3)`.
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut c::rdma_cm_id) {
    // SAFETY: the caller gives a live identifier, and is in a call on it.
    let raw = unsafe { &mut *id };
    if raw.qp.is_null() {
        return;
    }
    // SAFETY: the pair of an identifier is live.
    if unsafe { ibv_destroy_qp(raw.qp) } == 0 {
        raw.qp = ptr::null_mut();
        // SAFETY: the pair is gone.
        unsafe { remove_queues(raw) };
    }
}

/// Changes a pair to the state that its identifier gives it.
fn change(number: u32, qp: *mut c::ibv_qp, state: c::ibv_qp_state) -> Outcome {
    let (mut attr, mask) = attributes(number, state)?;
    // SAFETY: the caller's pair is live while a call on its identifier runs.
    match unsafe { ibv_modify_qp(qp, &raw mut attr, mask.cast_signed()) } {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Brings a new pair as far as it can go before it has a peer.
fn begin(number: u32, qp: *mut c::ibv_qp) -> Outcome {
    change(number, qp, c::IBV_QPS_INIT)?;
    // SAFETY: the pair has just been made.
    if unsafe { (*qp).qp_type } == c::IBV_QPT_UD {
        change(number, qp, c::IBV_QPS_RTR)?;
        change(number, qp, c::IBV_QPS_RTS)?;
    }
    Ok(())
}

/// Connects a pair to that of the peer.
pub(super) fn make_ready(number: u32, qp: *mut c::ibv_qp) -> Outcome {
    change(number, qp, c::IBV_QPS_INIT)?;
    change(number, qp, c::IBV_QPS_RTR)?;
    change(number, qp, c::IBV_QPS_RTS)
}

/// Puts a pair into the error state.
pub(super) fn break_pair(qp: *mut c::ibv_qp) {
    let mut attr = c::ibv_qp_attr { qp_state: c::IBV_QPS_ERR, ..c::ibv_qp_attr::default() };
    let mask = c::IBV_QP_STATE.cast_signed();
    // SAFETY: the caller's pair is live while a call on its identifier or channel runs.
    unsafe { ibv_modify_qp(qp, &raw mut attr, mask) };
}

/// See `rdma_init_qp_attr(3)`: fills the attributes for the state that `attr` names.
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut c::rdma_cm_id,
    attr: *mut c::ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    // SAFETY: the caller gives a struct that says which state it wants.
    let state = unsafe { (*attr).qp_state };
    let entered = fabric().enter_with(number, Verb::rdma_init_qp_attr);
    minus_one(entered.and_then(|()| attributes(number, state)).map(|(answer, set)| {
        // SAFETY: the caller gives a place for the attributes.
        unsafe { attr.write(answer) };
        // SAFETY: the caller gives a place for the mask.
        unsafe { mask.write(set.cast_signed()) };
    }))
}

/// The attributes that a pair of an identifier needs for a state.
fn attributes(number: u32, state: c::ibv_qp_state) -> Outcome<(c::ibv_qp_attr, u32)> {
    let fabric = fabric();
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    let device = identifier.device.ok_or(libc::EINVAL)?;
    let datagram = identifier.ps == c::RDMA_PS_UDP || identifier.ps == c::RDMA_PS_IPOIB;
    let meets = matches!(
        identifier.state,
        State::Connecting
            | State::Requested
            | State::Accepted
            | State::Responded
            | State::Connected
    );
    let own = identifier.own;
    let mut attr = c::ibv_qp_attr { qp_state: state, ..c::ibv_qp_attr::default() };
    let mut mask = c::IBV_QP_STATE;
    match state {
        c::IBV_QPS_INIT => {
            attr.port_num = identifier.port;
            mask |= c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT;
            if datagram {
                attr.qkey = c::RDMA_UDP_QKEY;
                mask |= c::IBV_QP_QKEY;
            } else {
                let reads = c::IBV_ACCESS_REMOTE_READ | c::IBV_ACCESS_REMOTE_ATOMIC;
                attr.qp_access_flags = if meets { c::IBV_ACCESS_REMOTE_WRITE } else { 0 }
                    | if meets && own.responder_resources > 0 { reads } else { 0 };
                mask |= c::IBV_QP_ACCESS_FLAGS;
            }
        }
        c::IBV_QPS_RTR if datagram => {}
        c::IBV_QPS_RTS if datagram => mask |= c::IBV_QP_SQ_PSN,
        c::IBV_QPS_RTR | c::IBV_QPS_RTS if !meets => return Err(libc::EINVAL),
        c::IBV_QPS_RTR => {
            let peer = identifier.peer.and_then(|peer| fabric.cm.identifiers.get(peer));
            let peer = peer.ok_or(libc::EINVAL)?;
            let mtu = |device| fabric.device(device).map_or(0, |it| it.description.mtu);
            attr.ah_attr = in_c(route_between(&fabric, number)?);
            attr.path_mtu = mtu(device).min(peer.device.map_or(0, mtu));
            attr.dest_qp_num = peer.own.qp_num;
            attr.rq_psn = peer.own.psn;
            attr.max_dest_rd_atomic = own.responder_resources;
            mask |= c::IBV_QP_AV
                | c::IBV_QP_PATH_MTU
                | c::IBV_QP_DEST_QPN
                | c::IBV_QP_RQ_PSN
                | c::IBV_QP_MAX_DEST_RD_ATOMIC
                | c::IBV_QP_MIN_RNR_TIMER;
        }
        c::IBV_QPS_RTS => {
            let peer = identifier.peer.and_then(|peer| fabric.cm.identifiers.get(peer));
            attr.sq_psn = own.psn;
            attr.timeout = 14;
            attr.retry_cnt = own.retry_count.min(7);
            // Each end says how often the other may try it.
            attr.rnr_retry = peer.map_or(0, |peer| peer.own.rnr_retry_count.min(7));
            attr.max_rd_atomic = own.initiator_depth;
            mask |= c::IBV_QP_SQ_PSN
                | c::IBV_QP_TIMEOUT
                | c::IBV_QP_RETRY_CNT
                | c::IBV_QP_RNR_RETRY
                | c::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        _ => return Err(libc::EINVAL),
    }
    Ok((attr, mask))
}

/// The address vector from an identifier to its peer.
pub(super) fn route_between(fabric: &Fabric, number: u32) -> Outcome<Vector> {
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    let device = identifier.device.ok_or(libc::EINVAL)?;
    let (local, remote) = (identifier.local, identifier.remote);
    let (local, remote) = (local.ok_or(libc::EINVAL)?.ip(), remote.ok_or(libc::EINVAL)?.ip());
    let index = |device: u32, port: u8, ip: std::net::IpAddr| {
        let table = &fabric.device(device)?.description.port(port)?.gids;
        let exact = table.iter().position(|entry| entry.gid == gid_of(ip));
        // A loopback address has no GID: any will do, and the last is not link-local where it can be.
        let place = exact.or_else(|| table.len().checked_sub(1))?;
        Some((place, table.get(place)?.gid))
    };
    let (far_device, far_port) = fabric.at_address(remote).ok_or(libc::EHOSTUNREACH)?;
    let (own, _) = index(device, identifier.port, local).ok_or(libc::EINVAL)?;
    let (_, dgid) = index(far_device, far_port, remote).ok_or(libc::EINVAL)?;
    let lid = fabric.device(far_device).and_then(|it| it.description.port(far_port));
    Ok(Vector {
        port: identifier.port,
        dlid: lid.map_or(0, |port| port.lid),
        sl: 0,
        global: Some(Global {
            dgid,
            sgid_index: u8::try_from(own).map_err(|_| libc::EINVAL)?,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
        }),
    })
}
