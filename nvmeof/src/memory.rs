//! Memory that a target reads and writes by itself.

use std::{fmt, ops::Range, sync::Arc};

use ibverbs::{Access, ProtectionDomain};

use crate::{Error, Result};

/// Registered memory that can be the data of a command.
///
/// The target reaches it by address and key while a command with it is in flight, and a target
/// that breaks the protocol at any time until it is deregistered. Implementations therefore own
/// memory that stays in place, and that safe code reaches by copying only; see
/// [`ibverbs::MemoryRegion`]. The registration has to allow remote reads for writing to a
/// namespace, and local and remote writes for reading from it.
pub trait Memory: Send {
    /// Where it begins, as the target names it.
    fn address(&self) -> u64;

    /// The key by which the target reaches it.
    fn remote_key(&self) -> u32;

    /// Bytes.
    fn length(&self) -> usize;

    /// Copies bytes from `offset` on into `into`, and tells whether it could: memory of a GPU need
    /// not be in reach of the processor. Small writes are then sent without this shortcut.
    fn copy_to(&self, offset: usize, into: &mut [u8]) -> bool;

    /// Makes sure that the memory is registered in this domain with at least these rights. Called before a
    /// command is sent: a target that may not reach the memory ends the connection, and with it the
    /// requests of everybody else. If not implemented, nothing is known about it and nothing refused.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] with what does not fit; the command is not sent then.
    fn check_registration(&self, domain: &ProtectionDomain<'_>, rights: Access) -> Result<()> {
        let _unknown = (domain, rights);
        Ok(())
    }

    /// Makes what was computed before visible to a device that reads the memory next. Called
    /// before a command that writes to a namespace. Memory of the processor has nothing to do.
    ///
    /// # Errors
    ///
    /// Whatever the memory's owner says; the command is not sent then.
    fn before_device_reads(&self) -> Result<()> {
        Ok(())
    }

    /// Waits until nothing else uses the memory that a device writes next. Called before a command
    /// that reads from a namespace. Memory of the processor has nothing to do.
    ///
    /// # Errors
    ///
    /// Whatever the memory's owner says; the command is not sent then.
    fn before_device_writes(&self) -> Result<()> {
        Ok(())
    }

    /// Makes what a device wrote visible to what reads the memory next. Called after a command
    /// that reads from a namespace. Memory of the processor has nothing to do.
    ///
    /// # Errors
    ///
    /// Whatever the memory's owner says; the request fails with it.
    fn after_device_writes(&self) -> Result<()> {
        Ok(())
    }
}

macro_rules! memory_behind_a_pointer {
    ($($generics:tt)*) => {
        impl $($generics)* {
            fn address(&self) -> u64 {
                (**self).address()
            }

            fn remote_key(&self) -> u32 {
                (**self).remote_key()
            }

            fn length(&self) -> usize {
                (**self).length()
            }

            fn copy_to(&self, offset: usize, into: &mut [u8]) -> bool {
                (**self).copy_to(offset, into)
            }

            fn check_registration(
                &self,
                domain: &ProtectionDomain<'_>,
                rights: Access,
            ) -> Result<()> {
                (**self).check_registration(domain, rights)
            }

            fn before_device_reads(&self) -> Result<()> {
                (**self).before_device_reads()
            }

            fn before_device_writes(&self) -> Result<()> {
                (**self).before_device_writes()
            }

            fn after_device_writes(&self) -> Result<()> {
                (**self).after_device_writes()
            }
        }
    };
}

memory_behind_a_pointer!(<M: Memory + Sync + ?Sized> Memory for &M);
memory_behind_a_pointer!(<M: Memory + ?Sized> Memory for Box<M>);
memory_behind_a_pointer!(<M: Memory + Sync + ?Sized> Memory for Arc<M>);

/// A part of some memory.
#[derive(Clone, Debug)]
pub struct Part<M> {
    memory: M,
    offset: usize,
    length: usize,
}

