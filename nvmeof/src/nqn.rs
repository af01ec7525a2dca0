//! NVMe qualified names, section 4.7 of the base specification.

use std::{fmt, str::FromStr};

use crate::{Error, Result};

/// The name of a subsystem or a host: 1 to 223 bytes of UTF-8 without control characters.
///
/// The form `nqn.YYYY-MM.domain:rest` is usual but not required, since targets accept other names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(String);

impl Nqn {
    /// The longest name in bytes.
    pub const MAX_BYTES: usize = 223;

    /// The well-known name of every discovery service.
    pub const DISCOVERY: &'static str = "nqn.2014-08.org.nvmexpress.discovery";

    /// Takes a name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] if it is empty, too long or has control characters.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if (1..=Self::MAX_BYTES).contains(&name.len()) && !name.chars().any(char::is_control) {
            Ok(Self(name))
        } else {
            Err(Error::InvalidName { bytes: name.len() })
        }
    }

    /// The name of the discovery service.
    #[must_use]
    pub fn discovery() -> Self {
        Self(Self::DISCOVERY.to_owned())
    }

    /// Takes a name out of a field that a zero byte ends; spaces before it are padding.
    pub(crate) fn from_padded(field: &[u8]) -> Result<Self> {
        let invalid = Error::InvalidName { bytes: field.len() };
        let Some(end) = field.iter().position(|byte| *byte == 0) else { return Err(invalid) };
        match std::str::from_utf8(&field[..end]) {
            Ok(name) => Self::new(name.trim_end_matches(' ')),
            Err(_) => Err(invalid),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the well-known discovery service.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.0 == Self::DISCOVERY
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Nqn {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<&str> for Nqn {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_to_223_bytes() {
        Nqn::new("").unwrap_err();
        Nqn::new("a".repeat(223)).unwrap();
        Nqn::new("a".repeat(224)).unwrap_err();
        Nqn::new("nqn.2024-01.a:b\n").unwrap_err();
    }

    #[test]
    fn a_field_without_its_zero_byte_is_no_name() {
        Nqn::from_padded(&[b'a'; 256]).unwrap_err();
        Nqn::from_padded(&[0xff, 0]).unwrap_err();
        assert_eq!(Nqn::from_padded(b"disk  \0junk").unwrap().as_str(), "disk");
    }
}
