//! Commands of the NVM command set: NVM Command Set Specification 1.1, section 3.3.

use bitflags::bitflags;

use super::{
    admin::halves,
    command::{Command, Opcode},
    fields::{Fields, put},
    sgl::Descriptor,
};
use crate::Result;

/// The most blocks of one command that carries or writes blocks: 65,536.
pub const MAX_BLOCKS: u64 = 1 << 16;

bitflags! {
    /// Bits of command dword 12 of commands that name a range of blocks.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct BlockFlags: u32 {
        /// Write Zeroes: the controller may deallocate the blocks.
        const DEALLOCATE = 1 << 25;
        /// Check the reference tag of the protection information.
        const CHECK_REFERENCE_TAG = 1 << 26;
        /// Check the application tag of the protection information.
        const CHECK_APPLICATION_TAG = 1 << 27;
        /// Check the guard of the protection information.
        const CHECK_GUARD = 1 << 28;
        /// The controller makes protection information on a write and strips it on a read.
        const PROTECTION_ACTION = 1 << 29;
        /// Force unit access: the data is on non-volatile media before the command completes.
        const FORCE_UNIT_ACCESS = 1 << 30;
        /// The controller tries less hard to correct errors.
        const LIMITED_RETRY = 1 << 31;
    }
}

/// Read, Write, Compare or Write Zeroes: a range of blocks of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCommand {
    /// One of [`Opcode::READ`], [`Opcode::WRITE`], [`Opcode::COMPARE`],
    /// [`Opcode::WRITE_ZEROES`].
    pub opcode: Opcode,
    /// The namespace.
    pub namespace: u32,
    /// The first block.
    pub first_block: u64,
    /// Blocks, 1 to [`MAX_BLOCKS`]; the wire carries one less.
    pub blocks: u32,
    /// Everything in dword 12 that is a flag.
    pub flags: BlockFlags,
    /// What the first block's reference tag is expected to be, or is made.
    pub reference_tag: u32,
}

impl BlockCommand {
    /// The command with its data; Write Zeroes takes [`Descriptor::NONE`].
    #[must_use]
    pub fn to_command(self, data: Descriptor) -> Command {
        let [low, high] = halves(self.first_block);
        Command::new(self.opcode)
            .namespace(self.namespace)
            .data(data)
            .dword(10, low)
            .dword(11, high)
            .dword(12, self.blocks.saturating_sub(1) & 0xffff | self.flags.bits())
            .dword(14, self.reference_tag)
    }

    /// Reads the command as a target receives it.
    #[must_use]
    pub fn from_command(command: &Command) -> Self {
        let dword12 = command.command_dword(12);
        Self {
            opcode: command.opcode(),
            namespace: command.namespace_id(),
            first_block: u64::from(command.command_dword(10))
                | u64::from(command.command_dword(11)) << 32,
            blocks: (dword12 & 0xffff) + 1,
            flags: BlockFlags::from_bits_truncate(dword12),
            reference_tag: command.command_dword(14),
        }
    }
}

/// Flush: everything written to the namespace before is on non-volatile media after.
#[must_use]
pub fn flush(namespace: u32) -> Command {
    Command::new(Opcode::FLUSH).namespace(namespace)
}

/// One range of a Dataset Management command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first block.
    pub first_block: u64,
    /// Blocks.
    pub blocks: u32,
}

impl Range {
    /// The size on the wire.
    pub const BYTES: usize = 16;
    /// The most ranges of one command.
    pub const MAX: usize = 256;

    /// The range as it is sent, without context attributes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 4, &self.blocks.to_le_bytes());
        put(&mut bytes, 8, &self.first_block.to_le_bytes());
        bytes
    }

    /// Reads a range as a target receives it.
    ///
    /// # Errors
    ///
    /// [`Error::Short`](crate::Error::Short) with fewer than 16 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, Self::BYTES, "dataset management range")?;
        Ok(Self { first_block: fields.u64(8), blocks: fields.u32(4) })
    }
}

/// Dataset Management that deallocates `ranges` (1 to [`Range::MAX`]) ranges, which are its data.
#[must_use]
pub fn deallocate(namespace: u32, ranges: u16, data: Descriptor) -> Command {
    // Eight bits, which hold 256 ranges less one.
    let last = u32::from(ranges.saturating_sub(1)) & 0xff;
    Command::new(Opcode::DATASET_MANAGEMENT)
        .namespace(namespace)
        .data(data)
        .dword(10, last)
        .dword(11, 1 << 2)
}

/// How many ranges a Dataset Management command has.
#[must_use]
pub fn range_count(command: &Command) -> usize {
    usize::from(command.command_dword(10).to_le_bytes()[0]) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn a_write_has_its_fields_where_the_specification_says() {
        let write = BlockCommand {
            opcode: Opcode::WRITE,
            namespace: 1,
            first_block: 0x1_0000_0010,
            blocks: 8,
            flags: BlockFlags::FORCE_UNIT_ACCESS,
            reference_tag: 0x10,
        };
        let command = write.to_command(Descriptor::InCapsule { offset: 0, length: 4096 });
        assert_eq!(
            command.as_bytes()[40..64],
            [0x10, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0x40, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(BlockCommand::from_command(&command), write);
    }

    #[test]
    fn block_commands_survive_the_round_trip() {
        let mut random = Random::new(4);
        for _ in 0..5_000 {
            let command = Command::parse(&random.array::<64>()).unwrap();
            let block = BlockCommand::from_command(&command);
            assert!((1..=65_536).contains(&block.blocks));
            assert_eq!(BlockCommand::from_command(&block.to_command(Descriptor::NONE)), block);
        }
    }

    #[test]
    fn ranges_survive_the_round_trip() {
        let range = Range { first_block: 0x1122_3344_5566_7788, blocks: 0x99aa_bbcc };
        assert_eq!(Range::parse(&range.to_bytes()).unwrap(), range);
        for count in [1, 3, 255, 256] {
            assert_eq!(range_count(&deallocate(1, count, Descriptor::NONE)), usize::from(count));
        }
    }
}
