//! Get Features and Set Features, sections 5.1.11 and 5.1.25.

use bitflags::bitflags;

use super::{
    command::{Command, Opcode},
    fields::Fields,
};
use crate::Result;

/// A feature by its identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Feature(pub u8);

impl Feature {
    /// Whether the volatile write cache is on.
    pub const VOLATILE_WRITE_CACHE: Self = Self(0x06);
    /// How many I/O queues the host wants and gets; see [`QueueCounts`].
    pub const NUMBER_OF_QUEUES: Self = Self(0x07);
    /// Which events the controller reports; see [`EventConfiguration`].
    pub const ASYNCHRONOUS_EVENT_CONFIGURATION: Self = Self(0x0b);
    /// The keep-alive time in milliseconds.
    pub const KEEP_ALIVE_TIMER: Self = Self(0x0f);
    /// What the host can deal with; the data is a [`HostBehavior`].
    pub const HOST_BEHAVIOR_SUPPORT: Self = Self(0x16);
}

/// Get Features: the current value comes back in dword 0.
#[must_use]
pub fn get_feature(feature: Feature) -> Command {
    Command::new(Opcode::GET_FEATURES).dword(10, u32::from(feature.0))
}

/// Set Features with a value of one dword, until the next reset.
#[must_use]
pub fn set_feature(feature: Feature, value: u32) -> Command {
    Command::new(Opcode::SET_FEATURES).dword(10, u32::from(feature.0)).dword(11, value)
}

/// What the host can deal with: the data of the Host Behavior Support feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostBehavior {
    /// Statuses may name a delay before the command is sent again.
    pub retry_delays: bool,
}

impl HostBehavior {
    /// The size on the wire.
    pub const BYTES: usize = 512;

    /// The data as it is sent; what else a controller may do is not allowed to it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = u8::from(self.retry_delays);
        bytes
    }

    /// Reads the data as a controller receives it.
    ///
    /// # Errors
    ///
    /// [`Error::Short`](crate::Error::Short) with fewer than 512 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, Self::BYTES, "host behavior support")?;
        Ok(Self { retry_delays: fields.u8(0) & 1 != 0 })
    }
}

/// How many I/O submission and completion queues there are, both at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Submission queues.
    pub submission: u32,
    /// Completion queues.
    pub completion: u32,
}

impl QueueCounts {
    /// Asks for as many queues of each kind, 1 to 65,535.
    #[must_use]
    pub fn both(count: u16) -> Self {
        Self { submission: u32::from(count), completion: u32::from(count) }
    }

    /// The value of the feature: both counts less one.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        self.submission.saturating_sub(1) & 0xffff
            | (self.completion.saturating_sub(1) & 0xffff) << 16
    }

    /// Reads the value of the feature.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        Self { submission: (dword & 0xffff) + 1, completion: (dword >> 16) + 1 }
    }

    /// Queues that can be opened over fabrics, where each is a pair.
    #[must_use]
    pub fn pairs(self) -> u32 {
        self.submission.min(self.completion)
    }
}

bitflags! {
    /// Which asynchronous events a controller reports. Also the events it can report, in the
    /// OAES field of the identify data.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EventConfiguration: u32 {
        /// A namespace came, went or changed.
        const NAMESPACE_CHANGED = 1 << 8;
        /// A firmware activation starts.
        const FIRMWARE_ACTIVATION = 1 << 9;
        /// Access to namespace groups changed.
        const ASYMMETRIC_ACCESS = 1 << 11;
        /// The discovery log changed.
        const DISCOVERY_LOG = 1 << 31;
        /// Others that a later specification defines.
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counts_are_one_more_than_the_wire_says() {
        assert_eq!(QueueCounts::both(8).to_dword(), 0x0007_0007);
        assert_eq!(QueueCounts::from_dword(0x0001_0007).pairs(), 2);
        assert_eq!(QueueCounts::from_dword(u32::MAX).pairs(), 65_536);
    }

    #[test]
    fn the_behavior_of_a_host_survives_the_round_trip() {
        for retry_delays in [false, true] {
            let behavior = HostBehavior { retry_delays };
            assert_eq!(HostBehavior::parse(&behavior.to_bytes()).unwrap(), behavior);
        }
        HostBehavior::parse(&[0; 511]).unwrap_err();
    }

    #[test]
    fn setting_a_feature_names_it_and_its_value() {
        let command = set_feature(Feature::KEEP_ALIVE_TIMER, 5000);
        assert_eq!(command.opcode(), Opcode::SET_FEATURES);
        assert_eq!(command.command_dword(10), 0x0f);
        assert_eq!(command.command_dword(11), 5000);
    }
}
