//! Controller properties, section 3.1.4: what a controller can do, what it is told, how it is.

use std::{fmt, time::Duration};

/// A property by its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Property(pub u32);

impl Property {
    /// CAP, eight bytes: see [`Capabilities`].
    pub const CAPABILITIES: Self = Self(0x00);
    /// VS: see [`Version`].
    pub const VERSION: Self = Self(0x08);
    /// CC: see [`Configuration`].
    pub const CONFIGURATION: Self = Self(0x14);
    /// CSTS: see [`ControllerStatus`].
    pub const STATUS: Self = Self(0x1c);

    /// Whether the property has eight bytes rather than four.
    #[must_use]
    pub const fn is_eight_bytes(self) -> bool {
        self.0 == Self::CAPABILITIES.0
    }
}

/// CAP: what a controller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// The most entries of an I/O queue, 2 to 65,536.
    #[must_use]
    pub const fn max_queue_entries(self) -> u32 {
        let [a, b, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, 0, 0]) + 1
    }

    /// The longest that enabling, disabling or shutting down may take: up to 127.5 seconds.
    #[must_use]
    pub const fn timeout(self) -> Duration {
        let [_, _, _, units, ..] = self.0.to_le_bytes();
        Duration::from_millis(500).saturating_mul(u32::from_le_bytes([units, 0, 0, 0]))
    }

    /// Whether the controller has the NVM command set.
    #[must_use]
    pub const fn has_nvm_command_set(self) -> bool {
        self.0 & 1 << 37 != 0
    }

    /// Whether the controller has one or more I/O command sets and says which.
    #[must_use]
    pub const fn has_io_command_sets(self) -> bool {
        self.0 & 1 << 43 != 0
    }

    /// Whether the controller has no I/O command set, as discovery controllers may.
    #[must_use]
    pub const fn has_no_io_command_set(self) -> bool {
        self.0 & 1 << 44 != 0
    }

    /// What to select of what the controller offers, section 3.5.2: all that it has if it can tell them
    /// apart, else the NVM command set, else none. One that offers nothing at all, as older
    /// discovery controllers do, is told what they all were told once: the NVM command set.
    #[must_use]
    pub const fn command_sets(self) -> CommandSets {
        if self.has_io_command_sets() {
            CommandSets::ALL
        } else if self.has_no_io_command_set() && !self.has_nvm_command_set() {
            CommandSets::NONE
        } else {
            CommandSets::NVM
        }
    }

    /// The smallest memory page size in bytes, the unit of the largest transfer.
    #[must_use]
    pub const fn min_page_size(self) -> u64 {
        4096 << (self.0 >> 48 & 0xf)
    }

    /// The largest memory page size in bytes.
    #[must_use]
    pub const fn max_page_size(self) -> u64 {
        4096 << (self.0 >> 52 & 0xf)
    }
}

/// CC.CSS: which I/O command sets a controller is told to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandSets(pub u8);

impl CommandSets {
    /// The NVM command set alone.
    pub const NVM: Self = Self(0);
    /// All that the controller has.
    pub const ALL: Self = Self(6);
    /// None: commands of the admin queue alone.
    pub const NONE: Self = Self(7);
}

/// VS: the version of the specification that a controller follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl Version {
    /// A version by its three parts.
    #[must_use]
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        let [low, high] = major.to_le_bytes();
        Self(u32::from_le_bytes([tertiary, minor, low, high]))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [tertiary, minor, ..] = self.0.to_le_bytes();
        write!(f, "{}.{minor}.{tertiary}", self.0 >> 16)
    }
}

/// CC: what a controller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration(pub u32);

impl Configuration {
    /// Disabled.
    pub const DISABLED: Self = Self(0);

    /// Enabled, NVM command set, round robin, 64-byte submission and 16-byte completion entries,
    /// memory pages of `page_size` bytes (a power of two from 4 KiB on).
    #[must_use]
    pub const fn enabled(page_size: u64) -> Self {
        let shift = page_size.trailing_zeros().saturating_sub(12);
        Self(1 | (shift & 0xf) << 7 | 6 << 16 | 4 << 20)
    }

