//! One request of any length: how it is cut into commands, and what becomes of it when they fail.
//! No input or output.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    Error, Result,
    association::Limits,
    ranges::Ranges,
    wire::{
        Command, Descriptor,
        command::Opcode,
        nvm::{self, BlockCommand, BlockFlags, Range},
    },
};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Compare,
    WriteZeroes,
    Flush,
    Deallocate,
}

impl Kind {
    /// Its name in errors.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Compare => "compare",
            Self::WriteZeroes => "write zeroes",
            Self::Flush => "flush",
            Self::Deallocate => "deallocate",
        }
    }

    /// Whether data of the user's goes from the host to the target.
    pub(crate) const fn sends_data(self) -> bool {
        matches!(self, Self::Write | Self::Compare)
    }

    /// Whether data of the user's goes either way.
    const fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Compare)
    }

    /// What becomes of a command that was in flight when its connection was lost, and may or may
    /// not have been carried out.
    ///
    /// - Reading and comparing change nothing: they are sent again.
    /// - What changes blocks is sent again only if the user vouches for that; otherwise it ends,
    ///   saying that its outcome is unknown.
    /// - Flush ends: it is about writes before it, and a target that restarted may have lost them,
    ///   so that a flush of the new connection would promise too much.
    const fn after_loss(self, retry_writes: bool) -> AfterLoss {
        match self {
            Self::Read | Self::Compare => AfterLoss::SendAgain,
            Self::Write | Self::WriteZeroes | Self::Deallocate if retry_writes => {
                AfterLoss::SendAgain
            }
            Self::Write | Self::WriteZeroes | Self::Deallocate => AfterLoss::OutcomeUnknown,
            Self::Flush => AfterLoss::Lost,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterLoss {
    SendAgain,
    OutcomeUnknown,
    Lost,
}

/// A request as it is submitted; its range and its memory have been checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) namespace: u32,
    /// Which opening of the namespace this is for; see [`Opened`](crate::namespace::Opened).
    pub(crate) opening: u32,
    pub(crate) first_block: u64,
    /// Blocks; those of all ranges for [`Kind::Deallocate`], and 0 for [`Kind::Flush`].
    pub(crate) blocks: u64,
    /// Bytes of a block.
    pub(crate) block_bytes: u32,
    /// Where the data is, or the ranges are; unused without either.
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) flags: BlockFlags,
    /// Whether commands carry the low half of their first block as reference tag.
    pub(crate) tagged: bool,
}

impl Operation {
    /// Bytes of the user's data of the whole request.
    pub(crate) const fn data_bytes(&self) -> u64 {
        if self.kind.moves_data() { self.blocks.saturating_mul(widen(self.block_bytes)) } else { 0 }
    }

    /// The most blocks of one command; [`Ranges`] know that of one that deallocates.
    fn max_blocks(&self, limits: &Limits) -> u64 {
        let bytes = match self.kind {
            Kind::Flush => return 1,
            Kind::Deallocate => return u64::MAX,
            Kind::WriteZeroes => limits.max_write_zeroes.unwrap_or(u64::MAX),
            Kind::Read | Kind::Write | Kind::Compare => {
                u64::from(limits.max_transfer.min(Descriptor::MAX_KEYED_LENGTH))
            }
        };
        (bytes / u64::from(self.block_bytes.max(1))).clamp(1, nvm::MAX_BLOCKS)
    }

    /// Whether it is one command.
    pub(crate) fn is_single(&self, limits: &Limits) -> bool {
        self.blocks <= self.max_blocks(limits)
    }

    /// The command for a part, with its data in place.
    pub(crate) fn command(&self, part: Part) -> Command {
        let offset = if self.kind.moves_data() {
            part.offset.wrapping_mul(u64::from(self.block_bytes))
        } else {
            0
        };
        let data = match u32::try_from(self.bytes_of(part)) {
            Ok(0) | Err(_) => Descriptor::NONE,
            Ok(length) => Descriptor::Keyed {
                address: self.address.wrapping_add(offset),
                length,
                key: self.key,
            },
        };
        self.command_with(part, data)
    }

    /// The command for a part, with its data in the capsule.
    pub(crate) fn command_in_capsule(&self, part: Part) -> Command {
        let length = u32::try_from(self.bytes_of(part)).unwrap_or(u32::MAX);
        self.command_with(part, Descriptor::InCapsule { offset: 0, length })
    }

