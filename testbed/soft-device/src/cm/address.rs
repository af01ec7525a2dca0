//! Socket addresses, and the addresses that a program asks for by name.
#![expect(unsafe_code, reason = "reads and writes socket addresses of C")]

use std::{
    ffi::{c_char, c_int, c_void},
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

use rdma_sys as c;

use crate::{
    errno::{Outcome, minus_one},
    fabric::Fabric,
};

/// Reads a socket address; `None` for null and for families other than IPv4 and IPv6.
///
/// # Safety
///
/// `address` is null, or readable for as long as its family says.
pub(super) unsafe fn read(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family, by the contract above.
    match c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: its family says what it is.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: its family says what it is.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            let (flow, scope) = (v6.sin6_flowinfo, v6.sin6_scope_id);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, flow, scope)))
        }
        _ => None,
    }
}

/// Writes a socket address; how many bytes it has.
///
/// # Safety
///
/// `place` has room for a `sockaddr_storage`.
pub(super) unsafe fn write(address: SocketAddr, place: *mut c_void) -> usize {
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: there is room for any socket address, by the contract above.
            unsafe { place.cast::<libc::sockaddr_in>().write_unaligned(raw) };
            size_of_val(&raw)
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: there is room for any socket address, by the contract above.
            unsafe { place.cast::<libc::sockaddr_in6>().write_unaligned(raw) };
            size_of_val(&raw)
        }
    }
}

fn family(family: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

/// The GID that stands for an IP address.
pub(super) fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Fabric {
    /// The device and port that have an IP address. A loopback address is everybody's, and stands for
    /// the first device of the list.
    pub(super) fn at_address(&self, ip: IpAddr) -> Option<(u32, u8)> {
        let gid = gid_of(ip);
        (0u32..).zip(&self.devices).filter(|(_, device)| device.listed).find_map(
            |(number, device)| {
                let ports = &device.description.ports;
                let has =
                    |port: &crate::device::Port| port.gids.iter().any(|entry| entry.gid == gid);
                let place = ports.iter().position(|port| ip.is_loopback() || has(port))?;
                Some((number, u8::try_from(place + 1).ok()?))
            },
        )
    }
}

/// One result of [`rdma_getaddrinfo`], with what its pointers point to.
#[repr(C)]
struct Found {
    info: c::rdma_addrinfo,
    source: libc::sockaddr_storage,
    target: libc::sockaddr_storage,
}

/// See `rdma_getaddrinfo(3)`: resolves by the resolver of the C library; one result.
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const c::rdma_addrinfo,
    result: *mut *mut c::rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller gives null or a readable struct.
    let hints = unsafe { hints.as_ref() };
    let flags = hints.map_or(0, |hints| hints.ai_flags.cast_unsigned());
    let passive = flags & c::RAI_PASSIVE != 0;
    // SAFETY: all zeros are an addrinfo.
    let mut wanted: libc::addrinfo = unsafe { mem::zeroed() };
    wanted.ai_socktype = libc::SOCK_STREAM;
    wanted.ai_flags = if passive { libc::AI_PASSIVE } else { 0 }
        | if flags & c::RAI_NUMERICHOST != 0 { libc::AI_NUMERICHOST } else { 0 };
    wanted.ai_family =
        if flags & c::RAI_FAMILY != 0 { hints.map_or(0, |hints| hints.ai_family) } else { 0 };
    let mut list = ptr::null_mut();
    // SAFETY: the names are C strings or null, as the caller promises.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut list) };
    if code != 0 || list.is_null() {
        return minus_one(Err(libc::ENODATA));
    }
    // SAFETY: the list has an entry.
    let first = unsafe { (*list).ai_addr };
    // SAFETY: the address of an entry is readable.
    let address = unsafe { read(first) };
    // SAFETY: the list came from getaddrinfo and is not used any more.
    unsafe { libc::freeaddrinfo(list) };
    // SAFETY: the caller's hints are readable, and their addresses are as long as they say.
    let source = hints.and_then(|hints| unsafe { read(hints.ai_src_addr) });
    minus_one(address.ok_or(libc::ENODATA).map(|address| {
        let mut found = found(flags, hints);
        let (local, remote) = if passive { (Some(address), None) } else { (source, Some(address)) };
        // SAFETY: the places are whole socket storages, inside the new box.
        unsafe { fill(&raw mut *found, local, remote) };
        // SAFETY: the caller gives a place for the result.
        unsafe { result.write(Box::into_raw(found).cast()) };
    }))
}

fn found(flags: u32, hints: Option<&c::rdma_addrinfo>) -> Box<Found> {
    let kind = hints.map_or(0, |hints| hints.ai_qp_type);
    let space = hints.map_or(0, |hints| hints.ai_port_space);
    let (reliable, datagram) = (c::IBV_QPT_RC.cast_signed(), c::IBV_QPT_UD.cast_signed());
    let (tcp, udp) = (c::RDMA_PS_TCP.cast_signed(), c::RDMA_PS_UDP.cast_signed());
    let (kind, space) = match (kind, space) {
        (0, 0) => (reliable, tcp),
        (0, space) => (if space == udp { datagram } else { reliable }, space),
        (kind, 0) => (kind, if kind == datagram { udp } else { tcp }),
        both => both,
    };
    // SAFETY: all zeros are a socket storage.
    let empty: libc::sockaddr_storage = unsafe { mem::zeroed() };
    Box::new(Found {
        info: c::rdma_addrinfo {
            ai_flags: flags.cast_signed(),
            ai_qp_type: kind,
            ai_port_space: space,
            ..c::rdma_addrinfo::default()
        },
        source: empty,
        target: empty,
    })
}

/// Writes the addresses of a result, and points to them.
///
/// # Safety
///
/// `found` is live, and stays where it is.
unsafe fn fill(found: *mut Found, local: Option<SocketAddr>, remote: Option<SocketAddr>) {
    // SAFETY: `found` is live, and nothing else refers to it.
    let whole = unsafe { &mut *found };
    let length = |bytes: usize| libc::socklen_t::try_from(bytes).unwrap_or(0);
    if let Some(local) = local {
        let place: *mut libc::sockaddr_storage = &raw mut whole.source;
        // SAFETY: the place is a whole socket storage.
        whole.info.ai_src_len = length(unsafe { write(local, place.cast()) });
        whole.info.ai_src_addr = place.cast();
    }
    if let Some(remote) = remote {
        let place: *mut libc::sockaddr_storage = &raw mut whole.target;
        // SAFETY: the place is a whole socket storage.
        whole.info.ai_dst_len = length(unsafe { write(remote, place.cast()) });
        whole.info.ai_dst_addr = place.cast();
    }
    let any = remote.or(local);
    let v6 = any.is_some_and(|address| address.is_ipv6());
    whole.info.ai_family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
}

/// See `rdma_getaddrinfo(3)`.
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut c::rdma_addrinfo) {
    if !info.is_null() {
        // SAFETY: the caller gives a result of `rdma_getaddrinfo`, which came from a box of this type.
        drop(unsafe { Box::from_raw(info.cast::<Found>()) });
    }
}

/// The address of a struct of hints, for whoever makes an endpoint of it.
///
/// # Safety
///
/// The addresses of `info` are null or readable.
pub(super) unsafe fn of_info(
    info: &c::rdma_addrinfo,
) -> Outcome<(Option<SocketAddr>, Option<SocketAddr>)> {
    // SAFETY: by the contract above.
    let source = unsafe { read(info.ai_src_addr) };
    // SAFETY: by the contract above.
    Ok((source, unsafe { read(info.ai_dst_addr) }))
}
