//! What a completion says about its command: NVM Express Base Specification 2.1, section 4.2.3.

use std::fmt;

/// The status field of a completion: type, code, and the bits that say what to do next.
///
/// Unknown types and codes are values like any other; [`Status::description`] says so.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Which set of commands a status belongs to; codes from 80h on mean different things in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommandSet {
    /// Commands of the admin queue: Identify, Get Log Page, Set Features and so on.
    Admin,
    /// Commands of the NVM command set: Read, Write, Flush and so on.
    Nvm,
    /// Fabrics commands: Connect, Property Get and Set, Authentication, Disconnect.
    Fabrics,
}

/// The status code type, three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatusType(pub u8);

impl StatusType {
    /// Codes that any command can end with.
    pub const GENERIC: Self = Self(0);
    /// Codes that belong to one command.
    pub const COMMAND_SPECIFIC: Self = Self(1);
    /// Media and data integrity errors.
    pub const MEDIA: Self = Self(2);
    /// Errors of the path between host and namespace.
    pub const PATH: Self = Self(3);
    /// Codes of the vendor.
    pub const VENDOR: Self = Self(7);
}

impl Status {
    /// The command did what it was asked to.
    pub const SUCCESS: Self = Self(0);
    /// Generic 02h.
    pub const INVALID_FIELD: Self = Self::new(StatusType::GENERIC, 0x02);
    /// Generic 06h.
    pub const INTERNAL_ERROR: Self = Self::new(StatusType::GENERIC, 0x06);
    /// Generic 07h: an Abort command ended it.
    pub const ABORTED_BY_REQUEST: Self = Self::new(StatusType::GENERIC, 0x07);
    /// Generic 0Bh.
    pub const INVALID_NAMESPACE: Self = Self::new(StatusType::GENERIC, 0x0b);
    /// Generic 80h.
    pub const LBA_OUT_OF_RANGE: Self = Self::new(StatusType::GENERIC, 0x80);
    /// Command specific 91h of the Fabrics commands: the queue wants authentication first.
    pub const AUTHENTICATION_REQUIRED: Self = Self::new(StatusType::COMMAND_SPECIFIC, 0x91);
    /// Media 85h.
    pub const COMPARE_FAILURE: Self = Self::new(StatusType::MEDIA, 0x85);

    /// A status of this type (three bits) and code, with all other bits clear.
    #[must_use]
    pub const fn new(kind: StatusType, code: u8) -> Self {
        // Widening only; `as` because `From` is not const.
        Self(((kind.0 & 0x7) as u16) << 8 | code as u16)
    }

    /// Takes the status out of the last two bytes of a completion, whose lowest bit (the phase
    /// tag) has no meaning over fabrics and is dropped.
    #[must_use]
    pub const fn from_completion_field(field: u16) -> Self {
        Self(field >> 1)
    }

    /// The last two bytes of a completion with this status, phase tag clear.
    #[must_use]
    pub const fn to_completion_field(self) -> u16 {
        self.0 << 1
    }

    /// This status with the do-not-retry bit set.
    #[must_use]
    pub const fn do_not_retry(self) -> Self {
        Self(self.0 | 1 << 14)
    }

    /// Whether the command did what it was asked to.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// The status code type.
    #[must_use]
    pub const fn kind(self) -> StatusType {
        StatusType(self.0.to_le_bytes()[1] & 0x7)
    }

    /// The status code within its type.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Whether type and code are the same, whatever the other bits say.
    #[must_use]
    pub const fn is_same_code(self, other: Self) -> bool {
        self.0 & 0x7ff == other.0 & 0x7ff
    }

    /// Which of the controller's three command retry delays to wait before a retry; 0 means none.
    #[must_use]
    pub const fn retry_delay_index(self) -> u8 {
        self.0.to_le_bytes()[1] >> 3 & 0x3
    }

    /// Whether the error log has more about this command.
    #[must_use]
    pub const fn has_more(self) -> bool {
        self.0 & 1 << 13 != 0
    }

    /// Whether the same command, sent again, is expected to fail again.
    #[must_use]
    pub const fn is_do_not_retry(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// Whether the command had no effect and may succeed later: the do-not-retry bit is clear
    /// and the code is one of those that speak of a passing condition.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        !self.is_do_not_retry()
            && matches!(
                (self.kind().0, self.code()),
                // Namespace not ready; command interrupted; transient transport error.
                (0, 0x82 | 0x21 | 0x22)
                    // Internal path error; asymmetric access transition.
                    | (3, 0x00 | 0x03)
            )
    }

