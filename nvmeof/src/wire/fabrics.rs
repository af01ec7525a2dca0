//! Fabrics commands, section 6: what opens a queue and reaches the controller's properties.

use super::{
    command::{Command, Opcode},
    fields::{Fields, put},
    property::Property,
};
use crate::{Error, Nqn, Result};

/// Which Fabrics command an entry is: its byte 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FabricsType(pub u8);

impl FabricsType {
    /// Property Set.
    pub const PROPERTY_SET: Self = Self(0x00);
    /// Connect.
    pub const CONNECT: Self = Self(0x01);
    /// Property Get.
    pub const PROPERTY_GET: Self = Self(0x04);
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: Self = Self(0x05);
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: Self = Self(0x06);
    /// Disconnect.
    pub const DISCONNECT: Self = Self(0x08);

    /// Which Fabrics command this is; nothing if it is of another kind.
    #[must_use]
    pub fn of(command: &Command) -> Option<Self> {
        (command.opcode() == Opcode::FABRICS).then(|| Self(command.as_bytes()[4]))
    }

    fn command(self) -> Command {
        Command::new(Opcode::FABRICS).bytes_at(4, &[self.0])
    }
}

/// The Connect command, which makes a transport connection into a queue, section 6.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// 0 for the admin queue.
    pub queue: u16,
    /// Entries of the submission queue, at least 2; the wire carries one less.
    pub entries: u16,
    /// How long the controller waits for a sign of life; 0 turns the timer off. Admin queue only,
    /// in milliseconds.
    pub keep_alive_milliseconds: u32,
}

impl Connect {
    /// The command; its data is a [`ConnectData`].
    #[must_use]
    pub fn to_command(self) -> Command {
        FabricsType::CONNECT
            .command()
            .bytes_at(42, &self.queue.to_le_bytes())
            .bytes_at(44, &self.entries.saturating_sub(1).to_le_bytes())
            .bytes_at(48, &self.keep_alive_milliseconds.to_le_bytes())
    }

    /// Reads the command as a target receives it.
    #[must_use]
    pub fn from_command(command: &Command) -> Self {
        let fields = command.fields();
        Self {
            queue: fields.u16(42),
            entries: fields.u16(44).saturating_add(1),
            keep_alive_milliseconds: fields.u32(48),
        }
    }
}

/// The data of a Connect command: who connects, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// The host's 16-byte identifier.
    pub host_id: [u8; 16],
    /// The controller to join, or [`ConnectData::ANY_CONTROLLER`] for a new one.
    pub controller_id: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The host.
    pub host: Nqn,
}

impl ConnectData {
    /// The size on the wire.
    pub const BYTES: usize = 1024;
    /// Asks for any controller: a new one, in the dynamic model.
    pub const ANY_CONTROLLER: u16 = 0xffff;

    /// The data as it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &self.host_id);
        put(&mut bytes, 16, &self.controller_id.to_le_bytes());
        put(&mut bytes, 256, self.subsystem.as_str().as_bytes());
        put(&mut bytes, 512, self.host.as_str().as_bytes());
        bytes
    }

    /// Reads the data as a target receives it.
    ///
    /// # Errors
    ///
    /// [`Error::Short`], or [`Error::InvalidName`] for a name that is not ended by a zero byte or
    /// is no qualified name.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, Self::BYTES, "connect data")?;
        Ok(Self {
            host_id: fields.array(0),
            controller_id: fields.u16(16),
            subsystem: Nqn::from_padded(fields.slice(256, 256))?,
            host: Nqn::from_padded(fields.slice(512, 256))?,
        })
    }
}

/// What a successful Connect returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult {
    /// The controller that was given.
    pub controller_id: u16,
    /// Whether the queue accepts nothing but authentication commands before the host is known.
    pub authentication_required: bool,
    /// As above, and a secure channel must come of it, which RDMA does not have.
    pub secure_channel_required: bool,
}

impl ConnectResult {
    /// Reads dword 0 of the completion.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let [a, b, ..] = dword.to_le_bytes();
        Self {
            controller_id: u16::from_le_bytes([a, b]),
            authentication_required: dword & 1 << 17 != 0,
            secure_channel_required: dword & 1 << 18 != 0,
        }
    }

    /// Dword 0 of the completion.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.controller_id)
            | u32::from(self.authentication_required) << 17
            | u32::from(self.secure_channel_required) << 18
    }
}

/// What a Connect that ended with Connect Invalid Parameters (or Invalid Host) complains about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectComplaint {
    /// Whether the bad parameter is in the data; else it is in the command.
    pub in_data: bool,
    /// The byte where the bad parameter begins.
    pub offset: u16,
}

impl ConnectComplaint {
    /// Reads dword 0 of the completion.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let [a, b, attributes, _] = dword.to_le_bytes();
        Self { in_data: attributes & 1 != 0, offset: u16::from_le_bytes([a, b]) }
    }

    /// Which parameter that is, in words.
    #[must_use]
    pub const fn parameter(self) -> &'static str {
        match (self.in_data, self.offset) {
            (true, 0) => "the host identifier",
            (true, 16) => "the controller identifier",
            (true, 256) => "the subsystem's name",
            (true, 512) => "the host's name",
            (false, 42) => "the queue identifier",
            (false, 44) => "the queue size",
            (false, 48) => "the keep-alive time",
            (true, _) => "a field of the connect data",
            (false, _) => "a field of the connect command",
        }
    }
}

