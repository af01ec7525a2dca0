//! Memory that a region can own: it stays where it is while its owner moves.
#![expect(unsafe_code, reason = "takes owners of memory apart and puts them together again")]

use std::{
    alloc::{self, Layout},
    fmt, io,
    mem::ManuallyDrop,
    ptr::{self, NonNull},
};

use crate::{Error, Result, Verb};

/// Something a memory region can own and give back.
///
/// # Safety
///
/// What `into_raw` returns keeps the memory allocated at one place, however it is moved, until it goes
/// through `from_raw`. Dropping it instead must not free the memory.
#[diagnostic::on_unimplemented(
    message = "a memory region cannot own a `{Self}`",
    label = "not a buffer that stays where it is",
    note = "regions own a `Vec<T>`, a `Box<[T]>`, `PageAligned` or `HugePages`; borrowed memory is registered by `ProtectionDomain::scope`, memory of others by `register_raw`"
)]
pub unsafe trait Buffer: Sized {
    /// The owner taken apart: no reference, no `Box`, nothing that claims to be the only way to the memory.
    type Raw;

    /// Takes the owner apart.
    fn into_raw(self) -> Self::Raw;

    /// Puts the owner together again.
    ///
    /// # Safety
    ///
    /// `raw` came from `into_raw` of this type, goes through here once, and nobody else uses the
    /// memory any more.
    unsafe fn from_raw(raw: Self::Raw) -> Self;
}

/// A buffer that the CPU can reach at the address the device is told.
///
/// # Safety
///
/// `address` and `length` describe initialised memory of plain old data, allocated, writable and used by
/// nobody else, from `into_raw` on until `from_raw`; they do not change. Any bytes are valid there.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be registered",
    label = "not a buffer that stays where it is",
    note = "regions own a `Vec<T>`, a `Box<[T]>`, `PageAligned` or `HugePages`; borrowed memory is registered by `ProtectionDomain::scope`, memory of others by `register_raw`"
)]
pub unsafe trait HostBuffer: Buffer {
    /// The first byte.
    fn address(raw: &Self::Raw) -> NonNull<u8>;

    /// The length in bytes.
    fn length(raw: &Self::Raw) -> usize;
}

/// Plain old data: every pattern of bytes is a value, and there is no padding.
///
/// # Safety
///
/// Both hold for the type.
#[diagnostic::on_unimplemented(
    message = "not every pattern of bytes is a `{Self}`",
    label = "not plain old data",
    note = "devices and peers write any bytes: register numbers or arrays of numbers, such as `Vec<u8>`, `Vec<f32>` or `Vec<[u64; 4]>`"
)]
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($number:ty)*) => {
        $(
            // SAFETY: a number has no padding, and each pattern of its bits is one.
            unsafe impl Plain for $number {}
        )*
    };
}
plain! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 }

// SAFETY: an array has no padding between its elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A vector taken apart.
#[derive(Debug)]
pub struct RawVec<T> {
    address: NonNull<T>,
    length: usize,
    capacity: usize,
}

// SAFETY: the elements lie on the heap and do not move with the vector; the parts own nothing.
unsafe impl<T: Plain> Buffer for Vec<T> {
    type Raw = RawVec<T>;

    fn into_raw(self) -> RawVec<T> {
        let mut vec = ManuallyDrop::new(self);
        let address = NonNull::new(vec.as_mut_ptr()).unwrap_or(NonNull::dangling());
        RawVec { address, length: vec.len(), capacity: vec.capacity() }
    }

    unsafe fn from_raw(raw: RawVec<T>) -> Self {
        // SAFETY: these are the parts of a vector that was not dropped, by this function's contract.
        unsafe { Self::from_raw_parts(raw.address.as_ptr(), raw.length, raw.capacity) }
    }
}

// SAFETY: these are a vector's elements, all initialised, and `Plain` takes any bytes.
unsafe impl<T: Plain> HostBuffer for Vec<T> {
    fn address(raw: &RawVec<T>) -> NonNull<u8> {
        raw.address.cast()
    }

    fn length(raw: &RawVec<T>) -> usize {
        raw.length * size_of::<T>()
    }
}

// SAFETY: as for vectors.
unsafe impl<T: Plain> Buffer for Box<[T]> {
    type Raw = RawVec<T>;

    fn into_raw(self) -> RawVec<T> {
        self.into_vec().into_raw()
    }

    unsafe fn from_raw(raw: RawVec<T>) -> Self {
        // SAFETY: by this function's contract; a boxed slice is a vector without spare capacity.
        unsafe { Vec::from_raw(raw) }.into_boxed_slice()
    }
}

// SAFETY: as for vectors.
unsafe impl<T: Plain> HostBuffer for Box<[T]> {
    fn address(raw: &RawVec<T>) -> NonNull<u8> {
        Vec::address(raw)
    }

    fn length(raw: &RawVec<T>) -> usize {
        Vec::length(raw)
    }
}

/// Zeroed memory that starts at a page, for devices and file I/O that want it so.
pub struct PageAligned {
    /// From the allocator with `layout`, initialised; freed only by drop.
    address: NonNull<u8>,
    layout: Layout,
}

impl PageAligned {
    /// The alignment: the smallest page of the machine.
    pub const ALIGNMENT: usize = 4096;

