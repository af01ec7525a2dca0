//! Connecting: listen, connect, accept, reject, disconnect.
#![expect(unsafe_code, reason = "the functions of librdmacm, called from C")]

use std::{ffi::c_int, net::SocketAddr, ptr, slice};

use rdma_sys as c;

use super::{
    Identifier, Side, State,
    channel::{self, rdma_ack_cm_event},
    device,
    event::{Event, LOOKUP_DATA, NO_LISTENER, REJECT_DATA, REQUEST_DATA},
    identifier::{complete, create, number, release, show},
    resolve::bind,
};
use crate::{
    errno::{Outcome, minus_one},
    fabric::{Fabric, fabric},
    handle::Handle,
    verb::Verb,
};

/// See `rdma_listen(3)`.
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut c::rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    let idle = fabric().cm.identifiers.get(number).is_some_and(|each| each.state == State::Idle);
    let bound =
        if idle { bind(number, SocketAddr::from(([0, 0, 0, 0], 0))).map(drop) } else { Ok(()) };
    minus_one(bound.and_then(|()| {
        let mut fabric = fabric();
        fabric.enter_with(number, Verb::rdma_listen)?;
        let identifier = fabric.cm.identifiers.get_mut(number).ok_or(libc::EINVAL)?;
        if identifier.state != State::Bound {
            return Err(libc::EINVAL);
        }
        identifier.state = State::Listening;
        identifier.backlog = u32::try_from(backlog).ok().filter(|&some| some > 0).unwrap_or(1024);
        Ok(())
    }))
}

/// What a caller wants of a connection, and its private data.
pub(super) struct Wanted<'a> {
    pub(super) side: Side,
    pub(super) data: &'a [u8],
}

impl Wanted<'_> {
    /// Reads the parameters of C; without them it is as much as the device can.
    ///
    /// # Safety
    ///
    /// `param` is null, or readable together with its private data. `id` is a live identifier.
    pub(super) unsafe fn read(id: *mut c::rdma_cm_id, param: *const c::rdma_conn_param) -> Self {
        // SAFETY: by the contract above.
        let qp = unsafe { (*id).qp };
        // SAFETY: by the contract above.
        let given = unsafe { param.as_ref() };
        let mut side = given.map_or_else(
            || Side {
                responder_resources: u8::MAX,
                initiator_depth: u8::MAX,
                retry_count: 7,
                rnr_retry_count: 7,
                ..Side::default()
            },
            |param| Side {
                qp_num: param.qp_num,
                psn: 0,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                retry_count: param.retry_count,
                rnr_retry_count: param.rnr_retry_count,
                flow_control: param.flow_control,
                srq: param.srq,
            },
        );
        if !qp.is_null() {
            // SAFETY: the queue pair of an identifier is live as long as it is there.
            side.qp_num = unsafe { (*qp).qp_num };
        }
        // SAFETY: the private data is readable, by the contract above.
        Self { side, data: given.map_or(&[], |param| unsafe { data(param) }) }
    }
}

/// The private data of parameters.
///
/// # Safety
///
/// The data of `param` is readable.
pub(super) unsafe fn data(param: &c::rdma_conn_param) -> &[u8] {
    if param.private_data.is_null() || param.private_data_len == 0 {
        return &[];
    }
    // SAFETY: by the contract above.
    unsafe { slice::from_raw_parts(param.private_data.cast(), param.private_data_len.into()) }
}

impl Fabric {
    /// Cuts what is wanted to what the device has; 255 stands for all of that.
    pub(super) fn clamp(&self, device: u32, side: Side) -> Outcome<Side> {
        let limits = self.limits(device)?;
        let clamp = |wanted: u8, most: u8| match wanted {
            u8::MAX => Ok(most),
            wanted if wanted > most => Err(libc::EINVAL),
            wanted => Ok(wanted),
        };
        Ok(Side {
            responder_resources: clamp(side.responder_resources, limits.max_qp_rd_atom)?,
            initiator_depth: clamp(side.initiator_depth, limits.max_qp_init_rd_atom)?,
            ..side
        })
    }

