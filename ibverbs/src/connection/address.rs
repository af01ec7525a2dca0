//! Addresses as C has them.
#![expect(unsafe_code, reason = "reads and writes sockaddr structs")]

use std::{
    mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// An address in the form that librdmacm takes: a `sockaddr` of either family.
pub(super) struct RawAddress(sockaddr_storage);

impl RawAddress {
    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut self.0).cast()
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        // SAFETY: all zero is a sockaddr_storage, of no family.
        let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
        match address {
            SocketAddr::V4(address) => {
                let raw = sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: a sockaddr_storage has room for, and the alignment of, every address.
                unsafe { (&raw mut storage).cast::<sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(address) => {
                let raw = sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(raw) };
            }
        }
        Self(storage)
    }
}

/// The address in a `sockaddr_storage`, `None` if it is of no family or of one that is not IP.
pub(super) fn parse(storage: &sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: its family says that it holds this struct, which it has room for and is aligned to.
            let raw = unsafe { &*ptr::from_ref(storage).cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { &*ptr::from_ref(storage).cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The constants of libc are wider than the field that they belong into.
fn family(constant: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(constant).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_come_out_as_they_went_in() {
        for text in ["10.99.0.1:4420", "[fd00:99::1]:1", "[fe80::1%7]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(parse(&RawAddress::from(address).0), Some(address));
        }
    }

    #[test]
    fn ports_and_addresses_are_in_network_order() {
        let mut raw = RawAddress::from("10.1.2.3:258".parse::<SocketAddr>().unwrap());
        // SAFETY: a sockaddr_in was written there, whose first 8 bytes these are.
        let bytes = unsafe { raw.as_mut_ptr().cast::<[u8; 8]>().read() };
        assert_eq!(bytes[2..], [1, 2, 10, 1, 2, 3]);
    }

    #[test]
    fn an_address_that_is_not_set_is_none() {
        // SAFETY: all zero is a sockaddr_storage.
        assert_eq!(parse(&unsafe { mem::zeroed() }), None);
    }
}