    /// Bytes that the command for a part brings along or asks for.
    fn bytes_of(&self, part: Part) -> u64 {
        match self.kind {
            Kind::Read | Kind::Write | Kind::Compare => {
                u64::from(part.blocks) * u64::from(self.block_bytes)
            }
            Kind::Deallocate => u64::from(part.ranges) * RANGE_BYTES,
            Kind::WriteZeroes | Kind::Flush => 0,
        }
    }

    fn command_with(&self, part: Part, data: Descriptor) -> Command {
        let first_block = self.first_block.wrapping_add(part.offset);
        let opcode = match self.kind {
            Kind::Read => Opcode::READ,
            Kind::Write => Opcode::WRITE,
            Kind::Compare => Opcode::COMPARE,
            Kind::WriteZeroes => Opcode::WRITE_ZEROES,
            Kind::Flush => return nvm::flush(self.namespace),
            Kind::Deallocate => return nvm::deallocate(self.namespace, part.ranges, data),
        };
        let [low, _] = [first_block & 0xffff_ffff, first_block >> 32];
        let reference_tag = if self.tagged { u32::try_from(low).unwrap_or_default() } else { 0 };
        BlockCommand {
            opcode,
            namespace: self.namespace,
            first_block,
            blocks: part.blocks,
            flags: self.flags,
            reference_tag,
        }
        .to_command(data)
    }
}

/// Bytes of a range on the wire.
const RANGE_BYTES: u64 = 16;
const _: () = assert!(Range::BYTES == 16, "as the wire module has it");

/// The blocks of one command, relative to the first block of its request, or to the first of its ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) blocks: u32,
    /// Ranges that these blocks are in; 0 for what has none.
    pub(crate) ranges: u16,
    /// How often it may be sent again. Each part has its own: one loss takes all that are in flight.
    pub(crate) retries_left: u8,
}

impl Part {
    /// The part with one retry less, if there is one left.
    fn again(self) -> Option<Self> {
        Some(Self { retries_left: self.retries_left.checked_sub(1)?, ..self })
    }
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) operation: Operation,
    ranges: Ranges,
    /// Blocks that were made into commands.
    cut: u64,
    /// Parts to be sent again.
    again: VecDeque<Part>,
    in_flight: u32,
    /// Parts that wait for their time to be sent again.
    delayed: u32,
    /// Of each part.
    retries: u8,
    failure: Option<Error>,
}

impl Progress {
    pub(crate) fn new(operation: Operation, ranges: Ranges, retries: u8) -> Self {
        Self {
            operation,
            ranges,
            cut: 0,
            again: VecDeque::new(),
            in_flight: 0,
            delayed: 0,
            retries,
            failure: None,
        }
    }

    /// The next part to send, if there is one. A request that failed sends nothing more.
    pub(crate) fn next_part(&mut self, limits: &Limits) -> Option<Part> {
        if !self.has_more() {
            return None;
        }
        let (offset, at_most) = match self.again.front() {
            Some(part) => (part.offset, u64::from(part.blocks)),
            None => (self.cut, self.total() - self.cut),
        };
        // Limits may have become smaller with a new connection.
        let (ranges, blocks) = if self.operation.kind == Kind::Deallocate {
            self.ranges.cut(offset, at_most, limits)
        } else {
            (0, u32::try_from(at_most.min(self.operation.max_blocks(limits))).ok()?)
        };
        let part = match self.again.pop_front() {
            Some(part) => {
                let rest = part.blocks - blocks;
                if rest > 0 {
                    let offset = part.offset + u64::from(blocks);
                    self.again.push_front(Part { offset, blocks: rest, ..part });
                }
                Part { blocks, ranges, ..part }
            }
            None => {
                self.cut += u64::from(blocks);
                Part { offset, blocks, ranges, retries_left: self.retries }
            }
        };
        self.in_flight += 1;
        Some(part)
    }

