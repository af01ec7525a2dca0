//! Making datagram queue pairs ready.

use super::{
    QueuePair,
    endpoint::{self, Head},
    state::{Initialized, ReadyToReceive, ReadyToSend, Reset},
    transition,
};
use crate::{
    Address, AddressHandle, Destination, Gid, LocalPort, Mtu, QueueKey, QueuePairNumber, Result, Ud,
};

/// How a datagram queue pair is reached.
#[derive(Debug, Clone)]
pub struct DatagramOptions {
    port: LocalPort,
    queue_key: QueueKey,
    pkey_index: u16,
}

impl DatagramOptions {
    /// A queue pair at a port of this side that accepts datagrams with this key. A key whose highest bit is
    /// set is for privileged programs.
    #[must_use]
    #[doc(alias = "qkey")]
    pub fn new(port: &LocalPort, queue_key: QueueKey) -> Self {
        Self { port: port.clone(), queue_key, pkey_index: 0 }
    }

    /// The place of the partition key in the port's table; 0 if not set.
    #[must_use]
    pub fn pkey_index(self, pkey_index: u16) -> Self {
        Self { pkey_index, ..self }
    }
}

/// Where a datagram queue pair is reached: what senders need, who tell each other by any means there are.
///
/// # Examples
///
/// ```
/// # use ibverbs::{DatagramInfo, LocalPort, ProtectionDomain, QueuePair, Segment, SendWr, Ud};
/// # fn f(
/// #     domain: &ProtectionDomain<'_>,
/// #     port: &LocalPort,
/// #     pair: &QueuePair<'_, Ud>,
/// #     bytes: Segment<'_>,
/// #     told: &[u8],
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let peer = DatagramInfo::from_bytes(told)?;
/// let handle = domain.create_address_handle(&peer.address(port))?; // made once for each peer
/// pair.post_send(&mut [SendWr::send_to(bytes, peer.destination(&handle)).signaled()])?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramInfo {
    /// The queue pair's number.
    pub number: QueuePairNumber,
    /// The key that it accepts.
    pub queue_key: QueueKey,
    /// Its port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Its port's GID.
    pub gid: Gid,
    /// Its port's MTU: a longer datagram is dropped, and nobody is told.
    pub mtu: Mtu,
}

impl DatagramInfo {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const LENGTH: usize = 27;

    /// The bytes to send to the peer: number `u32`, queue key `u32`, lid `u16`, GID 16 bytes, MTU code `u8`, network
    /// order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let Self { number, queue_key, lid, gid, .. } = *self;
        let mut bytes = [0; Self::LENGTH];
        Head { number, word: queue_key.0, lid, gid }.write(&mut bytes);
        bytes[26] = self.mtu.code();
        bytes
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`](crate::Error::Malformed) for any other length, a number that does not fit its 24 bits, and an MTU
    /// code that is none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        endpoint::read("datagram information", bytes, |head, [mtu]| {
            let Head { number, word, lid, gid } = head;
            Ok(Self { number, queue_key: QueueKey(word), lid, gid, mtu: Mtu::from_code(mtu)? })
        })
    }

    /// The way to it from a port of this side, to make an [`AddressHandle`] of.
    #[must_use]
    pub fn address(&self, from: &LocalPort) -> Address {
        Address::new(from, self.gid, self.lid)
    }

    /// What requests to it name, with the handle that was made of its [`address`](Self::address).
    #[must_use]
    #[inline]
    pub const fn destination<'a>(&self, handle: &'a AddressHandle<'a>) -> Destination<'a> {
        Destination::new(handle, self.number, self.queue_key)
    }
}

impl<'a> QueuePair<'a, Ud, Reset> {
    /// Makes it send and receive. Enters the kernel three times.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`](crate::Error::Transition) if the device refuses, with the likely cause. The queue pair is dropped then.
    pub fn activate(self, options: &DatagramOptions) -> Result<QueuePair<'a, Ud>> {
        self.initialize(options)?.ready_to_receive()?.ready_to_send()
    }

    /// Makes it take receives.
    ///
    /// # Errors
    ///
    /// As for [`activate`](Self::activate).
    pub fn initialize(self, options: &DatagramOptions) -> Result<QueuePair<'a, Ud, Initialized>> {
        let DatagramOptions { port, queue_key, pkey_index } = options;
        let port = port.port.get();
        self.change(transition::to_initialized_for_datagrams(port, *pkey_index, queue_key.0))
    }
}

impl<'a> QueuePair<'a, Ud, Initialized> {
    /// Makes it take datagrams.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::activate`].
    pub fn ready_to_receive(self) -> Result<QueuePair<'a, Ud, ReadyToReceive>> {
        self.change(transition::to_ready_to_receive_without_peer())
    }
}

impl<'a> QueuePair<'a, Ud, ReadyToReceive> {
    /// Makes it send.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::activate`].
    pub fn ready_to_send(self) -> Result<QueuePair<'a, Ud>> {
        let first_packet = self.handle.first_packet.get();
        self.change::<ReadyToSend>(transition::to_ready_to_send(first_packet))
    }
}

impl<S> QueuePair<'_, Ud, S> {
    /// What senders need to reach this queue pair when it was made ready with `options`.
    #[must_use]
    pub fn datagram_endpoint(&self, options: &DatagramOptions) -> DatagramInfo {
        DatagramInfo {
            number: self.number(),
            queue_key: options.queue_key,
            lid: options.port.attributes.lid(),
            gid: options.port.gid.gid,
            mtu: options.port.attributes.active_mtu(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    fn info() -> DatagramInfo {
        DatagramInfo {
            number: QueuePairNumber::new(0x0001_0203).unwrap(),
            queue_key: QueueKey(0x0405_0607),
            lid: 0x0809,
            gid: "::ffff:10.99.1.1".parse().unwrap(),
            mtu: Mtu::BYTES_1024,
        }
    }

    #[test]
    fn bytes_are_in_network_order_and_come_back() {
        let bytes = info().to_bytes();
        let mut expected = vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 99, 1, 1]);
        expected.push(3);
        assert_eq!(bytes.as_slice(), expected);
        assert_eq!(DatagramInfo::from_bytes(&bytes).unwrap(), info());
    }

    #[test]
    fn every_field_out_of_its_range_is_refused() {
        for (at, value) in [(0, 1), (26, 0), (26, 6)] {
            let mut bytes = info().to_bytes();
            bytes[at] = value;
            let error = DatagramInfo::from_bytes(&bytes).unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }), "{at}: {error}");
        }
    }

    #[test]
    fn every_other_length_is_refused() {
        for length in (0..64).filter(|length| *length != DatagramInfo::LENGTH) {
            let error = DatagramInfo::from_bytes(&vec![1; length]).unwrap_err();
            assert!(error.to_string().contains("and not 27"), "{error}");
        }
    }

    #[test]
    fn whatever_parses_comes_back_as_the_same_bytes() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut parsed = 0;
        for _ in 0..20_000 {
            let mut bytes = [0u8; DatagramInfo::LENGTH];
            for byte in &mut bytes {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = state.to_be_bytes()[3];
            }
            (bytes[0], bytes[26]) = (0, bytes[26] % 8);
            if let Ok(info) = DatagramInfo::from_bytes(&bytes) {
                parsed += 1;
                assert_eq!(info.to_bytes(), bytes);
            }
        }
        assert!(parsed > 1_000);
    }
}
