//! Addresses of Ethernet ports.

use std::{fmt, str::FromStr};

use crate::{Error, Gid, Result};

/// The address of an Ethernet port, or of a group of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// All ports of a network.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The address that a link-local GID was made of, as the first entry of a RoCE port's table usually is; `None` if
    /// the GID was not made of one. See RFC 4291, appendix A.
    ///
    /// # Examples
    ///
    /// ```
    /// use ibverbs::{Gid, MacAddress};
    ///
    /// let gid: Gid = "fe80::1634:56ff:fe78:9abc".parse()?;
    /// assert_eq!(MacAddress::of_link_local(gid), Some("14:34:56:78:9a:bc".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of_link_local(gid: Gid) -> Option<Self> {
        let [.., a, b, c, 0xff, 0xfe, d, e, f] = gid.0 else {
            return None;
        };
        // The bit says that the address is worldwide unique, and is the opposite of Ethernet's.
        gid.is_link_local().then_some(Self([a ^ 2, b, c, d, e, f]))
    }

    /// Whether this is a group of ports; the broadcast address is one.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl From<[u8; 6]> for MacAddress {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl FromStr for MacAddress {
    type Err = Error;

    /// Reads six bytes in hexadecimal, with colons between them.
    fn from_str(text: &str) -> Result<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let fits = |part: &&str| (1..=2).contains(&part.len()) && !part.starts_with('+');
            let part = parts.next().filter(fits);
            let value = part.and_then(|part| u8::from_str_radix(part, 16).ok());
            *byte = value.ok_or_else(|| malformed(text))?;
        }
        if parts.next().is_some() { Err(malformed(text)) } else { Ok(Self(bytes)) }
    }
}

fn malformed(text: &str) -> Error {
    Error::Invalid {
        what: format!("{text:?} is not the address of an Ethernet port").into(),
        remedy: "write six bytes in hexadecimal with colons between them, as in 02:00:5e:10:00:01",
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_printed() {
        let address = MacAddress([2, 0, 0x5e, 0x10, 0, 0xff]);
        assert_eq!(address.to_string(), "02:00:5e:10:00:ff");
        assert_eq!(address.to_string().parse::<MacAddress>().unwrap(), address);
        for wrong in
            ["", "02:00:5e:10:00", "02:00:5e:10:00:ff:1", "02:00:5e:10:00:1ff", "a:b:c:d:e:+f"]
        {
            assert!(wrong.parse::<MacAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_link_local_gids_made_of_an_address_give_one_back() {
        let of = |text: &str| MacAddress::of_link_local(text.parse().unwrap());
        assert_eq!(of("fe80::ff:fe00:1"), Some(MacAddress([2, 0, 0, 0, 0, 1])));
        assert_eq!(of("fe80::1"), None);
        assert_eq!(of("2001:db8::ff:fe00:1"), None);
    }
}
