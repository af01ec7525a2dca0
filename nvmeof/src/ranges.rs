//! The ranges of a request that deallocates, and how they are cut into those of its commands. No
//! input or output.

use std::iter;

use crate::{Buffer, association::Limits, wire::nvm::Range};

/// What a request that deallocates brings along.
#[derive(Debug)]
pub(crate) struct Deallocation {
    pub(crate) ranges: Ranges,
    /// Where the target finds the ranges of one command: [`Ranges::COMMAND_BYTES`].
    pub(crate) memory: Buffer,
}

/// Ranges of blocks, none of them empty; none for requests of other kinds.
///
/// A place in them is counted in blocks, as if they followed each other.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<Range>);

impl Ranges {
    /// Bytes of the ranges of any one command.
    pub(crate) const COMMAND_BYTES: usize = Range::MAX * Range::BYTES;

    /// Copies ranges that have been checked.
    pub(crate) fn new(ranges: &[Range]) -> Self {
        Self(ranges.to_vec())
    }

    /// Blocks of all of them.
    pub(crate) fn blocks(&self) -> u64 {
        self.0.iter().map(|range| u64::from(range.blocks)).sum()
    }

    /// The longest command that begins at a place and has `at_most` blocks: its ranges and blocks,
    /// at least one of each if there is anything at that place.
    pub(crate) fn cut(&self, offset: u64, at_most: u64, limits: &Limits) -> (u16, u32) {
        self.of_command(offset, at_most, limits)
            .fold((0, 0), |(ranges, blocks), range| (ranges + 1, blocks + range.blocks))
    }

    /// The ranges of that command, one after the other. Allocates nothing, however small they are.
    pub(crate) fn of_command(
        &self,
        offset: u64,
        at_most: u64,
        limits: &Limits,
    ) -> impl Iterator<Item = Range> + '_ {
        // Commands of so many blocks fit a number of 32 bits.
        let most = limits.nvm.max_deallocate_blocks().min(at_most).min(u64::from(u32::MAX));
        let mut left = u32::try_from(most).unwrap_or(u32::MAX);
        self.pieces(offset, limits.nvm.max_deallocate_range_blocks())
            .take(limits.nvm.max_deallocate_ranges())
            .map_while(move |piece| {
                let blocks = piece.blocks.min(left);
                left -= blocks;
                (blocks > 0).then_some(Range { blocks, ..piece })
            })
    }

    /// Everything from a place on, in pieces of at most so many blocks.
    fn pieces(&self, offset: u64, most: u32) -> impl Iterator<Item = Range> + '_ {
        let mut skipped = offset;
        self.0.iter().flat_map(move |range| {
            let skip = u32::try_from(skipped).unwrap_or(u32::MAX).min(range.blocks);
            skipped -= u64::from(skip);
            let mut left = Range {
                first_block: range.first_block.saturating_add(u64::from(skip)),
                blocks: range.blocks - skip,
            };
            iter::from_fn(move || {
                let piece = Range { blocks: left.blocks.min(most), ..left };
                left.blocks -= piece.blocks;
                left.first_block = left.first_block.saturating_add(u64::from(piece.blocks));
                (piece.blocks > 0).then_some(piece)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{request::tests::limits, testing::Random, wire::identify_nvm::IdentifyNvm};

    fn limited(ranges: u8, range_blocks: u32, blocks: u64) -> Limits {
        let nvm = IdentifyNvm {
            deallocate_ranges: ranges,
            deallocate_range_blocks: range_blocks,
            deallocate_blocks: blocks,
            ..IdentifyNvm::UNLIMITED
        };
        Limits { nvm, ..limits(4096) }
    }

    /// The commands that ranges become, as long as possible each.
    fn commands(ranges: &Ranges, limits: &Limits) -> Vec<Vec<(u64, u32)>> {
        let mut offset = 0;
        let mut commands = Vec::new();
        while offset < ranges.blocks() {
            let left = ranges.blocks() - offset;
            let (count, blocks) = ranges.cut(offset, left, limits);
            let command: Vec<(u64, u32)> = ranges
                .of_command(offset, u64::from(blocks), limits)
                .map(|range| (range.first_block, range.blocks))
                .collect();
            assert_eq!(command.len(), usize::from(count));
            offset += u64::from(blocks);
            commands.push(command);
        }
        commands
    }

    const LIST: [Range; 2] =
        [Range { first_block: 100, blocks: 10 }, Range { first_block: 7, blocks: 3 }];

    #[test]
    fn each_limit_cuts() {
        let ranges = Ranges::new(&LIST);
        let cut = |limits: Limits| commands(&ranges, &limits);
        assert_eq!(cut(limited(0, 0, 0)), [[(100, 10), (7, 3)]]);
        assert_eq!(cut(limited(1, 0, 0)), [[(100, 10)], [(7, 3)]]);
        assert_eq!(cut(limited(0, 4, 0)), [[(100, 4), (104, 4), (108, 2), (7, 3)]]);
        assert_eq!(cut(limited(0, 0, 11)), [vec![(100, 10), (7, 1)], vec![(8, 2)]]);
        assert_eq!(cut(limited(2, 4, 7)), [vec![(100, 4), (104, 3)], vec![(107, 3), (7, 3)]]);
    }

    #[test]
    fn absurd_limits_cost_commands_and_no_memory() {
        let whole = Ranges::new(&[Range { first_block: u64::MAX - 1, blocks: u32::MAX }; 256]);
        assert_eq!(whole.blocks(), 256 * u64::from(u32::MAX));
        // As many blocks as the number of them can tell.
        assert_eq!(whole.cut(0, whole.blocks(), &limited(0, 0, 0)), (1, u32::MAX));
        assert_eq!(whole.cut(5, whole.blocks(), &limited(0, 0, 0)), (2, u32::MAX));
        assert_eq!(whole.cut(5, whole.blocks(), &limited(0, 1, 0)), (256, 256));
        assert_eq!(whole.cut(5, whole.blocks(), &limited(0, 0, 1)), (1, 1));
        assert_eq!(whole.cut(whole.blocks(), 1, &limited(0, 0, 0)), (0, 0));
    }

    #[test]
    fn whatever_the_limits_every_block_is_named_once_and_in_order() {
        let mut random = Random::new(31);
        for _ in 0..2_000 {
            let list: Vec<Range> = (0..=random.below(6))
                .map(|_| Range {
                    first_block: u64::try_from(random.below(1000)).unwrap(),
                    blocks: 1 + u32::try_from(random.below(40)).unwrap(),
                })
                .collect();
            let ranges = Ranges::new(&list);
            let most = (random.below(4), random.below(20), random.below(30));
            let limits = limited(
                u8::try_from(most.0).unwrap(),
                u32::try_from(most.1).unwrap(),
                u64::try_from(most.2).unwrap(),
            );
            let commands = commands(&ranges, &limits);
            for command in &commands {
                assert!(command.len() <= limits.nvm.max_deallocate_ranges());
                let sum: u64 = command.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
                assert!(sum <= limits.nvm.max_deallocate_blocks());
                let longest = command.iter().map(|(_, blocks)| *blocks).max();
                assert!(longest <= Some(limits.nvm.max_deallocate_range_blocks()));
            }
            let all = |first: u64, blocks: u32| first..first + u64::from(blocks);
            let named =
                commands.into_iter().flatten().flat_map(|(first, blocks)| all(first, blocks));
            let asked = list.iter().flat_map(|range| all(range.first_block, range.blocks));
            assert!(named.eq(asked));
        }
    }
}
