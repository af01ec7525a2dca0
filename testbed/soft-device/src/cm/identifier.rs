//! Identifiers: making them, giving them an address, ending them.
#![expect(unsafe_code, reason = "the functions of librdmacm, called from C")]

use std::{
    ffi::{c_int, c_void},
    mem::offset_of,
    ptr,
};

use rdma_sys as c;

use super::{
    Identifier, Side, State,
    address::write,
    channel::{self, CmChannel},
    connect::reject_unseen,
    device::CmDevice,
    event::{BY_CONSUMER, Event, REJECT_DATA},
};
use crate::{
    async_event::Acknowledgements,
    errno::{Outcome, minus_one, set_errno},
    fabric::{Fabric, fabric},
    handle::Handle,
    verb::Verb,
};

/// The number of an identifier that a caller gives.
///
/// # Safety
///
/// `id` is a live identifier of this library.
pub(super) unsafe fn number(id: *mut c::rdma_cm_id) -> u32 {
    // SAFETY: by the contract above.
    unsafe { Handle::number(id) }
}

/// See `rdma_create_id(3)`. Without a channel, each call on it waits for what it begins.
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut c::rdma_event_channel,
    id: *mut *mut c::rdma_cm_id,
    context: *mut c_void,
    ps: c::rdma_port_space,
) -> c_int {
    // SAFETY: the caller gives null or a live channel.
    let given = (!channel.is_null()).then(|| unsafe { Handle::number(channel) });
    let datagram = ps == c::RDMA_PS_UDP || ps == c::RDMA_PS_IPOIB;
    let qp_type = if datagram { c::IBV_QPT_UD } else { c::IBV_QPT_RC };
    let raw = c::rdma_cm_id { channel, context, ps, qp_type, ..c::rdma_cm_id::default() };
    minus_one(create(given, raw).map(|made| {
        // SAFETY: the caller gives a place for the identifier.
        unsafe { id.write(made) };
    }))
}

/// Adds an identifier, with a channel of its own if none is given.
pub(super) fn create(channel: Option<u32>, mut raw: c::rdma_cm_id) -> Outcome<*mut c::rdma_cm_id> {
    let ps = raw.ps;
    let waits = channel.is_none();
    let own = if waits { Some(CmChannel::new()?) } else { None };
    let mut fabric = fabric();
    let channel = match (channel, own) {
        (Some(channel), _) => channel,
        (None, Some(own)) => {
            let fd = own.fd();
            let number = fabric.cm.channels.insert_with(|_| own);
            raw.channel = Handle::make(c::rdma_event_channel { fd }, number);
            number
        }
        (None, None) => return Err(libc::EINVAL),
    };
    fabric.cm.channels.get_mut(channel).ok_or(libc::EINVAL)?.identifiers += 1;
    let number = fabric.cm.identifiers.insert_with(|number| Identifier {
        raw: Handle::make(raw, number).expose_provenance(),
        channel,
        waits,
        ps,
        state: State::Idle,
        device: None,
        port: 0,
        local: None,
        remote: None,
        reuses_address: false,
        peer: None,
        listener: None,
        backlog: 0,
        events: Acknowledgements::default(),
        own: Side::default(),
        ece: c::ibv_ece::default(),
    });
    let raw = fabric.cm.identifiers.get(number).map_or(0, |identifier| identifier.raw);
    Ok(ptr::with_exposed_provenance_mut(raw))
}

/// Writes what the connection manager knows of an identifier into its C struct.
///
/// # Safety
///
/// `id` is a live identifier, and its user is in a call on it or has not seen it.
pub(super) unsafe fn show(id: *mut c::rdma_cm_id, device: Option<CmDevice>) {
    let (port, local, remote) = {
        let fabric = fabric();
        // SAFETY: by the contract above.
        let Some(identifier) = fabric.cm.identifiers.get(unsafe { number(id) }) else { return };
        (identifier.port, identifier.local, identifier.remote)
    };
    if let Some(device) = device {
        // SAFETY: by the contract above, nobody else touches the struct now.
        let raw = unsafe { &mut *id };
        raw.verbs = ptr::with_exposed_provenance_mut(device.context);
        raw.port_num = port;
        if raw.pd.is_null() {
            raw.pd = ptr::with_exposed_provenance_mut(device.domain);
        }
    }
    let place = |offset: usize| id.wrapping_byte_add(offset).cast::<c_void>();
    if let Some(local) = local {
        // SAFETY: the place is a whole socket storage inside the struct.
        unsafe { write(local, place(offset_of!(c::rdma_cm_id, route.addr.__bindgen_anon_1))) };
    }
    if let Some(remote) = remote {
        // SAFETY: the place is a whole socket storage inside the struct.
        unsafe { write(remote, place(offset_of!(c::rdma_cm_id, route.addr.__bindgen_anon_2))) };
    }
}

