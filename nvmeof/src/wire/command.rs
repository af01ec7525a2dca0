//! The 64 bytes of a submission queue entry, section 4.1.

use super::{
    fields::{Fields, put},
    sgl::Descriptor,
};
use crate::Result;

/// What a command's first byte asks for; admin and I/O queues read it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// Flush, on an I/O queue.
    pub const FLUSH: Self = Self(0x00);
    /// Write, on an I/O queue.
    pub const WRITE: Self = Self(0x01);
    /// Read, on an I/O queue.
    pub const READ: Self = Self(0x02);
    /// Compare, on an I/O queue.
    pub const COMPARE: Self = Self(0x05);
    /// Write Zeroes, on an I/O queue.
    pub const WRITE_ZEROES: Self = Self(0x08);
    /// Dataset Management, on an I/O queue.
    pub const DATASET_MANAGEMENT: Self = Self(0x09);
    /// Get Log Page, on the admin queue.
    pub const GET_LOG_PAGE: Self = Self(0x02);
    /// Identify, on the admin queue.
    pub const IDENTIFY: Self = Self(0x06);
    /// Abort, on the admin queue.
    pub const ABORT: Self = Self(0x08);
    /// Set Features, on the admin queue.
    pub const SET_FEATURES: Self = Self(0x09);
    /// Get Features, on the admin queue.
    pub const GET_FEATURES: Self = Self(0x0a);
    /// Asynchronous Event Request, on the admin queue.
    pub const ASYNCHRONOUS_EVENT_REQUEST: Self = Self(0x0c);
    /// Keep Alive, on the admin queue.
    pub const KEEP_ALIVE: Self = Self(0x18);
    /// A Fabrics command, on either kind of queue; byte 4 says which.
    pub const FABRICS: Self = Self(0x7f);
}

/// A submission queue entry, the fixed part of a command capsule.
///
/// The builders of [`admin`](super::admin), [`fabrics`](super::fabrics) and [`nvm`](super::nvm)
/// make complete ones; the setters here serve what has no builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command([u8; Self::BYTES]);

impl Command {
    /// The size of every entry.
    pub const BYTES: usize = 64;

    /// An entry with this opcode that uses SGLs, as every command over fabrics does; all else is
    /// zero and no data is transferred.
    #[must_use]
    pub fn new(opcode: Opcode) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = opcode.0;
        // PSDT 01b in bits 7:6: SGLs for data, no metadata pointer.
        bytes[1] = 0x40;
        Self(bytes).data(Descriptor::NONE)
    }

    /// Reads an entry as a target receives it.
    ///
    /// # Errors
    ///
    /// [`Error::Short`](crate::Error::Short) with fewer than 64 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Ok(Self(Fields::new(bytes, Self::BYTES, "command")?.array(0)))
    }

    /// The entry as it is sent.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Sets the identifier that the completion will carry back.
    #[must_use]
    pub fn id(mut self, id: u16) -> Self {
        put(&mut self.0, 2, &id.to_le_bytes());
        self
    }

    /// Sets bytes 4 to 7, the namespace identifier of all but Fabrics commands.
    #[must_use]
    pub fn namespace(mut self, namespace: u32) -> Self {
        put(&mut self.0, 4, &namespace.to_le_bytes());
        self
    }

    /// Sets where the data is; none by default.
    #[must_use]
    pub fn data(mut self, data: Descriptor) -> Self {
        put(&mut self.0, 24, &data.to_bytes());
        self
    }

    /// Sets command dword `index`, 10 to 15; other indexes change nothing.
    #[must_use]
    pub fn dword(mut self, index: usize, value: u32) -> Self {
        if (10..=15).contains(&index) {
            put(&mut self.0, index * 4, &value.to_le_bytes());
        }
        self
    }

    pub(super) fn bytes_at(mut self, at: usize, bytes: &[u8]) -> Self {
        put(&mut self.0, at, bytes);
        self
    }

    pub(super) fn fields(&self) -> Fields<'_> {
        Fields::all(&self.0)
    }

    /// The opcode.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.0[0])
    }

    /// The command identifier.
    #[must_use]
    pub const fn command_id(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }

    /// Bytes 4 to 7: the namespace identifier of all but Fabrics commands.
    #[must_use]
    pub fn namespace_id(&self) -> u32 {
        self.fields().u32(4)
    }

    /// Where the data is.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`](crate::Error::Malformed) for a descriptor type that is not defined.
    pub fn descriptor(&self) -> Result<Descriptor> {
        Descriptor::from_bytes(self.fields().array(24))
    }

    /// Command dword `index`, 10 to 15; zero for other indexes.
    #[must_use]
    pub fn command_dword(&self, index: usize) -> u32 {
        if (10..=15).contains(&index) { self.fields().u32(index * 4) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_fields_where_the_specification_says() {
        let command = Command::new(Opcode::READ)
            .id(0x1234)
            .namespace(0x0a0b_0c0d)
            .data(Descriptor::Keyed { address: 0x1122_3344_5566_7788, length: 0x1000, key: 0xaabb })
            .dword(10, 1)
            .dword(15, 0xdead_beef)
            .dword(16, 7);
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[0x02, 0x40, 0x34, 0x12, 0x0d, 0x0c, 0x0b, 0x0a]);
        expected[24..40].copy_from_slice(&[
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0x10, 0x00, 0xbb, 0xaa, 0, 0,
            0x40,
        ]);
        expected[40] = 1;
        expected[60..].copy_from_slice(&[0xef, 0xbe, 0xad, 0xde]);
        assert_eq!(command.as_bytes(), &expected);
        let parsed = Command::parse(&expected).unwrap();
        assert_eq!(parsed, command);
        assert_eq!(parsed.command_id(), 0x1234);
        assert_eq!(parsed.namespace_id(), 0x0a0b_0c0d);
        assert_eq!(parsed.command_dword(15), 0xdead_beef);
    }

    #[test]
    fn sixty_three_bytes_are_no_command() {
        Command::parse(&[0; 63]).unwrap_err();
    }
}
