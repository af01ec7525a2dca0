//! The changed namespace list, section 5.1.12.1.5.

use super::fields::Fields;
use crate::Result;

/// Bytes of the changed namespace list.
pub const CHANGED_NAMESPACES_BYTES: u32 = 4096;

/// Which namespaces changed since the list was read last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangedNamespaces {
    /// These, by identifier.
    Listed(Vec<u32>),
    /// More than fit into the list: look at all.
    TooMany,
}

impl ChangedNamespaces {
    /// Reads the list, which a zero ends.
    ///
    /// # Errors
    ///
    /// [`Error::Short`](crate::Error::Short) with fewer than 4096 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, 4096, "changed namespace list")?;
        if fields.u32(0) == u32::MAX {
            return Ok(Self::TooMany);
        }
        let listed = (0..1024).map(|index| fields.u32(4 * index)).take_while(|id| *id != 0);
        Ok(Self::Listed(listed.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_at_zero_or_says_that_it_is_too_short() {
        let mut bytes = vec![0; 4096];
        bytes[0] = 3;
        bytes[4] = 5;
        assert_eq!(
            ChangedNamespaces::parse(&bytes).unwrap(),
            ChangedNamespaces::Listed(vec![3, 5])
        );
        bytes[..4].fill(0xff);
        assert_eq!(ChangedNamespaces::parse(&bytes).unwrap(), ChangedNamespaces::TooMany);
    }
}