/// Ends a call on an identifier: one without a channel waits for the event that the call brings.
///
/// # Safety
///
/// `id` is a live identifier.
pub(super) unsafe fn complete(id: *mut c::rdma_cm_id, outcome: Outcome) -> c_int {
    // SAFETY: by the contract above.
    let number = unsafe { number(id) };
    let waits = fabric().cm.identifiers.get(number).is_some_and(|identifier| identifier.waits);
    if outcome.is_err() || !waits {
        return minus_one(outcome);
    }
    // SAFETY: by the contract above.
    let raw = unsafe { &mut *id };
    if !raw.event.is_null() {
        // SAFETY: the event is of this identifier, and is replaced below.
        unsafe { channel::rdma_ack_cm_event(raw.event) };
        raw.event = ptr::null_mut();
    }
    // SAFETY: an identifier that waits has a live channel of its own.
    let code = unsafe { channel::rdma_get_cm_event(raw.channel, &raw mut raw.event) };
    if code != 0 {
        return code;
    }
    // SAFETY: the event has just been made, and is not acknowledged.
    let event = unsafe { &*raw.event };
    minus_one(match event.status {
        0 => Ok(()),
        _ if event.event == c::RDMA_CM_EVENT_REJECTED => Err(libc::ECONNREFUSED),
        status => Err(status.abs()),
    })
}

/// See `rdma_set_option(3)`.
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut c::rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    let (level, option) = (level.cast_unsigned(), option.cast_unsigned());
    let wanted = match (level, option) {
        (c::RDMA_OPTION_ID, c::RDMA_OPTION_ID_TOS | c::RDMA_OPTION_ID_ACK_TIMEOUT) => 1,
        (c::RDMA_OPTION_ID, c::RDMA_OPTION_ID_REUSEADDR | c::RDMA_OPTION_ID_AFONLY) => 4,
        _ => return minus_one(Err(libc::ENOSYS)),
    };
    if length != wanted {
        return minus_one(Err(libc::EINVAL));
    }
    if let Err(code) = fabric().enter_with(number, Verb::rdma_set_option) {
        return minus_one(Err(code));
    }
    if option == c::RDMA_OPTION_ID_REUSEADDR {
        // SAFETY: the caller gives an int, as its length says.
        let reuses = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
        let mut fabric = fabric();
        match fabric.cm.identifiers.get_mut(number) {
            Some(identifier) if identifier.state == State::Idle => {
                identifier.reuses_address = reuses;
            }
            _ => return minus_one(Err(libc::EINVAL)),
        }
    }
    0
}

/// See `rdma_get_src_port(3)`: in network order.
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut c::rdma_cm_id) -> c::__be16 {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    let fabric = fabric();
    let local = fabric.cm.identifiers.get(number).and_then(|identifier| identifier.local);
    local.map_or(0, |address| address.port().to_be())
}

/// See `rdma_get_dst_port(3)`: in network order.
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut c::rdma_cm_id) -> c::__be16 {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    let fabric = fabric();
    let remote = fabric.cm.identifiers.get(number).and_then(|identifier| identifier.remote);
    remote.map_or(0, |address| address.port().to_be())
}

/// See `rdma_set_local_ece(3)`.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(
    id: *mut c::rdma_cm_id,
    ece: *mut c::ibv_ece,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    // SAFETY: the caller gives a readable struct.
    let ece = unsafe { *ece };
    let mut fabric = fabric();
    let identifier = fabric.cm.identifiers.get_mut(number).ok_or(libc::EINVAL);
    minus_one(identifier.map(|identifier| identifier.ece = ece))
}

/// See `rdma_get_remote_ece(3)`.
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    id: *mut c::rdma_cm_id,
    ece: *mut c::ibv_ece,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    let fabric = fabric();
    let peer = fabric.cm.identifiers.get(number).and_then(|identifier| identifier.peer);
    let peer = peer.and_then(|peer| fabric.cm.identifiers.get(peer)).ok_or(libc::EINVAL);
    minus_one(peer.map(|peer| {
        // SAFETY: the caller gives a place for the answer.
        unsafe { ece.write(peer.ece) };
    }))
}