    /// Allocates `length` zeroed bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for 0 and for more than the address space has, [`Error::Verb`] with `ENOMEM` if
    /// the memory is not there.
    pub fn new(length: usize) -> Result<Self> {
        let largest = isize::MAX.unsigned_abs() & !(Self::ALIGNMENT - 1);
        Error::check("the length of a buffer", length as u64, 1, largest as u64)?;
        let layout =
            Layout::from_size_align(length, Self::ALIGNMENT).map_err(|_| Error::Invalid {
                what: format!("a buffer of {length} bytes does not fit the address space").into(),
                remedy: "ask for less",
            })?;
        // SAFETY: the layout's size is not 0.
        let address = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(|| {
            Verb::new("aligned_alloc").error(io::Error::from_raw_os_error(libc::ENOMEM))
        })?;
        Ok(Self { address, layout })
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: by the field's invariant, borrowed from the only owner.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.layout.size()) }
    }

    /// The bytes.
    #[expect(clippy::disallowed_methods, reason = "no device knows this memory yet")]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: by the field's invariant, borrowed mutably from the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.layout.size()) }
    }
}

impl Drop for PageAligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nothing uses it after this.
        unsafe { alloc::dealloc(self.address.as_ptr(), self.layout) };
    }
}

/// Zeroed memory in huge pages, which a device's translation tables hold more easily.
///
/// Needs pages set aside: `sysctl vm.nr_hugepages`.
pub struct HugePages {
    /// A private mapping of `length` bytes; unmapped only by drop.
    address: NonNull<u8>,
    length: usize,
}

impl HugePages {
    /// Maps at least `length` bytes, rounded up to whole huge pages of the default size given in
    /// bytes by `page`, usually 2 MiB.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a length of 0, [`Error::Invalid`] for a page that is not a power of two, [`Error::Verb`]
    /// with `ENOMEM` if too few huge pages are set aside. See `mmap(2)`.
    pub fn new(length: usize, page: usize) -> Result<Self> {
        if !page.is_power_of_two() {
            return Err(Error::Invalid {
                what: format!("no machine has huge pages of {page} bytes").into(),
                remedy: "name the size that `grep Hugepagesize /proc/meminfo` says, usually 2 MiB",
            });
        }
        let largest = isize::MAX.unsigned_abs().saturating_sub(page);
        Error::check("the length of a buffer", length as u64, 1, largest as u64)?;
        let length = length.next_multiple_of(page);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let address = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
        let address = if address == libc::MAP_FAILED { ptr::null_mut() } else { address };
        let address = Verb::new("mmap").object(address)?.cast();
        Ok(Self { address, length })
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: by the field's invariant, borrowed from the only owner.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.length) }
    }

    /// The bytes.
    #[expect(clippy::disallowed_methods, reason = "no device knows this memory yet")]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: by the field's invariant, borrowed mutably from the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length) }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and nothing uses it after this.
        let returned = unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
        Verb::new("munmap").log_refusal(returned);
    }
}

/// Owners of pages: `ManuallyDrop` of themselves is already apart, since they hold a bare pointer.
macro_rules! pages {
    ($owner:ident) => {
        // SAFETY: the memory is found by a bare pointer and not freed by dropping `ManuallyDrop`.
        unsafe impl Buffer for $owner {
            type Raw = ManuallyDrop<Self>;

            fn into_raw(self) -> Self::Raw {
                ManuallyDrop::new(self)
            }

            unsafe fn from_raw(raw: Self::Raw) -> Self {
                ManuallyDrop::into_inner(raw)
            }
        }

        // SAFETY: the bytes are initialised, writable and reached by nobody else.
        unsafe impl HostBuffer for $owner {
            fn address(raw: &Self::Raw) -> NonNull<u8> {
                raw.address
            }

            fn length(raw: &Self::Raw) -> usize {
                raw.as_slice().len()
            }
        }

        // SAFETY: the owner is the only way to its memory.
        unsafe impl Send for $owner {}
        // SAFETY: through `&self` the memory is only read.
        unsafe impl Sync for $owner {}

        impl fmt::Debug for $owner {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($owner))
                    .field("length", &self.as_slice().len())
                    .finish_non_exhaustive()
            }
        }
    };
}
pages!(PageAligned);
pages!(HugePages);

// SAFETY: the parts of a vector are as movable as the vector; `Plain` elements are `Send`.
unsafe impl<T: Plain> Send for RawVec<T> {}
// SAFETY: nothing is reached through a reference to the parts.
unsafe impl<T: Plain> Sync for RawVec<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_comes_back_as_it_was() {
        let mut vec = Vec::with_capacity(100);
        vec.extend_from_slice(&[1u16, 2, 3]);
        let address = vec.as_ptr();
        let raw = vec.into_raw();
        assert_eq!(Vec::length(&raw), 6);
        // SAFETY: the parts of the vector above, used once.
        let vec = unsafe { Vec::from_raw(raw) };
        assert_eq!((vec.as_ptr(), vec.capacity(), vec.as_slice()), (address, 100, &[1, 2, 3][..]));
    }

    #[test]
    fn page_aligned_memory_is_zeroed_and_starts_at_a_page() {
        let mut buffer = PageAligned::new(10_000).unwrap();
        assert_eq!(buffer.as_slice(), [0; 10_000]);
        buffer.as_mut_slice()[9_999] = 7;
        assert_eq!(PageAligned::address(&buffer.into_raw()).as_ptr().addr() % 4096, 0);
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        PageAligned::new(0).unwrap_err();
        PageAligned::new(usize::MAX).unwrap_err();
        HugePages::new(0, 1 << 21).unwrap_err();
        HugePages::new(1, 3).unwrap_err();
    }
}
