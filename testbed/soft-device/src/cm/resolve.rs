//! Addresses of identifiers: their own, and the way to another.
#![expect(unsafe_code, reason = "the functions of librdmacm, called from C")]

use std::{
    ffi::c_int,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rdma_sys as c;

use super::{
    Identifier, State,
    address::{gid_of, read},
    device,
    event::Event,
    identifier::{complete, number, show},
};
use crate::{
    errno::{Outcome, minus_one},
    fabric::{Fabric, fabric},
    verb::Verb,
};

/// See `rdma_bind_addr(3)`.
pub(crate) unsafe extern "C" fn rdma_bind_addr(
    id: *mut c::rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: the caller gives a socket address.
    let Some(address) = (unsafe { read(addr) }) else { return minus_one(Err(libc::EINVAL)) };
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    minus_one(bind(number, address).and_then(|device| {
        let device = device.map(device::open).transpose()?;
        // SAFETY: the caller is in a call on the identifier.
        unsafe { show(id, device) };
        Ok(())
    }))
}

/// Gives an identifier its own address; the device, unless it is that of none in particular.
pub(super) fn bind(number: u32, address: SocketAddr) -> Outcome<Option<u32>> {
    let mut fabric = fabric();
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    if identifier.state != State::Idle {
        return Err(libc::EINVAL);
    }
    let (ps, reuses) = (identifier.ps, identifier.reuses_address);
    let place = if address.ip().is_unspecified() {
        None
    } else {
        Some(fabric.at_address(address.ip()).ok_or(libc::EADDRNOTAVAIL)?)
    };
    if let Some((device, _)) = place {
        fabric.enter(device, Verb::rdma_bind_addr)?;
    }
    let address = fabric.free_address(ps, address, reuses)?;
    let identifier = fabric.cm.identifiers.get_mut(number).ok_or(libc::EINVAL)?;
    identifier.local = Some(address);
    identifier.state = State::Bound;
    if let Some((device, port)) = place {
        identifier.device = Some(device);
        identifier.port = port;
    }
    Ok(place.map(|(device, _)| device))
}

impl Fabric {
    /// An address that no other identifier of the port space has: port 0 becomes a free one.
    fn free_address(
        &mut self,
        ps: c::rdma_port_space,
        mut address: SocketAddr,
        reuses: bool,
    ) -> Outcome<SocketAddr> {
        let clashes = |address: SocketAddr, other: &Identifier| {
            let there = other.ps == ps && other.listener.is_none();
            let same = other.local.is_some_and(|local| {
                let any = local.ip().is_unspecified() || address.ip().is_unspecified();
                local.port() == address.port() && (any || local.ip() == address.ip())
            });
            there && same && !(reuses && other.reuses_address && other.state != State::Listening)
        };
        let taken = |cm: &super::Manager, address| {
            cm.identifiers.iter().any(|(_, other)| clashes(address, other))
        };
        if address.port() != 0 {
            let free = !taken(&self.cm, address);
            return if free { Ok(address) } else { Err(libc::EADDRINUSE) };
        }
        for _ in 0..u16::MAX {
            self.cm.next_port = self.cm.next_port.checked_add(1).unwrap_or(49152);
            address.set_port(self.cm.next_port);
            if !taken(&self.cm, address) {
                return Ok(address);
            }
        }
        Err(libc::EADDRNOTAVAIL)
    }
}

/// See `rdma_resolve_addr(3)`. Unless told otherwise an identifier sends from the address that it sends
/// to, as the loopback of a kernel does.
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut c::rdma_cm_id,
    source: *mut libc::sockaddr,
    target: *mut libc::sockaddr,
    _timeout: c_int,
) -> c_int {
    // SAFETY: the caller gives a socket address or null.
    let source = unsafe { read(source) };
    // SAFETY: the caller gives a socket address.
    let target = unsafe { read(target) };
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    let outcome = target.ok_or(libc::EINVAL).and_then(|target| {
        let device = resolve(number, source, target)?.map(device::open).transpose()?;
        // SAFETY: the caller is in a call on the identifier.
        unsafe { show(id, device) };
        let (kind, status) = match device {
            Some(_) => (c::RDMA_CM_EVENT_ADDR_RESOLVED, 0),
            None => (c::RDMA_CM_EVENT_ADDR_ERROR, -libc::EHOSTUNREACH),
        };
        fabric().tell(Event::new(number, kind).status(status));
        Ok(())
    });
    // SAFETY: the caller gives a live identifier.
    unsafe { complete(id, outcome) }
}