    /// The ranges of a part that was made with these limits.
    pub(crate) fn ranges_of(
        &self,
        part: Part,
        limits: &Limits,
    ) -> impl Iterator<Item = Range> + '_ {
        self.ranges.of_command(part.offset, u64::from(part.blocks), limits)
    }

    /// Whether there is something to send now. The commands of a request that deallocates have their ranges in the same
    /// memory, and are sent one after the other.
    pub(crate) fn has_more(&self) -> bool {
        let must_wait = self.operation.kind == Kind::Deallocate && self.in_flight > 0;
        let is_cut = self.again.is_empty() && self.cut >= self.total();
        self.failure.is_none() && !must_wait && !is_cut
    }

    fn total(&self) -> u64 {
        if self.operation.kind == Kind::Flush { 1 } else { self.operation.blocks }
    }

    /// A part completed.
    pub(crate) fn succeeded(&mut self) {
        self.in_flight -= 1;
    }

    /// A part failed, and with it the request; the first failure is the one that is told.
    pub(crate) fn failed(&mut self, error: Error) {
        self.in_flight -= 1;
        self.fail(error);
    }

    /// The request fails whatever its parts do.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
        self.again.clear();
    }

    /// A part ended without effect and may be sent again later: gives it as it is sent then, if a retry is left
    /// for it.
    pub(crate) fn delay(&mut self, part: Part) -> Option<Part> {
        let again = part.again().filter(|_| self.failure.is_none())?;
        self.in_flight -= 1;
        self.delayed += 1;
        Some(again)
    }

    /// The time of a part has come.
    pub(crate) fn end_delay(&mut self, part: Part) {
        self.delayed -= 1;
        if self.failure.is_none() {
            self.again.push_back(part);
        }
    }

    /// A part was not sent at all.
    pub(crate) fn not_sent(&mut self, part: Part) {
        self.in_flight -= 1;
        if self.failure.is_none() {
            self.again.push_front(part);
        }
    }

    /// A part was in flight when its connection was lost.
    pub(crate) fn lost(&mut self, part: Part, retry_writes: bool, cause: &Arc<Error>) {
        self.in_flight -= 1;
        let operation = self.operation.kind.name();
        match (self.operation.kind.after_loss(retry_writes), part.again()) {
            (AfterLoss::SendAgain, _) if self.failure.is_some() => {}
            (AfterLoss::SendAgain, Some(again)) => self.again.push_back(again),
            (AfterLoss::OutcomeUnknown, _) => {
                self.fail(Error::OutcomeUnknown { operation, cause: Arc::clone(cause) });
            }
            (AfterLoss::SendAgain | AfterLoss::Lost, _) => {
                self.fail(Error::ConnectionLost { operation, cause: Arc::clone(cause) });
            }
        }
    }

    /// Whether nothing is left to do or to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.in_flight == 0 && self.delayed == 0 && !self.has_more()
    }

    /// How it ended, once it is over.
    pub(crate) fn into_result(self) -> Result<()> {
        self.failure.map_or(Ok(()), Err)
    }
}