/// Property Get.
#[must_use]
pub fn property_get(property: Property) -> Command {
    FabricsType::PROPERTY_GET
        .command()
        .bytes_at(40, &[u8::from(property.is_eight_bytes())])
        .bytes_at(44, &property.0.to_le_bytes())
}

/// Property Set.
#[must_use]
pub fn property_set(property: Property, value: u64) -> Command {
    FabricsType::PROPERTY_SET
        .command()
        .bytes_at(40, &[u8::from(property.is_eight_bytes())])
        .bytes_at(44, &property.0.to_le_bytes())
        .bytes_at(48, &value.to_le_bytes())
}

/// Which property a Property Get or Set is about, and the value that a Set carries.
///
/// # Errors
///
/// [`Error::Malformed`] for a size that is neither 4 nor 8 bytes.
pub fn property_of(command: &Command) -> Result<(Property, u64)> {
    let fields = command.fields();
    let size = fields.u8(40) & 0x7;
    if size > 1 {
        return Err(Error::Malformed {
            structure: "property command",
            field: "size",
            found: u64::from(size),
            rule: "is neither 0 (4 bytes) nor 1 (8 bytes)",
        });
    }
    Ok((Property(fields.u32(44)), fields.u64(48)))
}

/// Disconnect, which ends one I/O queue and leaves its association alone.
#[must_use]
pub fn disconnect() -> Command {
    FabricsType::DISCONNECT.command()
}

/// The protocol number of NVMe in the security commands.
const SECURITY_PROTOCOL_NVME: u8 = 0xe9;

/// Authentication Send: `length` bytes of a message go to the controller.
#[must_use]
pub fn authentication_send(length: u32) -> Command {
    authentication(FabricsType::AUTHENTICATION_SEND, length)
}

/// Authentication Receive: up to `length` bytes of a message come from the controller.
#[must_use]
pub fn authentication_receive(length: u32) -> Command {
    authentication(FabricsType::AUTHENTICATION_RECEIVE, length)
}

/// The length that an Authentication Send or Receive names.
#[must_use]
pub fn authentication_length(command: &Command) -> u32 {
    command.fields().u32(44)
}

fn authentication(kind: FabricsType, length: u32) -> Command {
    kind.command()
        .bytes_at(41, &[0x01, 0x01, SECURITY_PROTOCOL_NVME])
        .bytes_at(44, &length.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn connect_has_its_fields_where_the_specification_says() {
        let connect = Connect { queue: 1, entries: 128, keep_alive_milliseconds: 120_000 };
        let command = connect.to_command();
        assert_eq!(command.as_bytes()[..5], [0x7f, 0x40, 0, 0, 0x01]);
        assert_eq!(command.as_bytes()[40..52], [0, 0, 1, 0, 127, 0, 0, 0, 0xc0, 0xd4, 0x01, 0]);
        assert_eq!(Connect::from_command(&command), connect);
        assert_eq!(FabricsType::of(&command), Some(FabricsType::CONNECT));
    }

    #[test]
    fn connect_data_survives_the_round_trip() {
        let data = ConnectData {
            host_id: [7; 16],
            controller_id: ConnectData::ANY_CONTROLLER,
            subsystem: Nqn::new("nqn.2024-01.org.example:disk").unwrap(),
            host: Nqn::new("nqn.2024-01.org.example:host").unwrap(),
        };
        let bytes = data.to_bytes();
        assert_eq!(bytes[16..18], [0xff, 0xff]);
        assert_eq!(&bytes[256..284], b"nqn.2024-01.org.example:disk");
        assert_eq!(ConnectData::parse(&bytes).unwrap(), data);
    }

    #[test]
    fn connect_data_from_anywhere_is_read_or_refused() {
        let mut random = Random::new(2);
        for _ in 0..2_000 {
            let bytes = random.bytes(1100);
            if let Ok(data) = ConnectData::parse(&bytes) {
                assert_eq!(ConnectData::parse(&data.to_bytes()).unwrap(), data);
            }
        }
    }

    #[test]
    fn connect_results_survive_the_round_trip() {
        let result = ConnectResult::from_dword(0x0002_0007);
        assert!(result.authentication_required && !result.secure_channel_required);
        assert_eq!(result.controller_id, 7);
        assert_eq!(result.to_dword(), 0x0002_0007);
    }

    #[test]
    fn complaints_about_the_data_name_the_field() {
        assert_eq!(ConnectComplaint::from_dword(0x0001_0100).parameter(), "the subsystem's name");
    }

    #[test]
    fn properties_are_named_by_offset_and_size() {
        let get = property_get(Property::CAPABILITIES);
        assert_eq!(get.as_bytes()[40..48], [1, 0, 0, 0, 0, 0, 0, 0]);
        let set = property_set(Property::CONFIGURATION, 0x0046_0001);
        assert_eq!(
            set.as_bytes()[40..56],
            [0, 0, 0, 0, 0x14, 0, 0, 0, 0x01, 0, 0x46, 0, 0, 0, 0, 0]
        );
        assert_eq!(property_of(&set).unwrap(), (Property::CONFIGURATION, 0x0046_0001));
    }

    #[test]
    fn authentication_commands_name_protocol_and_length() {
        let command = authentication_send(72);
        assert_eq!(command.as_bytes()[4], 0x05);
        assert_eq!(command.as_bytes()[41..48], [1, 1, 0xe9, 72, 0, 0, 0]);
        assert_eq!(authentication_length(&command), 72);
    }
}