    /// The identifier that listens at an address.
    fn listener(&self, ps: c::rdma_port_space, target: SocketAddr) -> Option<u32> {
        let listens = |identifier: &Identifier, exact: bool| {
            let at = identifier.local.filter(|_| identifier.state == State::Listening);
            at.is_some_and(|local| {
                let wild = local.ip().is_unspecified()
                    && (local.is_ipv4() == target.is_ipv4() || local.is_ipv6());
                let here = if exact { local.ip() == target.ip() } else { wild };
                identifier.ps == ps && local.port() == target.port() && here
            })
        };
        [true, false].into_iter().find_map(|exact| {
            let mut all = self.cm.identifiers.iter();
            all.find(|(_, identifier)| listens(identifier, exact)).map(|(number, _)| number)
        })
    }

    /// What one end of a connection hears from the other: its own answers are the other's questions.
    pub(super) fn heard(&self, from: u32) -> Side {
        let own = self.cm.identifiers.get(from).map_or_else(Side::default, |each| each.own);
        Side {
            responder_resources: own.initiator_depth,
            initiator_depth: own.responder_resources,
            ..own
        }
    }
}

/// See `rdma_connect(3)`.
pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut c::rdma_cm_id,
    param: *mut c::rdma_conn_param,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    // SAFETY: the caller gives null or readable parameters.
    let wanted = unsafe { Wanted::read(id, param) };
    let outcome = connect(number, &wanted);
    // SAFETY: the caller gives a live identifier.
    unsafe { complete(id, outcome) }
}

fn connect(number: u32, wanted: &Wanted<'_>) -> Outcome {
    let (listener, device) = {
        let mut fabric = fabric();
        let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
        let ps = identifier.ps;
        let room = if ps == c::RDMA_PS_UDP { LOOKUP_DATA } else { REQUEST_DATA };
        if identifier.state != State::RouteResolved || wanted.data.len() > room {
            return Err(libc::EINVAL);
        }
        let target = identifier.remote.ok_or(libc::EINVAL)?;
        let device = identifier.device.ok_or(libc::EINVAL)?;
        let psn = identifier.own.psn;
        fabric.enter(device, Verb::rdma_connect)?;
        let side = fabric.clamp(device, wanted.side)?;
        let listener = fabric.listener(ps, target);
        let there = fabric.at_address(target.ip());
        let identifier = fabric.cm.identifiers.get_mut(number).ok_or(libc::EINVAL)?;
        identifier.own = Side { psn, ..side };
        identifier.state = State::Connecting;
        let unseen = |listener: u32| {
            let mine = |each: &Identifier| {
                each.listener == Some(listener) && each.state == State::Requested
            };
            let count = fabric.cm.identifiers.iter().filter(|(_, each)| mine(each)).count();
            let backlog = fabric.cm.identifiers.get(listener).map_or(0, |each| each.backlog);
            u32::try_from(count).is_ok_and(|count| count < backlog)
        };
        match (listener.filter(|&listener| unseen(listener)), there) {
            (Some(listener), Some(there)) => (listener, there),
            _ => {
                if let Some(identifier) = fabric.cm.identifiers.get_mut(number) {
                    identifier.state = State::Disconnected;
                }
                let kind = if ps == c::RDMA_PS_UDP {
                    c::RDMA_CM_EVENT_UNREACHABLE
                } else {
                    c::RDMA_CM_EVENT_REJECTED
                };
                let rejected = Event::new(number, kind).status(NO_LISTENER);
                fabric.tell(rejected.data(&[], REJECT_DATA));
                return Ok(());
            }
        }
    };
    ask(number, listener, device, wanted.data)
}

