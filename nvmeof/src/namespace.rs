//! Namespaces: ranges of blocks that are read and written.

use std::sync::Arc;

use crate::{
    Error, Memory, Result,
    association::Limits,
    controller::Inner,
    memory::wide,
    ranges::{Deallocation, Ranges},
    request::{Kind, Operation},
    wire::{
        admin::IdentifyStructure,
        block_format::ProtectionType,
        identify::OptionalCommands,
        identify_namespace::{IdentifyNamespace, NamespaceName, parse_namespace_names},
        nvm::{BlockFlags, Range},
    },
};

/// A namespace of a controller. It keeps the controller connected while it lives.
///
/// Its methods block, and may be called from many threads at once: each thread uses one of the
/// controller's queues that nobody has taken. Requests of any length are cut into commands as
/// large as the target takes, and these are in flight at the same time.
#[derive(Debug)]
pub struct Namespace {
    inner: Arc<Inner>,
    geometry: Geometry,
    names: Vec<NamespaceName>,
}

/// What a request needs to know of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) namespace: u32,
    /// Set by [`Openings::number`].
    opening: u32,
    pub(crate) block_bytes: u32,
    pub(crate) blocks: u64,
    /// Flags of every command that carries blocks: the controller makes, checks and strips
    /// protection information.
    protection: BlockFlags,
    tagged: bool,
    is_write_protected: bool,
    commands: OptionalCommands,
    dword_aligned: bool,
}

impl Geometry {
    fn new(
        namespace: u32,
        identify: &IdentifyNamespace,
        commands: OptionalCommands,
        dword_aligned: bool,
    ) -> Result<Self> {
        if identify.size_in_blocks == 0 {
            return Err(Error::InvalidArgument {
                what: "namespace",
                given: namespace.to_string(),
                rule: "has blocks if it is one that Controller::namespaces lists; this one has none",
            });
        }
        let format = identify.format().ok_or(Error::Unsupported {
            what: "the format of the namespace",
            reason: "it is not in the controller's list",
        })?;
        let block_bytes = format.block_bytes().ok_or(Error::Unsupported {
            what: "the block size of the namespace",
            reason: "it is not a power of two from 512 bytes to 2 GiB",
        })?;
        let check_tag = BlockFlags::CHECK_REFERENCE_TAG;
        let act = BlockFlags::PROTECTION_ACTION | BlockFlags::CHECK_GUARD;
        let (protection, tagged) = match (format.metadata_bytes, identify.protection) {
            (0, _) => (BlockFlags::empty(), false),
            (8, ProtectionType::TYPE_1 | ProtectionType::TYPE_2) => (act | check_tag, true),
            (8, ProtectionType::TYPE_3) => (act, false),
            _ => {
                return Err(Error::Unsupported {
                    what: "the metadata of the namespace",
                    reason: "only protection information that fills all of it is, which the \
                             controller makes and checks; format the namespace without metadata",
                });
            }
        };
        if identify.size_in_blocks.checked_mul(u64::from(block_bytes)).is_none() {
            return Err(Error::OutOfRange {
                what: "the size of the namespace in blocks",
                asked: identify.size_in_blocks,
                min: 1,
                max: u64::MAX / u64::from(block_bytes),
            });
        }
        Ok(Self {
            namespace,
            opening: 0,
            block_bytes,
            blocks: identify.size_in_blocks,
            protection,
            tagged,
            is_write_protected: identify.is_write_protected,
            commands,
            dword_aligned,
        })
    }

    /// An operation on the blocks that fill `memory`.
    pub(crate) fn with_data(
        &self,
        kind: Kind,
        first_block: u64,
        memory: &dyn Memory,
        flags: BlockFlags,
    ) -> Result<Operation> {
        let length = wide(memory.length());
        let block_bytes = u64::from(self.block_bytes);
        if length == 0 || !length.is_multiple_of(block_bytes) {
            return Err(Error::InvalidArgument {
                what: "data",
                given: format!("{length} bytes"),
                rule: "is one block or more, and a whole number of them",
            });
        }
        if self.dword_aligned && !memory.address().is_multiple_of(4) {
            return Err(Error::InvalidArgument {
                what: "the address of the data",
                given: format!("{:#x}", memory.address()),
                rule: "is a multiple of four for this controller",
            });
        }
        self.check(kind)?;
        let blocks = length / block_bytes;
        self.check_range(first_block, blocks)?;
        Ok(Operation {
            kind,
            namespace: self.namespace,
            opening: self.opening,
            first_block,
            blocks,
            block_bytes: self.block_bytes,
            address: memory.address(),
            key: memory.remote_key(),
            flags: flags | self.protection,
            tagged: self.tagged,
        })
    }