    /// The specification's name for this status, or what is known of it when it has none.
    #[must_use]
    pub const fn description(self, set: CommandSet) -> &'static str {
        match self.kind().0 {
            0 => generic(self.code()),
            1 => match set {
                CommandSet::Admin => admin(self.code()),
                CommandSet::Nvm => nvm(self.code()),
                CommandSet::Fabrics => fabrics(self.code()),
            },
            2 => media(self.code()),
            3 => path(self.code()),
            7 => "Vendor Specific",
            _ => "Reserved Status Code Type",
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

/// Numbers alone; [`Status::description`] has the words.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type {:x}h code {:02x}h", self.kind().0, self.code())?;
        if self.is_do_not_retry() {
            f.write_str(", do not retry")?;
        }
        if self.has_more() {
            f.write_str(", more in the error log")?;
        }
        Ok(())
    }
}

const fn generic(code: u8) -> &'static str {
    match code {
        0x00 => "Successful Completion",
        0x01 => "Invalid Command Opcode",
        0x02 => "Invalid Field in Command",
        0x03 => "Command ID Conflict",
        0x04 => "Data Transfer Error",
        0x05 => "Commands Aborted due to Power Loss Notification",
        0x06 => "Internal Error",
        0x07 => "Command Abort Requested",
        0x08 => "Command Aborted due to SQ Deletion",
        0x09 => "Command Aborted due to Failed Fused Command",
        0x0a => "Command Aborted due to Missing Fused Command",
        0x0b => "Invalid Namespace or Format",
        0x0c => "Command Sequence Error",
        0x0d => "Invalid SGL Segment Descriptor",
        0x0e => "Invalid Number of SGL Descriptors",
        0x0f => "Data SGL Length Invalid",
        0x10 => "Metadata SGL Length Invalid",
        0x11 => "SGL Descriptor Type Invalid",
        0x12 => "Invalid Use of Controller Memory Buffer",
        0x13 => "PRP Offset Invalid",
        0x14 => "Atomic Write Unit Exceeded",
        0x15 => "Operation Denied",
        0x16 => "SGL Offset Invalid",
        0x18 => "Host Identifier Inconsistent Format",
        0x19 => "Keep Alive Timer Expired",
        0x1a => "Keep Alive Timeout Invalid",
        0x1b => "Command Aborted due to Preempt and Abort",
        0x1c => "Sanitize Failed",
        0x1d => "Sanitize In Progress",
        0x1e => "SGL Data Block Granularity Invalid",
        0x1f => "Command Not Supported for Queue in CMB",
        0x20 => "Namespace is Write Protected",
        0x21 => "Command Interrupted",
        0x22 => "Transient Transport Error",
        0x23 => "Command Prohibited by Command and Feature Lockdown",
        0x24 => "Admin Command Media Not Ready",
        0x80 => "LBA Out of Range",
        0x81 => "Capacity Exceeded",
        0x82 => "Namespace Not Ready",
        0x83 => "Reservation Conflict",
        0x84 => "Format In Progress",
        0x85 => "Invalid Value Size",
        0x86 => "Invalid Key Size",
        0x87 => "KV Key Does Not Exist",
        0x88 => "Unrecovered Error",
        0x89 => "Key Exists",
        0xc0..=0xff => "Vendor Specific",
        _ => "Reserved Generic Status",
    }
}

const fn admin(code: u8) -> &'static str {
    match code {
        0x00 => "Completion Queue Invalid",
        0x01 => "Invalid Queue Identifier",
        0x02 => "Invalid Queue Size",
        0x03 => "Abort Command Limit Exceeded",
        0x05 => "Asynchronous Event Request Limit Exceeded",
        0x06 => "Invalid Firmware Slot",
        0x07 => "Invalid Firmware Image",
        0x08 => "Invalid Interrupt Vector",
        0x09 => "Invalid Log Page",
        0x0a => "Invalid Format",
        0x0b => "Firmware Activation Requires Conventional Reset",
        0x0c => "Invalid Queue Deletion",
        0x0d => "Feature Identifier Not Saveable",
        0x0e => "Feature Not Changeable",
        0x0f => "Feature Not Namespace Specific",
        0x10 => "Firmware Activation Requires NVM Subsystem Reset",
        0x11 => "Firmware Activation Requires Controller Level Reset",
        0x12 => "Firmware Activation Requires Maximum Time Violation",
        0x13 => "Firmware Activation Prohibited",
        0x14 => "Overlapping Range",
        0x15 => "Namespace Insufficient Capacity",
        0x16 => "Namespace Identifier Unavailable",
        0x18 => "Namespace Already Attached",
        0x19 => "Namespace Is Private",
        0x1a => "Namespace Not Attached",
        0x1b => "Thin Provisioning Not Supported",
        0x1c => "Controller List Invalid",
        0x1d => "Device Self-test In Progress",
        0x1e => "Boot Partition Write Prohibited",
        0x1f => "Invalid Controller Identifier",
        0x20 => "Invalid Secondary Controller State",
        0x21 => "Invalid Number of Controller Resources",
        0x22 => "Invalid Resource Identifier",
        0x23 => "Sanitize Prohibited While Persistent Memory Region is Enabled",
        0x24 => "ANA Group Identifier Invalid",
        0x25 => "ANA Attach Failed",
        0x26 => "Insufficient Capacity",
        0x27 => "Namespace Attachment Limit Exceeded",
        0xc0..=0xff => "Vendor Specific",
        _ => "Reserved Command Specific Status",
    }
}