/// See `rdma_migrate_id(3)`: events that were not fetched move along.
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut c::rdma_cm_id,
    channel: *mut c::rdma_event_channel,
) -> c_int {
    if channel.is_null() {
        return minus_one(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    // SAFETY: the caller gives a live channel.
    let target = unsafe { Handle::number(channel) };
    let outcome = migrate(number, target);
    if outcome.is_ok() {
        // SAFETY: the caller is in a call on the identifier.
        unsafe { (*id).channel = channel };
    }
    minus_one(outcome)
}

/// Lets an identifier report to another channel.
pub(super) fn migrate(number: u32, target: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter_with(number, Verb::rdma_migrate_id)?;
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    let (source, waits) = (identifier.channel, identifier.waits);
    if waits || fabric.cm.channels.get(target).is_none() {
        return Err(libc::EINVAL);
    }
    let events = fabric.channel_of(number).map_or(Vec::new(), |channel| channel.take_of(number));
    if let Some(channel) = fabric.cm.channels.get_mut(source) {
        channel.identifiers -= 1;
    }
    if let Some(channel) = fabric.cm.channels.get_mut(target) {
        channel.identifiers += 1;
        for event in events {
            channel.push(event);
        }
    }
    if let Some(identifier) = fabric.cm.identifiers.get_mut(number) {
        identifier.channel = target;
    }
    Ok(())
}

/// See `rdma_destroy_id(3)`. A peer that is connected hears of it.
///
/// librdmacm waits until every event of the identifier is acknowledged; so that a test that forgets one
/// ends, this refuses with `EBUSY` and notes a violation.
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut c::rdma_cm_id) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    // SAFETY: the caller is in a call on the identifier.
    let raw = unsafe { &mut *id };
    if !raw.event.is_null() {
        // SAFETY: the event is of this identifier and was not acknowledged.
        unsafe { channel::rdma_ack_cm_event(raw.event) };
        raw.event = ptr::null_mut();
    }
    let waits = match destroy(number) {
        Ok(waits) => waits,
        Err(code) => {
            set_errno(code);
            return -1;
        }
    };
    if waits {
        // SAFETY: an identifier that waits has a channel of its own, which nobody else uses.
        unsafe { channel::rdma_destroy_event_channel(raw.channel) };
    }
    // SAFETY: the identifier is gone, and the caller gives it up.
    unsafe { release(id) };
    0
}

/// Frees the C struct of an identifier.
///
/// # Safety
///
/// `id` came from here, was not freed, and nobody uses it any more.
pub(super) unsafe fn release(id: *mut c::rdma_cm_id) {
    // SAFETY: by the contract above.
    let path = unsafe { (*id).route.path_rec };
    if !path.is_null() {
        // SAFETY: it came from a box, when the route was resolved.
        drop(unsafe { Box::from_raw(path) });
    }
    // SAFETY: by the contract above.
    unsafe { Handle::free(id) };
}

/// Takes an identifier out; whether it has a channel of its own.
fn destroy(number: u32) -> Outcome<bool> {
    let mut fabric = fabric();
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    let (open, device, state) = (identifier.events.open(), identifier.device, identifier.state);
    if let Some(device) = device {
        fabric.enter(device, Verb::rdma_destroy_id)?;
        if open > 0 {
            let text = format!("rdma_destroy_id: {open} events are not acknowledged");
            fabric.violation(device, text);
        }
    }
    if open > 0 {
        return Err(libc::EBUSY);
    }
    if state == State::Listening {
        reject_unseen(&mut fabric, number);
    }
    fabric.desert(number);
    drop(fabric.channel_of(number).map(|channel| channel.take_of(number)));
    let identifier = fabric.cm.identifiers.remove(number).ok_or(libc::EINVAL)?;
    if let Some(channel) = fabric.cm.channels.get_mut(identifier.channel) {
        channel.identifiers -= 1;
    }
    Ok(identifier.waits)
}

impl Fabric {
    /// Counts a call on an identifier that has a device, and tells whether a test wants it refused.
    pub(super) fn enter_with(&mut self, number: u32, verb: Verb) -> Outcome {
        let identifier = self.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
        identifier.device.map_or(Ok(()), |device| self.enter(device, verb))
    }

    /// Tells the peer of an identifier that it is gone.
    pub(super) fn desert(&mut self, number: u32) {
        let Some(peer) =
            self.cm.identifiers.get_mut(number).and_then(|identifier| identifier.peer.take())
        else {
            return;
        };
        let Some(other) = self.cm.identifiers.get_mut(peer) else { return };
        other.peer = None;
        match other.state {
            State::Connected => {
                other.state = State::Disconnected;
                self.tell(Event::new(peer, c::RDMA_CM_EVENT_DISCONNECTED));
                self.tell(Event::new(peer, c::RDMA_CM_EVENT_TIMEWAIT_EXIT));
            }
            State::Connecting | State::Accepted | State::Responded => {
                other.state = State::Disconnected;
                let rejected = Event::new(peer, c::RDMA_CM_EVENT_REJECTED).status(BY_CONSUMER);
                self.tell(rejected.data(&[], REJECT_DATA));
            }
            _ => {}
        }
    }

    /// The number of the first packet of a connection.
    pub(super) fn next_packet_number(&mut self) -> u32 {
        self.cm.next_psn = (self.cm.next_psn + 0x1357) & 0xff_ffff;
        self.cm.next_psn
    }
}
