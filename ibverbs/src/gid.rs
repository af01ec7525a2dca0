//! GIDs: the addresses of ports, and which of a port's many to use.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use crate::{Error, PortNumber, Result};

/// The address of a port: 16 bytes in the form of an IPv6 address, network order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address, if this is one mapped into IPv6 (as in most RoCE v2 networks).
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether all bytes are zero: an empty entry of the table.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether this is an `fe80::` address, which no router forwards.
    #[must_use]
    pub fn is_link_local(self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }

    /// Whether this names a multicast group: `ff..::`, or an IPv4 group mapped into IPv6.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff || self.ipv4().is_some_and(|address| address.is_multicast())
    }

    /// The upper half: the subnet.
    #[must_use]
    pub fn subnet_prefix(self) -> u64 {
        let [prefix, _] = self.halves();
        prefix
    }

    /// The lower half: the port within its subnet.
    #[must_use]
    pub fn interface_id(self) -> u64 {
        let [_, id] = self.halves();
        id
    }

    fn halves(self) -> [u64; 2] {
        let mut halves = [[0; 8]; 2];
        halves[0].copy_from_slice(&self.0[..8]);
        halves[1].copy_from_slice(&self.0[8..]);
        halves.map(u64::from_be_bytes)
    }

    #[expect(unsafe_code, reason = "reads a union of plain bytes")]
    pub(crate) fn from_raw(raw: rdma_sys::ibv_gid) -> Self {
        // SAFETY: every member of the union is plain bytes.
        Self(unsafe { raw.raw })
    }

    pub(crate) const fn to_raw(self) -> rdma_sys::ibv_gid {
        rdma_sys::ibv_gid { raw: self.0 }
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        address.to_ipv6_mapped().into()
    }
}

impl FromStr for Gid {
    type Err = Error;

    /// Reads an address of IPv6, which is how a GID is written, or one of IPv4.
    fn from_str(text: &str) -> Result<Self> {
        match text.parse() {
            Ok(IpAddr::V4(address)) => Ok(address.into()),
            Ok(IpAddr::V6(address)) => Ok(address.into()),
            Err(_) => Err(Error::Invalid {
                what: format!("{text:?} is not a GID").into(),
                remedy: "write it as an address of IPv6 or IPv4, as in fe80::2:3:4:5 or 10.1.2.3",
            }),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// How packets to and from a GID are framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GidType(pub u32);

impl GidType {
    /// InfiniBand.
    pub const INFINIBAND: Self = Self(rdma_sys::IBV_GID_TYPE_IB);
    /// RDMA directly over Ethernet: does not cross a router.
    pub const ROCE_V1: Self = Self(rdma_sys::IBV_GID_TYPE_ROCE_V1);
    /// RDMA over UDP and IP.
    pub const ROCE_V2: Self = Self(rdma_sys::IBV_GID_TYPE_ROCE_V2);
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::INFINIBAND => f.write_str("InfiniBand"),
            Self::ROCE_V1 => f.write_str("RoCE v1"),
            Self::ROCE_V2 => f.write_str("RoCE v2"),
            Self(other) => write!(f, "GID type {other}"),
        }
    }
}

/// One filled entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its place in the table, what `sgid_index` refers to.
    pub index: u8,
    /// The port it belongs to.
    pub port: PortNumber,
    /// How its packets are framed.
    pub kind: GidType,
    /// The index of the network interface behind it, 0 for InfiniBand; see `if_indextoname(3)`.
    pub interface_index: u32,
}

impl GidEntry {
    /// How good this entry is for reaching other machines; the larger the better.
    fn rank(&self) -> u8 {
        let reach = if self.gid.is_link_local() {
            0
        } else if self.gid.ipv4().is_some() {
            2
        } else {
            1
        };
        let framing = match self.kind {
            GidType::ROCE_V2 => 2,
            GidType::INFINIBAND => 1,
            _ => 0,
        };
        // A RoCE v2 address that is not routable still beats no RoCE v2 at all.
        framing * 3 + reach
    }
}

/// The entry of a port's table that other machines can most likely reach.
///
/// RoCE v2 before InfiniBand before RoCE v1; IPv4 before global IPv6 before link-local; the lowest index of
/// equals. A link-local entry is taken only where there is nothing else.
pub(crate) fn best(port: PortNumber, table: &[GidEntry]) -> Result<GidEntry> {
    table
        .iter()
        .filter(|entry| entry.port == port && !entry.gid.is_zero())
        .max_by_key(|entry| (entry.rank(), u8::MAX - entry.index))
        .copied()
        .ok_or_else(|| Error::NoGid {
            port: port.get(),
            remedy: "its GID table is empty; give the network interface behind it an IP address and \
                     bring it up",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, gid: &str, kind: GidType) -> GidEntry {
        let gid = gid.parse().unwrap();
        GidEntry { gid, index, port: PortNumber::FIRST, kind, interface_index: 2 }
    }

    #[test]
    fn a_routable_roce_v2_address_is_preferred() {
        let table = [
            entry(0, "fe80::1", GidType::ROCE_V1),
            entry(1, "fe80::1", GidType::ROCE_V2),
            entry(2, "::ffff:10.0.0.1", GidType::ROCE_V1),
            entry(3, "::ffff:10.0.0.1", GidType::ROCE_V2),
            entry(4, "2001:db8::1", GidType::ROCE_V2),
            entry(5, "::ffff:10.0.0.2", GidType::ROCE_V2),
        ];
        assert_eq!(best(PortNumber::FIRST, &table).unwrap().index, 3);
        assert_eq!(best(PortNumber::FIRST, &table[..2]).unwrap().index, 1);
    }

    #[test]
    fn an_empty_table_says_what_to_do() {
        let text = best(PortNumber::FIRST, &[]).unwrap_err().to_string();
        assert!(text.contains("IP address"), "{text}");
    }

    #[test]
    fn addresses_come_out_as_they_went_in() {
        let gid = Gid::from(Ipv4Addr::new(10, 1, 2, 3));
        assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(10, 1, 2, 3)));
        assert_eq!(gid.to_string(), "::ffff:10.1.2.3");
        assert_eq!(gid.to_string().parse::<Gid>().unwrap(), gid);
        assert_eq!("10.1.2.3".parse::<Gid>().unwrap(), gid);
        let text = "10.1.2".parse::<Gid>().unwrap_err().to_string();
        assert!(text.starts_with("\"10.1.2\" is not a GID: write it as"), "{text}");
        let gid: Gid = "fe80::2:3:4:5".parse().unwrap();
        assert!(gid.is_link_local());
        assert_eq!(gid.subnet_prefix(), 0xfe80_0000_0000_0000);
        assert_eq!(gid.interface_id(), 0x0002_0003_0004_0005);
    }
}
