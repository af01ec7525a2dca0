//! DH-HMAC-CHAP: host and target prove to each other that they share a secret, section 8.3.5.5 of
//! the base specification.
//!
//! Nothing here sends anything. [`Exchange`] makes the host's messages and checks the target's.

mod exchange;
mod group;
mod hash;
mod secret;
#[cfg(test)]
pub(crate) mod verifier;

pub(crate) use exchange::Exchange;
pub use secret::Secret;
