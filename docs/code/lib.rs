//! The Rust blocks of the guide.
