//! What NVMe puts into the private data of RDMA connection management: NVMe over RDMA Transport
//! Specification 1.1, section 3.3.

use std::fmt;

use super::fields::{Fields, put};
use crate::{Error, Result};

/// The only record format there is.
const RECORD_FORMAT: u16 = 0;

/// Private data of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRequest {
    /// 0 for the admin queue.
    pub queue: u16,
    /// Receives that the host posts: responses that can arrive at once.
    pub host_receives: u16,
    /// Sends that the host posts at most: commands in flight at once. The wire carries one less.
    pub host_sends: u16,
    /// The controller that an I/O queue is for; 0 for the admin queue.
    pub controller_id: u16,
}

impl ConnectionRequest {
    /// The size on the wire.
    pub const BYTES: usize = 32;

    /// The bytes to send.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &RECORD_FORMAT.to_le_bytes());
        put(&mut bytes, 2, &self.queue.to_le_bytes());
        put(&mut bytes, 4, &self.host_receives.to_le_bytes());
        put(&mut bytes, 6, &self.host_sends.saturating_sub(1).to_le_bytes());
        put(&mut bytes, 8, &self.controller_id.to_le_bytes());
        bytes
    }

    /// Reads the bytes as a target receives them.
    ///
    /// # Errors
    ///
    /// [`Error::Short`], or [`Error::Malformed`] for another record format.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        // Hosts before the controller had a place there leave zeros.
        let fields = record(bytes, 8, "connection request")?;
        Ok(Self {
            queue: fields.u16(2),
            host_receives: fields.u16(4),
            host_sends: fields.u16(6).saturating_add(1),
            controller_id: fields.u16(8),
        })
    }
}

/// Private data of an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionAccept {
    /// Receives that the controller posts: commands that it can take at once.
    pub controller_receives: u16,
}

impl ConnectionAccept {
    /// The size on the wire.
    pub const BYTES: usize = 32;

    /// The bytes that a target sends.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 2, &self.controller_receives.to_le_bytes());
        bytes
    }

    /// Reads the bytes; connection management may append zeros.
    ///
    /// # Errors
    ///
    /// [`Error::Short`], or [`Error::Malformed`] for another record format.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = record(bytes, 4, "connection accept")?;
        Ok(Self { controller_receives: fields.u16(2) })
    }
}

/// Why a target refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// The size on the wire.
    pub const BYTES: usize = 4;
    /// The target has too few resources, or no queue with this identifier.
    pub const NO_RESOURCES: Self = Self(6);

    /// The bytes that a target sends.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 2, &self.0.to_le_bytes());
        bytes
    }

    /// Reads the private data of a rejection; connection management may append zeros.
    ///
    /// # Errors
    ///
    /// [`Error::Short`], or [`Error::Malformed`] for another record format.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Ok(Self(record(bytes, 4, "connection reject")?.u16(2)))
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            1 => "invalid private data length",
            2 => "invalid record format",
            3 => "invalid queue identifier",
            4 => "invalid host send queue size",
            5 => "invalid host receive queue size",
            6 => "insufficient resources",
            7 => "invalid inbound read depth",
            8 => "invalid outbound read depth",
            9 => "invalid controller identifier",
            other => return write!(f, "unknown reason {other}"),
        })
    }
}

fn record<'b>(bytes: &'b [u8], expected: usize, structure: &'static str) -> Result<Fields<'b>> {
    let fields = Fields::new(bytes, expected, structure)?;
    match fields.u16(0) {
        RECORD_FORMAT => Ok(fields),
        other => Err(Error::Malformed {
            structure,
            field: "record format",
            found: u64::from(other),
            rule: "is not 0",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn a_request_says_the_send_queue_size_less_one_and_whose_queue_it_is() {
        let request = ConnectionRequest {
            queue: 2,
            host_receives: 128,
            host_sends: 128,
            controller_id: 0x0103,
        };
        let bytes = request.to_bytes();
        assert_eq!(bytes[..12], [0, 0, 2, 0, 128, 0, 127, 0, 3, 1, 0, 0]);
        assert_eq!(ConnectionRequest::parse(&bytes).unwrap(), request);
    }

    #[test]
    fn accept_and_reject_survive_the_round_trip() {
        let accept = ConnectionAccept { controller_receives: 128 };
        assert_eq!(ConnectionAccept::parse(&accept.to_bytes()).unwrap(), accept);
        assert_eq!(
            RejectReason::parse(&RejectReason::NO_RESOURCES.to_bytes()).unwrap().to_string(),
            "insufficient resources"
        );
        assert_eq!(RejectReason(99).to_string(), "unknown reason 99");
    }

    #[test]
    fn another_record_format_is_refused() {
        ConnectionAccept::parse(&[1, 0, 0, 0]).unwrap_err();
        ConnectionAccept::parse(&[0, 0, 0]).unwrap_err();
    }

    #[test]
    fn private_data_from_anywhere_is_read_or_refused() {
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let bytes = random.bytes(40);
            if let Ok(request) = ConnectionRequest::parse(&bytes) {
                assert!(request.host_sends > 0);
            }
            if let Ok(accept) = ConnectionAccept::parse(&bytes) {
                assert_eq!(ConnectionAccept::parse(&accept.to_bytes()).unwrap(), accept);
            }
            if let Ok(reason) = RejectReason::parse(&bytes) {
                assert!(!reason.to_string().is_empty());
            }
        }
    }
}
