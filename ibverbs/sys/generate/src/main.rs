//! Regenerates the bindings.
fn main() {}