    /// An operation without data of the user's.
    pub(crate) fn without_data(
        &self,
        kind: Kind,
        first_block: u64,
        blocks: u64,
        flags: BlockFlags,
    ) -> Result<Operation> {
        self.check(kind)?;
        if kind == Kind::WriteZeroes {
            self.check_range(first_block, blocks)?;
        }
        let carries_blocks = kind == Kind::WriteZeroes;
        Ok(Operation {
            kind,
            namespace: self.namespace,
            opening: self.opening,
            first_block,
            blocks,
            block_bytes: self.block_bytes,
            address: 0,
            key: 0,
            // Zeros come with protection information that the controller makes; there is nothing to check, and a
            // controller refuses to be asked to.
            flags: if carries_blocks {
                flags | self.protection & BlockFlags::PROTECTION_ACTION
            } else {
                flags
            },
            tagged: self.tagged && carries_blocks,
        })
    }

    /// An operation that deallocates ranges, and these as they are cut into commands.
    pub(crate) fn deallocation(
        &self,
        ranges: &[Range],
        flags: BlockFlags,
    ) -> Result<(Operation, Ranges)> {
        if !(1..=Range::MAX).contains(&ranges.len()) {
            return Err(Error::OutOfRange {
                what: "the number of ranges",
                asked: wide(ranges.len()),
                min: 1,
                max: wide(Range::MAX),
            });
        }
        for range in ranges {
            self.check_range(range.first_block, u64::from(range.blocks))?;
        }
        let ranges = Ranges::new(ranges);
        let operation = self.without_data(Kind::Deallocate, 0, ranges.blocks(), flags)?;
        Ok((operation, ranges))
    }

    fn check(&self, kind: Kind) -> Result<()> {
        let is_there = match kind {
            Kind::Read | Kind::Write | Kind::Flush => true,
            Kind::Compare => self.commands.has_compare(),
            Kind::WriteZeroes => self.commands.has_write_zeroes(),
            Kind::Deallocate => self.commands.has_dataset_management(),
        };
        let changes = matches!(kind, Kind::Write | Kind::WriteZeroes | Kind::Deallocate);
        if !is_there {
            Err(Error::Unsupported { what: kind.name(), reason: "the controller does not have it" })
        } else if kind == Kind::Compare && !self.protection.is_empty() {
            Err(Error::Unsupported {
                what: kind.name(),
                reason: "the namespace carries protection information, which would have to be sent along \
                         to be compared; read the blocks and compare them here",
            })
        } else if changes && self.is_write_protected {
            Err(Error::Unsupported {
                what: kind.name(),
                reason: "the namespace is write protected",
            })
        } else {
            Ok(())
        }
    }

    fn check_range(&self, first_block: u64, blocks: u64) -> Result<()> {
        match first_block.checked_add(blocks) {
            Some(end) if blocks > 0 && end <= self.blocks => Ok(()),
            _ => Err(Error::OutOfRange {
                what: "the last block",
                asked: first_block.saturating_add(blocks).saturating_sub(1),
                min: first_block.min(self.blocks - 1),
                max: self.blocks - 1,
            }),
        }
    }
}

/// What was opened: a namespace as it was then.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) geometry: Geometry,
    pub(crate) names: Vec<NamespaceName>,
}

