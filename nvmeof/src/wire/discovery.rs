//! The discovery log page, section 5.1.12.3.1: where subsystems and other discovery services are.

use std::fmt;

use super::fields::{Fields, put};
use crate::{Error, Nqn, Result};

/// The head of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryHeader {
    /// Counts changes; a log read in parts is whole if it stayed the same.
    pub generation: u64,
    /// Entries that follow.
    pub records: u64,
}

impl DiscoveryHeader {
    /// The size on the wire, entries not counted.
    pub const BYTES: usize = 1024;

    /// Reads the head.
    ///
    /// # Errors
    ///
    /// [`Error::Short`], or [`Error::Malformed`] for another record format.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, Self::BYTES, "discovery log header")?;
        match fields.u16(16) {
            0 => Ok(Self { generation: fields.u64(0), records: fields.u64(8) }),
            other => Err(Error::Malformed {
                structure: "discovery log header",
                field: "record format",
                found: u64::from(other),
                rule: "is not 0",
            }),
        }
    }

    /// The head as a target sends it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &self.generation.to_le_bytes());
        put(&mut bytes, 8, &self.records.to_le_bytes());
        bytes
    }
}

/// The transport of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransportType(pub u8);

impl TransportType {
    /// RDMA.
    pub const RDMA: Self = Self(1);
    /// Fibre Channel.
    pub const FIBRE_CHANNEL: Self = Self(2);
    /// TCP.
    pub const TCP: Self = Self(3);
}

impl fmt::Display for TransportType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.pad("rdma"),
            2 => f.pad("fc"),
            3 => f.pad("tcp"),
            254 => f.pad("loop"),
            other => f.pad(&format!("type {other}")),
        }
    }
}

/// The kind of address of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressFamily(pub u8);

impl AddressFamily {
    /// Internet protocol version 4.
    pub const IPV4: Self = Self(1);
    /// Internet protocol version 6.
    pub const IPV6: Self = Self(2);
    /// InfiniBand.
    pub const INFINIBAND: Self = Self(3);
}

impl fmt::Display for AddressFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.pad("ipv4"),
            2 => f.pad("ipv6"),
            3 => f.pad("ib"),
            4 => f.pad("fc"),
            254 => f.pad("loop"),
            other => f.pad(&format!("family {other}")),
        }
    }
}

/// What an entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubsystemType(pub u8);

impl SubsystemType {
    /// Another discovery service.
    pub const REFERRAL: Self = Self(1);
    /// A subsystem with namespaces.
    pub const NVM: Self = Self(2);
    /// The discovery service that was asked.
    pub const CURRENT_DISCOVERY: Self = Self(3);
}

impl fmt::Display for SubsystemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.pad("referral"),
            2 => f.pad("nvm"),
            3 => f.pad("current discovery"),
            other => f.pad(&format!("type {other}")),
        }
    }
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiscoveryEntry {
    /// The transport.
    pub transport: TransportType,
    /// The kind of address.
    pub family: AddressFamily,
    /// What it leads to.
    pub subsystem_type: SubsystemType,
    /// Whether the transport must, may or cannot be secured; two bits.
    pub requirements: u8,
    /// The port of the subsystem.
    pub port_id: u16,
    /// The controller, or 0xffff for a new one.
    pub controller_id: u16,
    /// The most entries of an admin queue.
    pub admin_queue_entries: u16,
    /// The service: a port number in decimal for RDMA.
    pub service: String,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The address.
    pub address: String,
    /// RDMA only: 1 for reliable connected, 2 for datagram.
    pub queue_pair_type: u8,
    /// RDMA only: 1 none given, 2 InfiniBand, 3 RoCE, 4 RoCEv2, 5 iWARP.
    pub provider_type: u8,
    /// RDMA only: 1 for `rdma_cm`.
    pub connection_management: u8,
}

impl DiscoveryEntry {
    /// The size on the wire.
    pub const BYTES: usize = 1024;

