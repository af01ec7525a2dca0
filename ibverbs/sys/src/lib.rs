#![doc = include_str!("../README.md")]
#![expect(
    non_camel_case_types,
    non_snake_case,
    missing_docs,
    reason = "C's names, unchanged; the manual pages document them"
)]

// Output of rdma-sys-generate, never edited.
#[rustfmt::skip]
#[allow(clippy::all, unused_imports, reason = "generated")]
mod bindings;
mod inline;
mod library;
#[rustfmt::skip]
#[allow(clippy::all, reason = "generated")]
mod symbols;

pub use bindings::*;
pub use inline::*;
pub use library::{Library, LoadError, Symbol, since};
pub use symbols::{ConnectionManager, Efa, Verbs};
