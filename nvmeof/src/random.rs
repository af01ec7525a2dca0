//! Random bytes from the system.

use crate::{Error, Result};

/// Fills `bytes` with bytes fit for keys.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|source| Error::Random { source: source.into() })
}

/// A random number.
pub(crate) fn number() -> Result<u32> {
    let mut bytes = [0; 4];
    fill(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}
