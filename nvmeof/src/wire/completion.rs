//! The 16 bytes of a completion queue entry, section 4.2.

use super::fields::{Fields, put};
use crate::{Result, Status};

/// A completion queue entry, the fixed part of a response capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The first eight bytes: command dword 0 in the low half. Property Get uses all of it.
    pub result: u64,
    /// Where the target's submission queue head is now, in entries.
    pub submission_queue_head: u16,
    /// The identifier of the command that completed.
    pub command_id: u16,
    /// How it ended.
    pub status: Status,
}

impl Completion {
    /// The size of every entry.
    pub const BYTES: usize = 16;

    /// Reads an entry; bytes after the sixteenth are left alone.
    ///
    /// # Errors
    ///
    /// [`Error::Short`](crate::Error::Short) with fewer than 16 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, Self::BYTES, "completion")?;
        Ok(Self {
            result: fields.u64(0),
            submission_queue_head: fields.u16(8),
            command_id: fields.u16(12),
            status: Status::from_completion_field(fields.u16(14)),
        })
    }

    /// The entry as a target sends it over fabrics, where the queue identifier is reserved.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &self.result.to_le_bytes());
        put(&mut bytes, 8, &self.submission_queue_head.to_le_bytes());
        put(&mut bytes, 12, &self.command_id.to_le_bytes());
        put(&mut bytes, 14, &self.status.to_completion_field().to_le_bytes());
        bytes
    }

    /// Command dword 0 of the result.
    #[must_use]
    pub const fn dword0(self) -> u32 {
        let [a, b, c, d, ..] = self.result.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StatusType;

    #[test]
    fn an_entry_has_its_fields_where_the_specification_says() {
        let completion = Completion {
            result: 0x8877_6655_4433_2211,
            submission_queue_head: 0x0102,
            command_id: 0x0304,
            status: Status::new(StatusType::GENERIC, 0x80).do_not_retry(),
        };
        let bytes = [
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x02, 0x01, 0, 0, 0x04, 0x03, 0x00,
            0x81,
        ];
        assert_eq!(completion.to_bytes(), bytes);
        assert_eq!(Completion::parse(&bytes).unwrap(), completion);
        assert_eq!(completion.dword0(), 0x4433_2211);
    }

    #[test]
    fn a_short_entry_is_an_error() {
        for length in 0..16 {
            Completion::parse(&[0; 16][..length]).unwrap_err();
        }
    }
}