impl<M: Memory> Part<M> {
    /// The bytes of `memory` in `range`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range begins after its end, or ends after the memory's.
    pub fn new(memory: M, range: Range<usize>) -> Result<Self> {
        let outside = |asked: usize, min: usize, max: usize| Error::OutOfRange {
            what: "a bound of the part",
            asked: wide(asked),
            min: wide(min),
            max: wide(max),
        };
        if range.end > memory.length() {
            return Err(outside(range.end, range.start, memory.length()));
        }
        match range.end.checked_sub(range.start) {
            Some(length) => Ok(Self { memory, offset: range.start, length }),
            None => Err(outside(range.start, 0, range.end)),
        }
    }

    /// The memory that this is a part of.
    pub fn into_inner(self) -> M {
        self.memory
    }
}

impl<M: Memory> Memory for Part<M> {
    fn address(&self) -> u64 {
        self.memory.address().wrapping_add(wide(self.offset))
    }

    fn remote_key(&self) -> u32 {
        self.memory.remote_key()
    }

    fn length(&self) -> usize {
        self.length
    }

    fn copy_to(&self, offset: usize, into: &mut [u8]) -> bool {
        let fits = offset.checked_add(into.len()).is_some_and(|end| end <= self.length);
        fits && self.memory.copy_to(self.offset + offset, into)
    }

    fn check_registration(&self, domain: &ProtectionDomain<'_>, rights: Access) -> Result<()> {
        self.memory.check_registration(domain, rights)
    }

    fn before_device_reads(&self) -> Result<()> {
        self.memory.before_device_reads()
    }

    fn before_device_writes(&self) -> Result<()> {
        self.memory.before_device_writes()
    }

    fn after_device_writes(&self) -> Result<()> {
        self.memory.after_device_writes()
    }
}

/// Memory of the processor, registered for one controller.
///
/// Its bytes are copied in and out, since the target may write to it at any time.
pub struct Buffer(Box<dyn HostMemory>);

/// What a transport makes buffers of.
pub(crate) trait HostMemory: Memory + Sync + fmt::Debug {
    /// Copies `from` to `offset`, and tells whether there was room.
    fn copy_from(&self, offset: usize, from: &[u8]) -> bool;
}

impl Buffer {
    pub(crate) fn new(memory: Box<dyn HostMemory>) -> Self {
        Self(memory)
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.length()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the buffer ends before.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let length = into.len();
        if self.0.copy_to(offset, into) { Ok(()) } else { Err(self.outside(offset, length)) }
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the buffer ends before.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        if self.0.copy_from(offset, from) { Ok(()) } else { Err(self.outside(offset, from.len())) }
    }

    /// All bytes, copied into a new vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        if self.0.copy_to(0, &mut bytes) { bytes } else { Vec::new() }
    }

    fn outside(&self, offset: usize, length: usize) -> Error {
        Error::OutOfRange {
            what: "the end of the copy",
            asked: wide(offset).saturating_add(wide(length)),
            min: 0,
            max: wide(self.len()),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffer").field(&self.0).finish()
    }
}

impl Memory for Buffer {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn remote_key(&self) -> u32 {
        self.0.remote_key()
    }

    fn length(&self) -> usize {
        self.0.length()
    }

    fn copy_to(&self, offset: usize, into: &mut [u8]) -> bool {
        self.0.copy_to(offset, into)
    }

    fn check_registration(&self, domain: &ProtectionDomain<'_>, rights: Access) -> Result<()> {
        self.0.check_registration(domain, rights)
    }
}

/// Checks where and for what some memory is registered against what a controller needs.
pub(crate) fn check_registration(
    (registered, rights): (&ProtectionDomain<'_>, Access),
    (needed, needed_rights): (&ProtectionDomain<'_>, Access),
) -> Result<()> {
    if registered.as_raw() != needed.as_raw() {
        return Err(Error::InvalidArgument {
            what: "memory",
            given: "of another protection domain".to_owned(),
            rule: "is registered with the controller that it is used with: by Controller::allocate, by \
                   Controller::register, or in Controller::protection_domain",
        });
    }
    let missing = needed_rights - rights;
    if !missing.is_empty() {
        return Err(Error::InvalidArgument {
            what: "memory",
            given: format!("registered without {missing:?}"),
            rule: "allows remote reads to be written to a namespace, local and remote writes to be read into",
        });
    }
    Ok(())
}

/// A length as the wire and the errors have it.
pub(crate) fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