const fn nvm(code: u8) -> &'static str {
    match code {
        0x80 => "Conflicting Attributes",
        0x81 => "Invalid Protection Information",
        0x82 => "Attempted Write to Read Only Range",
        0x83 => "Command Size Limit Exceeded",
        0xb8 => "Zoned Boundary Error",
        0xb9 => "Zone Is Full",
        0xba => "Zone Is Read Only",
        0xbb => "Zone Is Offline",
        0xbc => "Zone Invalid Write",
        0xbd => "Too Many Active Zones",
        0xbe => "Too Many Open Zones",
        0xbf => "Invalid Zone State Transition",
        _ => admin(code),
    }
}

const fn fabrics(code: u8) -> &'static str {
    match code {
        0x80 => "Connect Incompatible Format",
        0x81 => "Connect Controller Busy",
        0x82 => "Connect Invalid Parameters",
        0x83 => "Connect Restart Discovery",
        0x84 => "Connect Invalid Host",
        0x85 => "Discovery Log Page Is Being Updated",
        0x90 => "Discover Restart",
        0x91 => "Authentication Required",
        _ => admin(code),
    }
}

const fn media(code: u8) -> &'static str {
    match code {
        0x80 => "Write Fault",
        0x81 => "Unrecovered Read Error",
        0x82 => "End-to-end Guard Check Error",
        0x83 => "End-to-end Application Tag Check Error",
        0x84 => "End-to-end Reference Tag Check Error",
        0x85 => "Compare Failure",
        0x86 => "Access Denied",
        0x87 => "Deallocated or Unwritten Logical Block",
        0x88 => "End-to-End Storage Tag Check Error",
        0xc0..=0xff => "Vendor Specific",
        _ => "Reserved Media and Data Integrity Status",
    }
}

const fn path(code: u8) -> &'static str {
    match code {
        0x00 => "Internal Path Error",
        0x01 => "Asymmetric Access Persistent Loss",
        0x02 => "Asymmetric Access Inaccessible",
        0x03 => "Asymmetric Access Transition",
        0x60 => "Controller Pathing Error",
        0x70 => "Host Pathing Error",
        0x71 => "Command Aborted By Host",
        0xc0..=0xff => "Vendor Specific",
        _ => "Reserved Path Related Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_value_survives_the_round_trip() {
        for field in (0..=u16::MAX).filter(|field| field & 1 == 0) {
            let status = Status::from_completion_field(field);
            assert_eq!(status.to_completion_field(), field);
            let _words = status.description(CommandSet::Nvm);
        }
    }

    #[test]
    fn the_phase_tag_is_no_part_of_the_status() {
        assert!(Status::from_completion_field(1).is_success());
    }

    #[test]
    fn bits_are_told_apart() {
        // DNR, More, CRD 2, type 2, code 85h as they stand in the completion.
        let status = Status::from_completion_field(0xc000 | 2 << 12 | 2 << 9 | 0x85 << 1);
        assert!(status.is_do_not_retry() && status.has_more());
        assert_eq!(status.retry_delay_index(), 2);
        assert!(status.is_same_code(Status::COMPARE_FAILURE));
        assert_eq!(status.description(CommandSet::Nvm), "Compare Failure");
        assert_eq!(status.to_string(), "type 2h code 85h, do not retry, more in the error log");
    }

    #[test]
    fn the_same_code_has_the_words_of_its_command_set() {
        let status = Status::new(StatusType::COMMAND_SPECIFIC, 0x82);
        assert_eq!(status.description(CommandSet::Fabrics), "Connect Invalid Parameters");
        assert_eq!(status.description(CommandSet::Nvm), "Attempted Write to Read Only Range");
    }

    #[test]
    fn only_passing_conditions_are_worth_a_retry() {
        let not_ready = Status::new(StatusType::GENERIC, 0x82);
        assert!(not_ready.is_transient());
        assert!(!not_ready.do_not_retry().is_transient());
        assert!(!Status::LBA_OUT_OF_RANGE.is_transient());
    }
}
