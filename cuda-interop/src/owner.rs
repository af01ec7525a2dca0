//! How a region holds a buffer that must be reached while it is registered.
#![expect(unsafe_code, reason = "keeps a box apart as a pointer")]

use std::ptr::NonNull;

use ibverbs::Buffer;

/// A boxed buffer on its way into a region or out of it.
///
/// On its way in, it does not free the buffer, so that one that is refused can be registered otherwise; on its way
/// out it does.
pub(crate) struct Owner<B> {
    /// From `Box::into_raw`.
    buffer: NonNull<B>,
    frees: bool,
}

impl<B> Owner<B> {
    /// Moves a buffer to a place that it keeps.
    pub(crate) fn place(buffer: B) -> NonNull<B> {
        NonNull::from(Box::leak(Box::new(buffer)))
    }

    /// An owner to register.
    pub(crate) const fn entering(buffer: NonNull<B>) -> Self {
        Self { buffer, frees: false }
    }

    /// Takes a buffer back from its place.
    ///
    /// # Safety
    ///
    /// `buffer` came from [`place`](Self::place), and nobody uses it after this.
    pub(crate) unsafe fn take(buffer: NonNull<B>) -> B {
        // SAFETY: a box that was leaked, by the contract above.
        *unsafe { Box::from_raw(buffer.as_ptr()) }
    }

    /// The buffer of an owner that came out of its region.
    pub(crate) fn into_buffer(mut self) -> B {
        self.frees = false;
        // SAFETY: only the region had it, and gave it up; it is not freed again by drop.
        unsafe { Self::take(self.buffer) }
    }
}

impl<B> Drop for Owner<B> {
    fn drop(&mut self) {
        if self.frees {
            // SAFETY: only the region had it, and gave it up.
            drop(unsafe { Self::take(self.buffer) });
        }
    }
}

/// The place of a buffer while it is registered.
pub(crate) struct Placed<B>(NonNull<B>);

// SAFETY: the buffer stays in its box until `from_raw`, and the pointer does not free it.
unsafe impl<B> Buffer for Owner<B> {
    type Raw = Placed<B>;

    fn into_raw(self) -> Placed<B> {
        Placed(self.buffer)
    }

    unsafe fn from_raw(Placed(buffer): Placed<B>) -> Self {
        Self { buffer, frees: true }
    }
}

// SAFETY: stands for the buffer.
unsafe impl<B: Send> Send for Placed<B> {}
// SAFETY: gives no access to the buffer.
unsafe impl<B: Sync> Sync for Placed<B> {}