impl Opened {
    /// Reads what a controller says about a namespace.
    pub(crate) fn read(
        namespace: u32,
        commands: OptionalCommands,
        limits: &Limits,
        mut identify: impl FnMut(&'static str, IdentifyStructure) -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let page = identify("identify namespace", IdentifyStructure::NAMESPACE)?;
        let page = IdentifyNamespace::parse(&page)?;
        let geometry = Geometry::new(namespace, &page, commands, limits.dword_aligned)?;
        if limits.max_transfer < geometry.block_bytes {
            return Err(Error::OutOfRange {
                what: "the largest transfer in bytes",
                asked: u64::from(limits.max_transfer),
                min: u64::from(geometry.block_bytes),
                max: u64::from(u32::MAX),
            });
        }
        let structure = IdentifyStructure::NAMESPACE_DESCRIPTORS;
        let names = match identify("identify namespace descriptors", structure) {
            Ok(page) => parse_namespace_names(&page)?,
            // Controllers before version 1.3 have no descriptors.
            Err(Error::Command { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        // A controller that was told to have all its command sets has namespaces of others too.
        if names.iter().any(|name| matches!(name, NamespaceName::CommandSet(set) if *set != 0)) {
            return Err(Error::Unsupported {
                what: "the command set of the namespace",
                reason: "only the NVM command set is, not zones or keys and values",
            });
        }
        Ok(Self { geometry, names })
    }

    /// Whether requests made for `self` are right for `other` too: the same namespace by its
    /// names, in the same format, at least as large.
    fn is_good_for(&self, other: &Self) -> bool {
        let as_it_was = |geometry: &Geometry| Geometry { opening: 0, blocks: 0, ..*geometry };
        self.names == other.names
            && as_it_was(&self.geometry) == as_it_was(&other.geometry)
            && self.geometry.blocks <= other.geometry.blocks
    }
}

/// Everything that was opened through one controller, each version of a namespace once.
#[derive(Debug, Default)]
pub(crate) struct Openings(Vec<Opened>);

impl Openings {
    /// Numbers what was opened, as the same version was numbered before.
    pub(crate) fn number(&mut self, mut opened: Opened) -> Opened {
        let known = self.0.iter().find(|known| {
            known.is_good_for(&opened) && known.geometry.blocks == opened.geometry.blocks
        });
        if let Some(known) = known {
            return known.clone();
        }
        opened.geometry.opening = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.push(opened.clone());
        opened
    }

    /// The namespaces that were opened.
    pub(crate) fn namespaces(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.0.iter().map(|known| known.geometry.namespace).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The openings of a namespace that do not fit what it is now.
    pub(crate) fn stale(&self, namespace: u32, now: Option<&Opened>) -> Vec<u32> {
        self.0
            .iter()
            .filter(|known| known.geometry.namespace == namespace)
            .filter(|known| !now.is_some_and(|now| known.is_good_for(now)))
            .map(|known| known.geometry.opening)
            .collect()
    }
}

impl Namespace {
    pub(crate) fn new(inner: Arc<Inner>, opened: Opened) -> Self {
        let Opened { geometry, names } = opened;
        Self { inner, geometry, names }
    }

    pub(crate) const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Its identifier within the subsystem.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.geometry.namespace
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.geometry.block_bytes
    }

    /// Blocks that it has.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.geometry.blocks
    }

    /// Bytes that it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.geometry.blocks * u64::from(self.geometry.block_bytes)
    }

    /// Names that stay with it whatever controller it is seen through; none from old controllers.
    #[must_use]
    pub fn names(&self) -> &[NamespaceName] {
        &self.names
    }

    /// Reads blocks from `first_block` on until `memory` is full. Blocks until then.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] or [`Error::OutOfRange`] if `memory` is not a whole number of
    /// blocks, reaches past the end, or is not registered for this controller; [`Error::Command`] for whatever the target says;
    /// [`Error::TimedOut`], [`Error::ConnectionLost`] or [`Error::Disconnected`] if it says
    /// nothing. What `memory` holds then is not known.
    pub fn read(&self, first_block: u64, memory: &(impl Memory + ?Sized + Sync)) -> Result<()> {
        let memory: &dyn Memory = &memory;
        let flags = BlockFlags::empty();
        let operation = self.geometry.with_data(Kind::Read, first_block, memory, flags)?;
        self.inner.check_writable(memory)?;
        memory.before_device_writes()?;
        self.inner.run(operation, Some(memory), None)?;
        memory.after_device_writes()
    }

    /// Writes all of `memory` to the blocks from `first_block` on. Blocks until the target has
    /// acknowledged all of them, which need not mean that they are on non-volatile media:
    /// [`Namespace::flush`] and [`Namespace::write_through`] make sure of that.
    ///
    /// # Errors
    ///
    /// As [`Namespace::read`], and [`Error::OutcomeUnknown`] if the connection was lost. Any part
    /// of the blocks may have been written then.
    pub fn write(&self, first_block: u64, memory: &(impl Memory + ?Sized + Sync)) -> Result<()> {
        self.send(Kind::Write, first_block, &memory, BlockFlags::empty())
    }

    /// As [`Namespace::write`], with the blocks on non-volatile media at the end (FUA).
    ///
    /// # Errors
    ///
    /// As [`Namespace::write`].
    pub fn write_through(
        &self,
        first_block: u64,
        memory: &(impl Memory + ?Sized + Sync),
    ) -> Result<()> {
        self.send(Kind::Write, first_block, &memory, BlockFlags::FORCE_UNIT_ACCESS)
    }

    /// Compares all of `memory` with the blocks from `first_block` on; tells whether they are the
    /// same.
    ///
    /// # Errors
    ///
    /// As [`Namespace::read`], and [`Error::Unsupported`] if the controller cannot compare, or the namespace carries
    /// protection information.
    pub fn compare(
        &self,
        first_block: u64,
        memory: &(impl Memory + ?Sized + Sync),
    ) -> Result<bool> {
        let compared = self.send(Kind::Compare, first_block, &memory, BlockFlags::empty());
        match compared {
            Ok(()) => Ok(true),
            Err(Error::Command { status, .. })
                if status.is_same_code(crate::Status::COMPARE_FAILURE) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until everything that the present connection acknowledged before is on non-volatile media. What an
    /// earlier one acknowledged is too, unless the target lost its memory in between:
    /// [`Controller::connections`](crate::Controller::connections) tells whether there could have been
    /// such a time.
    ///
    /// # Errors
    ///
    /// [`Error::ConnectionLost`] if the connection was lost in the meantime, or there is none; what was
    /// written before may be lost then, if the target lost its memory. Others as [`Namespace::read`].
    pub fn flush(&self) -> Result<()> {
        let operation = self.geometry.without_data(Kind::Flush, 0, 0, BlockFlags::empty())?;
        self.inner.run(operation, None, None)
    }

    /// Makes `blocks` blocks from `first_block` on read as zeros, without sending any; in several commands
    /// at once if the controller takes fewer in one.
    ///
    /// # Errors
    ///
    /// As [`Namespace::write`], and [`Error::Unsupported`] if the controller cannot.
    pub fn write_zeroes(&self, first_block: u64, blocks: u64) -> Result<()> {
        let flags = BlockFlags::empty();
        let operation =
            self.geometry.without_data(Kind::WriteZeroes, first_block, blocks, flags)?;
        self.inner.run(operation, None, None)
    }

    /// Tells the target that the content of these ranges, 1 to 256, is not needed any more. What
    /// they read as afterwards is the target's choice. Registers a page of memory; sends several
    /// commands one after the other if the controller takes fewer ranges or blocks in one.
    ///
    /// # Errors
    ///
    /// As [`Namespace::write`], and [`Error::Unsupported`] if the controller cannot.
    pub fn deallocate(&self, ranges: &[Range]) -> Result<()> {
        let (operation, ranges) = self.geometry.deallocation(ranges, BlockFlags::empty())?;
        let (operation, own) = self.inner.with_memory(operation, ranges)?;
        self.inner.run(operation, None, Some(own))
    }

    fn send(
        &self,
        kind: Kind,
        first_block: u64,
        memory: &dyn Memory,
        flags: BlockFlags,
    ) -> Result<()> {
        let operation = self.geometry.with_data(kind, first_block, memory, flags)?;
        self.inner.check_readable(memory)?;
        memory.before_device_reads()?;
        self.inner.run(operation, Some(memory), None)
    }
}

impl Inner {
    /// Finds memory for the ranges of an operation that deallocates.
    pub(crate) fn with_memory(
        &self,
        operation: Operation,
        ranges: Ranges,
    ) -> Result<(Operation, Deallocation)> {
        let memory = self.allocate(Ranges::COMMAND_BYTES)?;
        let (address, key) = (memory.address(), memory.remote_key());
        Ok((Operation { address, key, ..operation }, Deallocation { ranges, memory }))
    }
}
