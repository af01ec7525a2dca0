//! Commands of the admin queue other than features, section 5.

use super::command::{Command, Opcode};

/// Bytes that every Identify command returns.
pub const IDENTIFY_BYTES: u32 = 4096;

/// Namespace identifier that stands for all namespaces.
pub const ALL_NAMESPACES: u32 = u32::MAX;

/// Which structure an Identify command asks for, section 5.1.13.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdentifyStructure(pub u8);

impl IdentifyStructure {
    /// One namespace, as [`super::identify_namespace::IdentifyNamespace`] reads it.
    pub const NAMESPACE: Self = Self(0x00);
    /// The controller, as [`super::identify::IdentifyController`] reads it.
    pub const CONTROLLER: Self = Self(0x01);
    /// Identifiers of active namespaces above the one given.
    pub const ACTIVE_NAMESPACES: Self = Self(0x02);
    /// Names of one namespace that stay with it: EUI-64, NGUID, UUID.
    pub const NAMESPACE_DESCRIPTORS: Self = Self(0x03);
    /// The controller as far as one command set goes, the NVM command set here, as
    /// [`super::identify_nvm::IdentifyNvm`] reads it. Controllers before version 2.0 need not have it.
    pub const CONTROLLER_COMMAND_SET: Self = Self(0x06);
}

/// Identify: [`IDENTIFY_BYTES`] bytes about the controller or a namespace. What depends on the command
/// set is that of the NVM command set, whose identifier is 0.
#[must_use]
pub fn identify(structure: IdentifyStructure, namespace: u32) -> Command {
    Command::new(Opcode::IDENTIFY).namespace(namespace).dword(10, u32::from(structure.0))
}

/// Which log a Get Log Page command reads, section 5.1.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogPage(pub u8);

impl LogPage {
    /// Errors, newest first.
    pub const ERROR_INFORMATION: Self = Self(0x01);
    /// Health of the controller.
    pub const HEALTH: Self = Self(0x02);
    /// Namespaces that changed since the log was read last.
    pub const CHANGED_NAMESPACES: Self = Self(0x04);
    /// Where controllers can be reached; discovery controllers only.
    pub const DISCOVERY: Self = Self(0x70);
}

/// Get Log Page: `length` bytes (a multiple of 4, at least 4) from byte `offset` on.
///
/// `retain_event` keeps the asynchronous event that announced the page from being cleared.
#[must_use]
pub fn get_log_page(page: LogPage, length: u32, offset: u64, retain_event: bool) -> Command {
    let dwords = (length / 4).saturating_sub(1);
    let [low, high] = halves(offset);
    Command::new(Opcode::GET_LOG_PAGE)
        .namespace(ALL_NAMESPACES)
        .dword(10, u32::from(page.0) | u32::from(retain_event) << 15 | (dwords & 0xffff) << 16)
        .dword(11, dwords >> 16)
        .dword(12, low)
        .dword(13, high)
}

/// How many bytes a Get Log Page command asks for, and from which byte on.
#[must_use]
pub fn log_page_range(command: &Command) -> (u64, u64) {
    let dwords = u64::from(command.command_dword(10) >> 16)
        | u64::from(command.command_dword(11) & 0xffff) << 16;
    let offset = u64::from(command.command_dword(12)) | u64::from(command.command_dword(13)) << 32;
    ((dwords + 1) * 4, offset)
}

/// Abort: asks that the command with this identifier on this queue end early. The lowest bit of
/// the result is clear when it did.
#[must_use]
pub fn abort(queue: u16, command_id: u16) -> Command {
    Command::new(Opcode::ABORT).dword(10, u32::from(queue) | u32::from(command_id) << 16)
}

/// Keep Alive: restarts the controller's timer.
#[must_use]
pub fn keep_alive() -> Command {
    Command::new(Opcode::KEEP_ALIVE)
}

/// Asynchronous Event Request: completes when there is something to tell.
#[must_use]
pub fn asynchronous_event_request() -> Command {
    Command::new(Opcode::ASYNCHRONOUS_EVENT_REQUEST)
}

/// The low and the high dword of a number.
pub(super) const fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_page_is_read_in_dwords_counted_from_zero() {
        let command = get_log_page(LogPage::DISCOVERY, 0x0004_0400, 0x1_0000_0008, true);
        assert_eq!(command.command_dword(10), 0x00ff_8070);
        assert_eq!(command.command_dword(11), 1);
        assert_eq!(command.command_dword(12), 8);
        assert_eq!(command.command_dword(13), 1);
        assert_eq!(log_page_range(&command), (0x0004_0400, 0x1_0000_0008));
    }

    #[test]
    fn the_longest_log_page_range_does_not_overflow() {
        let command =
            get_log_page(LogPage::DISCOVERY, 4, 0, false).dword(10, u32::MAX).dword(11, u32::MAX);
        assert_eq!(log_page_range(&command).0, 4 << 32);
    }

    #[test]
    fn abort_names_queue_and_command() {
        let command = abort(3, 0x0102);
        assert_eq!(command.opcode(), Opcode::ABORT);
        assert_eq!(command.command_dword(10), 0x0102_0003);
    }
}