    /// Reads an entry.
    ///
    /// # Errors
    ///
    /// [`Error::Short`], or [`Error::InvalidName`] for a subsystem name that is none.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, Self::BYTES, "discovery log entry")?;
        Ok(Self {
            transport: TransportType(fields.u8(0)),
            family: AddressFamily(fields.u8(1)),
            subsystem_type: SubsystemType(fields.u8(2)),
            requirements: fields.u8(3) & 0x3,
            port_id: fields.u16(4),
            controller_id: fields.u16(6),
            admin_queue_entries: fields.u16(8),
            service: fields.text(32, 32),
            subsystem: Nqn::from_padded(fields.slice(256, 256))?,
            address: fields.text(512, 256),
            queue_pair_type: fields.u8(768),
            provider_type: fields.u8(769),
            connection_management: fields.u8(770),
        })
    }

    /// The entry as a target sends it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let types = [self.transport.0, self.family.0, self.subsystem_type.0, self.requirements];
        put(&mut bytes, 0, &types);
        put(&mut bytes, 4, &self.port_id.to_le_bytes());
        put(&mut bytes, 6, &self.controller_id.to_le_bytes());
        put(&mut bytes, 8, &self.admin_queue_entries.to_le_bytes());
        put(&mut bytes[..64], 32, self.service.as_bytes());
        put(&mut bytes[..512], 256, self.subsystem.as_str().as_bytes());
        put(&mut bytes[..768], 512, self.address.as_bytes());
        let rdma = [self.queue_pair_type, self.provider_type, self.connection_management];
        put(&mut bytes, 768, &rdma);
        bytes
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::Random;

    pub(crate) fn entry() -> DiscoveryEntry {
        DiscoveryEntry {
            transport: TransportType::RDMA,
            family: AddressFamily::IPV4,
            subsystem_type: SubsystemType::NVM,
            requirements: 2,
            port_id: 1,
            controller_id: 0xffff,
            admin_queue_entries: 32,
            service: "4420".to_owned(),
            subsystem: Nqn::new("nqn.2024-01.org.example:disk").unwrap(),
            address: "10.99.0.1".to_owned(),
            queue_pair_type: 1,
            provider_type: 1,
            connection_management: 1,
        }
    }

    #[test]
    fn an_entry_has_its_fields_where_the_specification_says() {
        let bytes = entry().to_bytes();
        assert_eq!(bytes[..10], [1, 1, 2, 2, 1, 0, 0xff, 0xff, 32, 0]);
        assert_eq!(&bytes[32..37], b"4420\0");
        assert_eq!(&bytes[512..522], b"10.99.0.1\0");
        assert_eq!(DiscoveryEntry::parse(&bytes).unwrap(), entry());
    }

    #[test]
    fn targets_that_pad_with_spaces_are_understood() {
        let mut bytes = entry().to_bytes();
        bytes[36..64].fill(b' ');
        bytes[521..768].fill(b' ');
        assert_eq!(DiscoveryEntry::parse(&bytes).unwrap(), entry());
    }

    #[test]
    fn log_pages_from_anywhere_are_read_or_refused() {
        let mut random = Random::new(7);
        for _ in 0..2_000 {
            let mut bytes = random.bytes(1100);
            let _head = DiscoveryHeader::parse(&bytes);
            if bytes.len() >= 300 {
                bytes[256..272].copy_from_slice(b"nqn.2024-01.a:b\0");
            }
            if let Ok(entry) = DiscoveryEntry::parse(&bytes) {
                assert_eq!(DiscoveryEntry::parse(&entry.to_bytes()).unwrap(), entry);
            }
        }
    }

    #[test]
    fn a_head_survives_the_round_trip() {
        let head = DiscoveryHeader { generation: 5, records: u64::MAX };
        assert_eq!(DiscoveryHeader::parse(&head.to_bytes()).unwrap(), head);
    }
}
