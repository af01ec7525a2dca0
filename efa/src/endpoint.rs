//! What two queue pairs tell each other before they talk, and what one knows of the other then.
#![expect(unsafe_code, reason = "calls efadv_query_ah")]

use ibverbs::{
    Address, AddressHandle, Destination, Gid, LocalPort, Parent, ProtectionDomain, QueueKey,
    QueuePair, QueuePairNumber, Transport,
};

use crate::{Result, error::efa_verb, length_of};

/// Where a queue pair is reached: all that anybody needs to send to it, or to be sent to by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Its port's GID.
    pub gid: Gid,
    /// Its number.
    pub number: QueuePairNumber,
    /// The key that it accepts.
    pub queue_key: QueueKey,
}

impl EndpointInfo {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const LENGTH: usize = 24;

    /// What peers need to reach a queue pair over a port of this side. `queue_key` is the one that the queue pair was
    /// prepared with.
    #[must_use]
    pub fn new<T: Transport, S>(
        pair: &QueuePair<'_, T, S>,
        port: &LocalPort,
        queue_key: QueueKey,
    ) -> Self {
        Self { gid: port.gid.gid, number: pair.number(), queue_key }
    }

    /// The bytes to send to the peer: GID 16 bytes, number `u32`, queue key `u32`, network order. The Python
    /// package `efa` uses the same.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0..16].copy_from_slice(&self.gid.0);
        bytes[16..20].copy_from_slice(&self.number.get().to_be_bytes());
        bytes[20..24].copy_from_slice(&self.queue_key.0.to_be_bytes());
        bytes
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`](ibverbs::Error::Malformed) for any other length, and for a number that does not fit its 24 bits.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let malformed = |reason| ibverbs::Error::Malformed { what: "endpoint information", reason };
        let Ok(bytes) = <&[u8; Self::LENGTH]>::try_from(bytes) else {
            let reason = format!(
                "it has {} bytes and not {}; do both sides exchange the same things, in the same order?",
                bytes.len(),
                Self::LENGTH
            );
            return Err(malformed(reason).into());
        };
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[0..16]);
        let number =
            QueuePairNumber::new(word(16)).map_err(|error| malformed(error.to_string()))?;
        Ok(Self { gid, number, queue_key: QueueKey(word(20)) })
    }
}

impl EndpointInfo {
    /// Makes the address handle by which queue pairs of a domain, borrowed (`&domain`) or shared (`&Arc<…>`), reach
    /// this endpoint from a port of this side. Enters the kernel, allocates; the peer is not asked.
    ///
    /// **RDMA needs one in each direction:** a device answers reads and writes only of those that it knows, so that
    /// the side whose memory is used makes one too, on the domain of its queue pair, and keeps it.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs), `ENOMEM` or `ENOSPC` over the device's number of handles. See `ibv_create_ah(3)`.
    #[doc(alias = "ibv_create_ah")]
    pub fn peer<'a>(
        &self,
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        port: &LocalPort,
    ) -> Result<Peer<'a>> {
        let handle = AddressHandle::create(domain, &Address::new(port, self.gid, 0))?;
        Ok(Peer { handle, endpoint: *self })
    }
}

/// Another queue pair, as requests name it. Any number of requests and queue pairs of its domain may.
///
/// Keep it until the requests that named it have completed, and as long as the peer does RDMA here.
#[derive(Debug)]
pub struct Peer<'a> {
    handle: AddressHandle<'a>,
    endpoint: EndpointInfo,
}

impl<'a> Peer<'a> {
    /// What a request names.
    #[must_use]
    #[inline]
    pub fn destination(&self) -> Destination<'_> {
        Destination::new(&self.handle, self.endpoint.number, self.endpoint.queue_key)
    }

    /// Where it is reached.
    #[must_use]
    pub const fn endpoint(&self) -> &EndpointInfo {
        &self.endpoint
    }

    /// The way to it, which other queue pairs of the same device have in common with it.
    #[must_use]
    pub const fn address_handle(&self) -> &AddressHandle<'a> {
        &self.handle
    }
}

/// The number by which the device knows an address handle, and by which completions of receives
/// ([`source_lid`](ibverbs::FinishedWork::source_lid)) name a sender that has one. Does not enter the kernel.
///
/// # Errors
///
/// [`Error::Verbs`](crate::Error::Verbs) with `EOPNOTSUPP` for a device of another vendor. See `efadv_query_ah(3)`.
#[doc(alias = "efadv_query_ah")]
#[doc(alias = "ahn")]
pub fn address_handle_number(handle: &AddressHandle<'_>) -> Result<u16> {
    let library = handle.protection_domain().context().library();
    let (verb, query) = efa_verb!(library, efadv_query_ah)?;
    let mut raw = rdma_sys::efadv_ah_attr::default();
    // SAFETY: the handle is live, and the struct is of the length that is passed on.
    verb.status(unsafe { query(handle.as_raw(), &raw mut raw, length_of(&raw)) })?;
    Ok(raw.ahn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> EndpointInfo {
        EndpointInfo {
            gid: "fe80::1:2:3:4".parse().unwrap(),
            number: QueuePairNumber::new(0x0001_0203).unwrap(),
            queue_key: QueueKey(0x1122_3344),
        }
    }

    #[test]
    fn bytes_are_in_network_order_and_come_back() {
        let bytes = info().to_bytes();
        let mut expected = vec![0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 3, 0, 4];
        expected.extend([0, 1, 2, 3, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(bytes.as_slice(), expected);
        assert_eq!(EndpointInfo::from_bytes(&bytes).unwrap(), info());
    }

    #[test]
    fn every_other_length_is_refused() {
        for length in (0..64).filter(|length| *length != EndpointInfo::LENGTH) {
            let error = EndpointInfo::from_bytes(&vec![0; length]).unwrap_err();
            assert!(error.to_string().contains("and not 24"), "{error}");
        }
    }

    #[test]
    fn a_number_of_more_than_24_bits_is_refused() {
        let mut bytes = info().to_bytes();
        bytes[16] = 1;
        let error = EndpointInfo::from_bytes(&bytes).unwrap_err();
        assert!(error.to_string().contains("queue pair number"), "{error}");
    }

    #[test]
    fn whatever_parses_comes_back_as_the_same_bytes() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut parsed = 0;
        for _ in 0..20_000 {
            let mut bytes = [0u8; EndpointInfo::LENGTH];
            for byte in &mut bytes {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = state.to_be_bytes()[3];
            }
            bytes[16] %= 2;
            if let Ok(info) = EndpointInfo::from_bytes(&bytes) {
                parsed += 1;
                assert_eq!(info.to_bytes(), bytes);
            }
        }
        assert!(parsed > 1_000);
    }
}