/// Makes the identifier of a request at the listener's side, and tells the listener.
fn ask(number: u32, listener: u32, (device, port): (u32, u8), data: &[u8]) -> Outcome {
    let opened = device::open(device)?;
    let (raw, channel) = {
        let fabric = fabric();
        let listening = fabric.cm.identifiers.get(listener).ok_or(libc::ECONNREFUSED)?;
        let raw: *mut c::rdma_cm_id = ptr::with_exposed_provenance_mut(listening.raw);
        // SAFETY: the listener lives while it is in the table, and these fields change in no call
        // that may run beside this one.
        let &c::rdma_cm_id { channel, context, ps, qp_type, .. } = unsafe { &*raw };
        let made = c::rdma_cm_id { channel, context, ps, qp_type, ..c::rdma_cm_id::default() };
        (made, listening.channel)
    };
    let ps = raw.ps;
    let made = create(Some(channel), raw)?;
    // SAFETY: the identifier has just been made.
    let request = unsafe { self::number(made) };
    {
        let mut fabric = fabric();
        let psn = fabric.next_packet_number();
        let asking = fabric.cm.identifiers.get_mut(number).ok_or(libc::EINVAL)?;
        asking.peer = Some(request);
        let (local, remote, ece) = (asking.local, asking.remote, asking.ece);
        let asked = fabric.cm.identifiers.get_mut(request).ok_or(libc::EINVAL)?;
        asked.state = State::Requested;
        asked.listener = Some(listener);
        asked.peer = Some(number);
        asked.device = Some(device);
        asked.port = port;
        asked.local = remote;
        asked.remote = local;
        asked.own.psn = psn;
        asked.ece = ece;
    }
    // SAFETY: nobody has seen the identifier.
    unsafe { show(made, Some(opened)) };
    let mut fabric = fabric();
    let event = Event::new(request, c::RDMA_CM_EVENT_CONNECT_REQUEST);
    let event = if ps == c::RDMA_PS_UDP {
        event.data(data, LOOKUP_DATA)
    } else {
        let heard = fabric.heard(number);
        event.connection(heard).data(data, REQUEST_DATA)
    };
    fabric.tell(event);
    Ok(())
}

/// Rejects the requests to a listener that nobody fetched, and frees their identifiers.
pub(super) fn reject_unseen(fabric: &mut Fabric, listener: u32) {
    let requests: Vec<u32> = fabric
        .cm
        .identifiers
        .iter()
        .filter(|(_, each)| each.listener == Some(listener) && each.state == State::Requested)
        .map(|(number, _)| number)
        .collect();
    for number in requests {
        let unseen = fabric.channel_of(listener).is_some_and(|it| !it.take_of(number).is_empty());
        if let Some(identifier) = fabric.cm.identifiers.get_mut(number) {
            identifier.listener = None;
        }
        if !unseen {
            continue;
        }
        fabric.desert(number);
        if let Some(removed) = fabric.cm.identifiers.remove(number) {
            if let Some(channel) = fabric.cm.channels.get_mut(removed.channel) {
                channel.identifiers -= 1;
            }
            // SAFETY: nobody has seen the identifier.
            unsafe { release(ptr::with_exposed_provenance_mut(removed.raw)) };
        }
    }
}

/// See `rdma_get_request(3)`: the next request to a listener without a channel.
pub(crate) unsafe extern "C" fn rdma_get_request(
    listen: *mut c::rdma_cm_id,
    id: *mut *mut c::rdma_cm_id,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(listen) };
    let waits = fabric().cm.identifiers.get(number).map(|it| (it.waits, it.channel));
    let Some((true, channel)) = waits else { return minus_one(Err(libc::EINVAL)) };
    // SAFETY: the caller is in a call on the identifier.
    let own = unsafe { (*listen).channel };
    // SAFETY: an identifier that waits has a live channel of its own.
    let fd = unsafe { (*own).fd };
    let request = channel::next(channel, fd).and_then(|event| {
        // SAFETY: the event has just been made.
        let c::rdma_cm_event { id: made, event: kind, .. } = unsafe { *event };
        // SAFETY: as above; what is needed of it was read.
        unsafe { rdma_ack_cm_event(event) };
        if kind != c::RDMA_CM_EVENT_CONNECT_REQUEST {
            return Err(libc::EINVAL);
        }
        own_channel(made)?;
        Ok(made)
    });
    minus_one(request.map(|made| {
        // SAFETY: the caller gives a place for the identifier.
        unsafe { id.write(made) };
    }))
}

/// Gives the identifier of a request a channel of its own.
fn own_channel(id: *mut c::rdma_cm_id) -> Outcome {
    // SAFETY: the identifier came with an event just now, so that it is live.
    let number = unsafe { number(id) };
    // SAFETY: the call has no preconditions.
    let channel = unsafe { channel::rdma_create_event_channel() };
    if channel.is_null() {
        return Err(libc::ENOMEM);
    }
    // SAFETY: the channel has just been made.
    super::identifier::migrate(number, unsafe { Handle::number(channel) })?;
    // SAFETY: the caller has not seen the identifier.
    unsafe { (*id).channel = channel };
    if let Some(identifier) = fabric().cm.identifiers.get_mut(number) {
        identifier.waits = true;
        identifier.listener = None;
    }
    Ok(())
}
