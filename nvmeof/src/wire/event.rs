//! Asynchronous events: what an Asynchronous Event Request completes with, section 5.1.2.

use super::admin::LogPage;

/// One event, from dword 0 of the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsynchronousEvent {
    /// Error status; `information` says which.
    Error {
        /// Section 5.1.2.1, figure on error status.
        information: u8,
    },
    /// Health status: temperature, spare capacity, reliability.
    Health {
        /// Section 5.1.2.1, figure on SMART / health status.
        information: u8,
    },
    /// A namespace came, went or changed its identify data: read the changed namespace list.
    NamespaceChanged,
    /// A firmware activation starts; commands may be slow or lost until it ends.
    FirmwareActivationStarting,
    /// Access to namespace groups changed.
    AsymmetricAccessChanged,
    /// The discovery log changed.
    DiscoveryLogChanged,
    /// Anything else, as it came.
    Other {
        /// The type, three bits.
        kind: u8,
        /// What happened within the type.
        information: u8,
        /// The page that has more.
        page: LogPage,
    },
}

impl AsynchronousEvent {
    /// Reads dword 0 of the completion.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let [kind, information, page, _] = dword.to_le_bytes();
        match (kind & 0x7, information) {
            (0, information) => Self::Error { information },
            (1, information) => Self::Health { information },
            (2, 0x00) => Self::NamespaceChanged,
            (2, 0x01) => Self::FirmwareActivationStarting,
            (2, 0x03) => Self::AsymmetricAccessChanged,
            (2, 0xf0) => Self::DiscoveryLogChanged,
            (kind, information) => Self::Other { kind, information, page: LogPage(page) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_told_apart() {
        assert_eq!(AsynchronousEvent::from_dword(0x0004_0002), AsynchronousEvent::NamespaceChanged);
        assert_eq!(
            AsynchronousEvent::from_dword(0x0070_f002),
            AsynchronousEvent::DiscoveryLogChanged
        );
        assert_eq!(
            AsynchronousEvent::from_dword(0x0001_0207),
            AsynchronousEvent::Other { kind: 7, information: 2, page: LogPage(1) }
        );
    }
}