const fn widen(value: u32) -> u64 {
    let [a, b, c, d] = value.to_le_bytes();
    u64::from_le_bytes([a, b, c, d, 0, 0, 0, 0])
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wire::{
        identify_nvm::IdentifyNvm,
        property::{Configuration, Version},
    };

    pub(crate) fn limits(max_transfer: u32) -> Limits {
        Limits {
            controller_id: 1,
            version: Version::new(2, 0, 0),
            max_transfer,
            in_capsule_bytes: 4096,
            queue_entries: 128,
            configuration: Configuration::enabled(4096),
            nvm: IdentifyNvm::UNLIMITED,
            max_write_zeroes: None,
            dword_aligned: false,
            retry_delays: [Duration::ZERO; 3],
        }
    }

    pub(crate) fn operation(kind: Kind, blocks: u64) -> Operation {
        Operation {
            kind,
            namespace: 1,
            opening: 0,
            first_block: 100,
            blocks,
            block_bytes: 512,
            address: 0x1000,
            key: 7,
            flags: BlockFlags::empty(),
            tagged: false,
        }
    }

    fn parts(progress: &mut Progress, limits: &Limits) -> Vec<Part> {
        std::iter::from_fn(|| progress.next_part(limits)).collect()
    }

    const fn part(offset: u64, blocks: u32, retries_left: u8) -> Part {
        Part { offset, blocks, ranges: 0, retries_left }
    }

    #[test]
    fn a_request_is_cut_at_the_largest_transfer() {
        let mut progress = Progress::new(operation(Kind::Read, 20), Ranges::default(), 0);
        let cut = parts(&mut progress, &limits(4096));
        let expected = [(0, 8), (8, 8), (16, 4)];
        assert_eq!(cut, expected.map(|(offset, blocks)| part(offset, blocks, 0)));
        let command = progress.operation.command(cut[1]);
        assert_eq!(BlockCommand::from_command(&command).first_block, 108);
        assert_eq!(
            command.descriptor().unwrap(),
            Descriptor::Keyed { address: 0x2000, length: 4096, key: 7 }
        );
        assert!(!progress.is_over());
        for _ in cut {
            progress.succeeded();
        }
        assert!(progress.is_over());
        progress.into_result().unwrap();
    }

    #[test]
    fn absurd_limits_still_make_progress() {
        for max_transfer in [0, 1, 511, u32::MAX] {
            let mut progress = Progress::new(operation(Kind::Read, 100_000), Ranges::default(), 0);
            let cut = parts(&mut progress, &limits(max_transfer));
            assert_eq!(cut.iter().map(|part| u64::from(part.blocks)).sum::<u64>(), 100_000);
            assert!(cut.iter().all(|part| part.blocks <= 32_767));
        }
    }

    #[test]
    fn writing_zeroes_carries_no_data_and_is_cut_at_65536_blocks() {
        let zeroes = operation(Kind::WriteZeroes, 65_537);
        let mut progress = Progress::new(zeroes, Ranges::default(), 0);
        let cut = parts(&mut progress, &limits(4096));
        assert_eq!(cut.len(), 2);
        assert_eq!(zeroes.command(cut[0]).descriptor().unwrap(), Descriptor::NONE);
    }

    #[test]
    fn writing_zeroes_is_cut_at_its_own_limit_and_not_at_the_largest_transfer() {
        let zeroes = operation(Kind::WriteZeroes, 100_000);
        for (bytes, commands) in [(1 << 20, 49), (512, 100_000), (1, 100_000), (1 << 40, 2)] {
            let limits = Limits { max_write_zeroes: Some(bytes), ..limits(4096) };
            let cut = parts(&mut Progress::new(zeroes, Ranges::default(), 0), &limits);
            assert_eq!(cut.len(), commands, "{bytes}");
            assert_eq!(cut.iter().map(|part| u64::from(part.blocks)).sum::<u64>(), 100_000);
        }
    }

    #[test]
    fn commands_that_deallocate_follow_one_another_and_are_cut_again_when_limits_shrink() {
        let blocks = |most| Limits {
            nvm: IdentifyNvm { deallocate_blocks: most, ..IdentifyNvm::UNLIMITED },
            ..limits(4096)
        };
        let list = [Range { first_block: 10, blocks: 6 }, Range { first_block: 40, blocks: 6 }];
        let deallocate = operation(Kind::Deallocate, 12);
        let mut progress = Progress::new(deallocate, Ranges::new(&list), 1);
        let first = progress.next_part(&blocks(8)).unwrap();
        assert_eq!(first, Part { offset: 0, blocks: 8, ranges: 2, retries_left: 1 });
        assert!(!progress.has_more() && progress.next_part(&blocks(8)).is_none());
        let ranges: Vec<Range> = progress.ranges_of(first, &blocks(8)).collect();
        assert_eq!(ranges, [list[0], Range { first_block: 40, blocks: 2 }]);

        progress.lost(first, true, &Arc::new(Error::Closed));
        let mut sent = Vec::new();
        while let Some(part) = progress.next_part(&blocks(5)) {
            sent.extend(progress.ranges_of(part, &blocks(5)));
            assert!(!progress.is_over());
            progress.succeeded();
        }
        // The part that was lost, and then what had not been sent.
        let expected = [(10, 5), (15, 1), (40, 2), (42, 4)];
        let expected = expected.map(|(first_block, blocks)| Range { first_block, blocks });
        assert_eq!(sent, expected);
        assert!(progress.is_over());
        progress.into_result().unwrap();
    }

    #[test]
    fn flush_is_one_command_and_deallocate_is_another() {
        let flush = operation(Kind::Flush, 0);
        let mut progress = Progress::new(flush, Ranges::default(), 0);
        assert_eq!(parts(&mut progress, &limits(4096)).len(), 1);
        let ranges = Ranges::new(&[Range { first_block: 9, blocks: 1 }; 3]);
        let deallocate = operation(Kind::Deallocate, ranges.blocks());
        let cut = parts(&mut Progress::new(deallocate, ranges, 0), &limits(4096));
        assert_eq!(cut.len(), 1);
        let command = deallocate.command(cut[0]);
        assert_eq!(nvm::range_count(&command), 3);
        assert_eq!(command.descriptor().unwrap().length(), 48);
    }

    #[test]
    fn a_loss_repeats_reads_and_ends_writes_and_flushes() {
        let cause = Arc::new(Error::Closed);
        for (kind, retry_writes, repeats) in [
            (Kind::Read, false, true),
            (Kind::Compare, false, true),
            (Kind::Write, false, false),
            (Kind::Write, true, true),
            (Kind::WriteZeroes, false, false),
            (Kind::Deallocate, true, true),
            (Kind::Flush, true, false),
        ] {
            let ranges = match kind {
                Kind::Deallocate => Ranges::new(&[Range { first_block: 0, blocks: 1 }]),
                _ => Ranges::default(),
            };
            let mut progress = Progress::new(operation(kind, 1), ranges, 1);
            let part = progress.next_part(&limits(4096)).unwrap();
            progress.lost(part, retry_writes, &cause);
            assert_eq!(progress.is_over(), !repeats, "{kind:?}");
            if repeats {
                // The one retry is used up by the second loss.
                let part = progress.next_part(&limits(4096)).unwrap();
                progress.lost(part, retry_writes, &cause);
                assert!(progress.is_over());
            }
            progress.into_result().unwrap_err();
        }
    }

    #[test]
    fn a_request_that_failed_waits_for_its_other_parts() {
        let mut progress = Progress::new(operation(Kind::Write, 16), Ranges::default(), 0);
        progress.next_part(&limits(2048)).unwrap();
        progress.next_part(&limits(2048)).unwrap();
        progress.failed(Error::Closed);
        assert!(!progress.is_over() && progress.next_part(&limits(2048)).is_none());
        progress.succeeded();
        assert!(progress.is_over());
        assert!(matches!(progress.into_result(), Err(Error::Closed)));
    }

    #[test]
    fn parts_are_cut_again_when_limits_shrink() {
        let cause = Arc::new(Error::Closed);
        let mut progress = Progress::new(operation(Kind::Read, 16), Ranges::default(), 3);
        let whole = progress.next_part(&limits(8192)).unwrap();
        progress.lost(whole, false, &cause);
        let cut = parts(&mut progress, &limits(4096));
        assert_eq!(cut, [part(0, 8, 2), part(8, 8, 2)]);
    }

    #[test]
    fn a_loss_costs_each_part_one_retry_however_many_are_in_flight() {
        let cause = Arc::new(Error::Closed);
        let mut progress = Progress::new(operation(Kind::Read, 64), Ranges::default(), 2);
        for retries_left in [2, 1, 0] {
            let cut = parts(&mut progress, &limits(4096));
            assert_eq!(cut.len(), 8);
            for lost in cut {
                assert_eq!(lost.retries_left, retries_left);
                progress.lost(lost, false, &cause);
            }
            assert_eq!(progress.is_over(), retries_left == 0);
        }
        progress.into_result().unwrap_err();
    }

    #[test]
    fn delayed_parts_keep_a_request_alive() {
        let mut progress = Progress::new(operation(Kind::Write, 1), Ranges::default(), 1);
        let first = progress.next_part(&limits(4096)).unwrap();
        let again = progress.delay(first).unwrap();
        assert!(!progress.is_over() && !progress.has_more());
        progress.end_delay(again);
        assert_eq!(progress.next_part(&limits(4096)), Some(again));
        assert_eq!(progress.delay(again), None);
    }

    #[test]
    fn reference_tags_count_blocks() {
        let tagged = Operation {
            first_block: 0x1_0000_0005,
            tagged: true,
            flags: BlockFlags::PROTECTION_ACTION,
            ..operation(Kind::Write, 16)
        };
        let command = tagged.command(part(8, 8, 0));
        assert_eq!(BlockCommand::from_command(&command).reference_tag, 13);
    }
}