/// Finds the device that an identifier sends from; `None` if no device has the target's address.
fn resolve(number: u32, source: Option<SocketAddr>, target: SocketAddr) -> Outcome<Option<u32>> {
    let mut fabric = fabric();
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    if !matches!(identifier.state, State::Idle | State::Bound) {
        return Err(libc::EINVAL);
    }
    let (ps, reuses, bound) = (identifier.ps, identifier.reuses_address, identifier.local);
    let multicast = target.ip().is_multicast();
    if fabric.at_address(target.ip()).is_none() && !multicast {
        return Ok(None);
    }
    let any = match target.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let from = source.or(bound).unwrap_or_else(|| SocketAddr::new(any, 0));
    let ip = if from.ip().is_unspecified() { target.ip() } else { from.ip() };
    let (device, port) = fabric.at_address(ip).ok_or(libc::EADDRNOTAVAIL)?;
    fabric.enter(device, Verb::rdma_resolve_addr)?;
    let local = SocketAddr::new(ip, bound.unwrap_or(from).port());
    let local = if bound.is_some() { local } else { fabric.free_address(ps, local, reuses)? };
    let psn = fabric.next_packet_number();
    let identifier = fabric.cm.identifiers.get_mut(number).ok_or(libc::EINVAL)?;
    identifier.device = Some(device);
    identifier.port = port;
    identifier.local = Some(local);
    identifier.remote = Some(target);
    identifier.own.psn = psn;
    identifier.state = State::AddressResolved;
    Ok(Some(device))
}

/// See `rdma_resolve_route(3)`.
pub(crate) unsafe extern "C" fn rdma_resolve_route(
    id: *mut c::rdma_cm_id,
    _timeout: c_int,
) -> c_int {
    // SAFETY: the caller gives a live identifier.
    let number = unsafe { number(id) };
    let outcome = route(number).map(|path| {
        // SAFETY: the caller is in a call on the identifier.
        let raw = unsafe { &mut *id };
        raw.route.path_rec = Box::into_raw(Box::new(path));
        raw.route.num_paths = 1;
        fabric().tell(Event::new(number, c::RDMA_CM_EVENT_ROUTE_RESOLVED));
    });
    // SAFETY: the caller gives a live identifier.
    unsafe { complete(id, outcome) }
}

fn route(number: u32) -> Outcome<c::ibv_sa_path_rec> {
    let mut fabric = fabric();
    let identifier = fabric.cm.identifiers.get(number).ok_or(libc::EINVAL)?;
    let (device, local, remote) = (identifier.device, identifier.local, identifier.remote);
    if identifier.state != State::AddressResolved {
        return Err(libc::EINVAL);
    }
    let device = device.ok_or(libc::EINVAL)?;
    fabric.enter(device, Verb::rdma_resolve_route)?;
    let mtu = fabric.device(device).map_or(0, |device| device.description.mtu);
    if let Some(identifier) = fabric.cm.identifiers.get_mut(number) {
        identifier.state = State::RouteResolved;
    }
    let gid = |address: Option<SocketAddr>| c::ibv_gid {
        raw: address.map_or([0; 16], |address| gid_of(address.ip())),
    };
    Ok(c::ibv_sa_path_rec {
        dgid: gid(remote),
        sgid: gid(local),
        hop_limit: 64,
        reversible: 1,
        numb_path: 1,
        pkey: u16::MAX.to_be(),
        mtu_selector: 2,
        mtu: u8::try_from(mtu).unwrap_or(0),
        ..c::ibv_sa_path_rec::default()
    })
}
