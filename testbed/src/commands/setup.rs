//! `cargo testbed setup`

use std::process::ExitCode;

use crate::boot_files::prepare;
use crate::cache::Cache;
use crate::error::Result;
use crate::progress::note;

/// Builds what is missing.
pub(crate) fn run() -> Result<ExitCode> {
    let cache = Cache::open()?;
    prepare(&cache)?;
    note(&format!("ready, in {}", cache.folder().display()));
    Ok(ExitCode::SUCCESS)
}
