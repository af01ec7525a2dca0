//! How an object holds what it was made from.

use std::{fmt, ops::Deref, sync::Arc};

/// A parent, borrowed or shared.
///
/// An object made from `&T` lives at most as long as that borrow, at no cost. One made from an
/// [`Arc<T>`] (or `&Arc<T>`, which clones it) is `'static` and keeps its parent alive itself, so that it
/// can be stored beside it in a plain struct and sent to threads and tasks.
pub enum Parent<'a, T: ?Sized> {
    /// The compiler proves that the parent lives long enough.
    Borrowed(&'a T),
    /// The parent lives at least as long as this.
    Shared(Arc<T>),
}

impl<T: ?Sized> Deref for Parent<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self {
            Self::Borrowed(parent) => parent,
            Self::Shared(parent) => parent,
        }
    }
}

impl<T> Parent<'_, T> {
    /// The same parent once more.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Borrowed(parent) => Self::Borrowed(parent),
            Self::Shared(parent) => Self::Shared(Arc::clone(parent)),
        }
    }
}

impl<'a, T> From<&'a T> for Parent<'a, T> {
    fn from(parent: &'a T) -> Self {
        Self::Borrowed(parent)
    }
}

impl<T> From<Arc<T>> for Parent<'_, T> {
    fn from(parent: Arc<T>) -> Self {
        Self::Shared(parent)
    }
}

impl<T> From<&Arc<T>> for Parent<'_, T> {
    fn from(parent: &Arc<T>) -> Self {
        Self::Shared(Arc::clone(parent))
    }
}

impl<T: fmt::Debug> fmt::Debug for Parent<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
