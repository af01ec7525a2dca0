//! Multicast groups of datagram identifiers.
#![expect(unsafe_code, reason = "the functions of librdmacm, called from C")]

use std::{
    ffi::{c_int, c_void},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use rdma_sys as c;

use super::{
    address::{gid_of, read},
    event::{Event, Parameters},
    identifier::number,
};
use crate::{
    address::{Global, Vector},
    errno::{Outcome, minus_one},
    fabric::fabric,
    pair::{ibv_attach_mcast, ibv_detach_mcast},
    verb::Verb,
};

/// The GID of a multicast address. RoCE puts an IPv4 group behind `ff0e::ffff`.
fn group(ip: IpAddr) -> Outcome<[u8; 16]> {
    if !ip.is_multicast() {
        return Err(libc::EINVAL);
    }
    let mut gid = gid_of(ip);
    if ip.is_ipv4() {
        [gid[0], gid[1]] = [0xff, 0x0e];
    }
    Ok(gid)
}

/// See `rdma_join_multicast(3)`: the queue pair of the identifier is attached, if it has one.
pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut c::rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a socket address.
    let Some(address) = (unsafe { read(addr) }) else { return minus_one(Err(libc::EINVAL)) };
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    // SAFETY: the caller is in a call on the identifier.
    let qp = unsafe { (*id).qp };
    let joined = join(number, address).and_then(|(vector, gid)| {
        if !qp.is_null() {
            let gid = c::ibv_gid { raw: gid };
            // SAFETY: the pair of an identifier is live.
            let code = unsafe { ibv_attach_mcast(qp, &raw const gid, 0) };
            if code != 0 {
                return Err(code);
            }
        }
        let mut event = Event::new(number, c::RDMA_CM_EVENT_MULTICAST_JOIN);
        event.parameters = Parameters::Datagram(vector, 0xff_ffff, c::RDMA_UDP_QKEY);
        event.context = context.expose_provenance();
        fabric().tell(event);
        Ok(())
    });
    // SAFETY: the caller gives a live identifier.
    unsafe { super::identifier::complete(id, joined) }
}

/// The address vector of a group, from the device of an identifier.
fn join(number: u32, address: SocketAddr) -> Outcome<(Vector, [u8; 16])> {
    let gid = group(address.ip())?;
    let mut fabric = fabric();
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    let datagram = identifier.ps == c::RDMA_PS_UDP || identifier.ps == c::RDMA_PS_IPOIB;
    let (device, port) = (identifier.device.ok_or(libc::EINVAL)?, identifier.port);
    let local = identifier.local.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |local| local.ip());
    if !datagram {
        return Err(libc::EINVAL);
    }
    fabric.enter(device, Verb::rdma_join_multicast)?;
    let table = &fabric.device(device).and_then(|it| it.description.port(port));
    let table = &table.ok_or(libc::EINVAL)?.gids;
    let exact = table.iter().position(|entry| entry.gid == gid_of(local));
    let own = exact.or_else(|| table.len().checked_sub(1)).ok_or(libc::EINVAL)?;
    let global = Global {
        dgid: gid,
        sgid_index: u8::try_from(own).map_err(|_| libc::EINVAL)?,
        flow_label: 0,
        hop_limit: 1,
        traffic_class: 0,
    };
    Ok((Vector { port, dlid: 0, sl: 0, global: Some(global) }, gid))
}

/// See `rdma_join_multicast_ex(3)`.
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut c::rdma_cm_id,
    attr: *mut c::rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { *attr };
    let whole = c::RDMA_CM_JOIN_MC_ATTR_ADDRESS | c::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    if attr.comp_mask != whole || attr.join_flags != c::RDMA_MC_JOIN_FLAG_FULLMEMBER {
        return minus_one(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: the identifier and the address are as the caller promises.
    unsafe { rdma_join_multicast(id, attr.addr, context) }
}

/// See `rdma_leave_multicast(3)`.
pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    id: *mut c::rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: the caller gives a socket address.
    let Some(address) = (unsafe { read(addr) }) else { return minus_one(Err(libc::EINVAL)) };
    // SAFETY: the caller is in a call on a live identifier.
    let qp = unsafe { (*id).qp };
    minus_one(group(address.ip()).and_then(|gid| {
        if qp.is_null() {
            return Ok(());
        }
        let gid = c::ibv_gid { raw: gid };
        // SAFETY: the pair of an identifier is live.
        match unsafe { ibv_detach_mcast(qp, &raw const gid, 0) } {
            0 => Ok(()),
            code => Err(code),
        }
    }))
}
