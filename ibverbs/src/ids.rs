//! Numbers that must not be mistaken for one another.

use std::fmt;

use crate::{Error, Result};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

number! {
    /// The key by which this side's device finds a region of its own memory (lkey).
    LocalKey
}
number! {
    /// The key by which a peer's requests reach a region (rkey). Publishing it is giving access.
    RemoteKey
}
number! {
    /// The key that datagrams must carry to be accepted (qkey).
    QueueKey
}
number! {
    /// The number of a shared receive queue of an XRC domain (srqn), which its peers need.
    SharedReceiveQueueNumber
}

/// Largest value of the 24-bit numbers of the InfiniBand transport.
const MAX_24: u32 = 0x00ff_ffff;

/// The number of a queue pair, 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePairNumber(u32);

impl QueuePairNumber {
    /// The queue pair that takes every multicast datagram's address.
    pub const MULTICAST: Self = Self(MAX_24);

    /// A number that a peer told.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it does not fit 24 bits.
    pub fn new(number: u32) -> Result<Self> {
        Error::check("the queue pair number", number.into(), 0, MAX_24.into())?;
        Ok(Self(number))
    }

    pub(crate) const fn from_device(number: u32) -> Self {
        Self(number & MAX_24)
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for QueuePairNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// The number of a packet in its stream, 24 bits (psn). A connection starts at a random one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketSequence(u32);

impl PacketSequence {
    /// A number that was agreed on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it does not fit 24 bits.
    pub fn new(number: u32) -> Result<Self> {
        Error::check("the packet sequence number", number.into(), 0, MAX_24.into())?;
        Ok(Self(number))
    }

    pub(crate) const fn from_device(number: u32) -> Self {
        Self(number & MAX_24)
    }

    /// A number nobody guesses, so that packets of an earlier connection are not taken for new ones.
    #[must_use]
    pub fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        // Each RandomState has keys of its own, taken from the system's random numbers.
        let bits = RandomState::new().hash_one(std::process::id());
        Self(u32::try_from(bits & u64::from(MAX_24)).unwrap_or(0))
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PacketSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// The number of a port of a device; the first is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNumber(u8);

impl PortNumber {
    /// The only port of most devices.
    pub const FIRST: Self = Self(1);

    /// A port by its number, 1 to 255.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for 0.
    pub fn new(number: u8) -> Result<Self> {
        Error::check("the port number", number.into(), 1, u8::MAX.into())?;
        Ok(Self(number))
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for PortNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many bytes of payload a packet carries at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u8);

impl Mtu {
    /// 256 bytes.
    pub const BYTES_256: Self = Self(1);
    /// 512 bytes.
    pub const BYTES_512: Self = Self(2);
    /// 1024 bytes, what RoCE gets from an Ethernet MTU of 1500.
    pub const BYTES_1024: Self = Self(3);
    /// 2048 bytes.
    pub const BYTES_2048: Self = Self(4);
    /// 4096 bytes.
    pub const BYTES_4096: Self = Self(5);

    /// From the code of the InfiniBand specification: 1 is 256 bytes, 5 is 4096.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for another code.
    pub fn from_code(code: u8) -> Result<Self> {
        let meaning = "1 stands for 256 bytes, 5 for 4096";
        Error::check_or("the MTU code", code.into(), 1..=5, meaning)?;
        Ok(Self(code))
    }

    /// The code of the InfiniBand specification.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self.0
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_24_bits_are_shown_with_six_digits() {
        assert_eq!(QueuePairNumber::new(0x12).unwrap().to_string(), "0x000012");
        assert_eq!(PacketSequence::new(0x12).unwrap().to_string(), "0x000012");
    }

    #[test]
    fn numbers_of_24_bits_refuse_the_25th() {
        QueuePairNumber::new(0x00ff_ffff).unwrap();
        QueuePairNumber::new(0x0100_0000).unwrap_err();
        PacketSequence::new(0x00ff_ffff).unwrap();
        PacketSequence::new(0x0100_0000).unwrap_err();
    }

    #[test]
    fn random_sequence_numbers_differ() {
        let first = PacketSequence::random();
        assert!((0..64).any(|_| PacketSequence::random() != first));
    }

    #[test]
    fn mtu_codes_are_powers_of_two() {
        assert_eq!(Mtu::from_code(1).unwrap().bytes(), 256);
        assert_eq!(Mtu::BYTES_4096.bytes(), 4096);
        Mtu::from_code(0).unwrap_err();
        Mtu::from_code(6).unwrap_err();
    }
}