    /// This configuration with other command sets; a change takes effect only while disabled.
    #[must_use]
    pub fn select(self, sets: CommandSets) -> Self {
        Self(self.0 & !(7 << 4) | u32::from(sets.0 & 7) << 4)
    }

    /// The command sets that are selected.
    #[must_use]
    pub const fn command_sets(self) -> CommandSets {
        let [low, ..] = self.0.to_le_bytes();
        CommandSets(low >> 4 & 7)
    }

    /// This configuration with a normal shutdown asked for.
    #[must_use]
    pub const fn normal_shutdown(self) -> Self {
        Self(self.0 & !(3 << 14) | 1 << 14)
    }

    /// Whether the controller is enabled.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether a shutdown, normal or abrupt, is asked for.
    #[must_use]
    pub const fn is_shutdown(self) -> bool {
        self.0 >> 14 & 3 != 0
    }
}

/// CSTS: how a controller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// Whether it processes commands.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether it met a fatal error; only a new association helps.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether a shutdown that was asked for is complete.
    #[must_use]
    pub const fn is_shutdown_complete(self) -> bool {
        self.0 >> 2 & 3 == 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_their_bits() {
        // MQES 127, CQR, TO 15 (7.5 s), NVM command set, MPSMIN 0, MPSMAX 4.
        let capabilities = Capabilities(127 | 1 << 16 | 15 << 24 | 1 << 37 | 4 << 52);
        assert_eq!(capabilities.max_queue_entries(), 128);
        assert_eq!(capabilities.timeout(), Duration::from_millis(7500));
        assert!(capabilities.has_nvm_command_set());
        assert_eq!(capabilities.min_page_size(), 4096);
        assert_eq!(capabilities.max_page_size(), 65_536);
    }

    #[test]
    fn absurd_capabilities_stay_in_range() {
        let capabilities = Capabilities(u64::MAX);
        assert_eq!(capabilities.max_queue_entries(), 65_536);
        assert_eq!(capabilities.timeout(), Duration::from_millis(127_500));
        assert_eq!(capabilities.max_page_size(), 4096 << 15);
    }

    #[test]
    fn enabling_says_entry_sizes_as_the_kernel_does() {
        assert_eq!(Configuration::enabled(4096), Configuration(0x0046_0001));
        assert!(Configuration::enabled(4096).normal_shutdown().is_shutdown());
    }

    #[test]
    fn the_command_sets_to_select_are_among_those_on_offer() {
        let (nvm, sets, none) = (1 << 37, 1 << 43, 1 << 44);
        for (offered, selected) in [
            (nvm, CommandSets::NVM),
            (sets, CommandSets::ALL),
            // As Linux targets offer.
            (nvm | sets, CommandSets::ALL),
            (none, CommandSets::NONE),
            // Contradictions that leave something to work with.
            (nvm | none, CommandSets::NVM),
            (sets | none, CommandSets::ALL),
            (0, CommandSets::NVM),
        ] {
            assert_eq!(Capabilities(offered).command_sets(), selected, "{offered:#x}");
        }
    }

    #[test]
    fn selecting_command_sets_changes_nothing_else() {
        let enabled = Configuration::enabled(8192);
        assert_eq!(enabled.command_sets(), CommandSets::NVM);
        let all = enabled.select(CommandSets::ALL);
        assert_eq!(all, Configuration(0x0046_00e1));
        assert_eq!(all.command_sets(), CommandSets::ALL);
        assert_eq!(all.normal_shutdown().command_sets(), CommandSets::ALL);
        assert_eq!(all.select(CommandSets::NONE).select(CommandSets::NVM), enabled);
    }

    #[test]
    fn versions_read_as_they_are_spoken() {
        assert_eq!(Version(0x0002_0100).to_string(), "2.1.0");
        assert!(Version::new(1, 4, 0) > Version::new(1, 3, 0));
    }
}
