//! `cargo testbed headers`

use std::process::ExitCode;

use crate::cache::Cache;
use crate::error::Result;
use crate::headers::include_folders;

/// Prints the folders, one a line.
pub(crate) fn run() -> Result<ExitCode> {
    for folder in include_folders(&Cache::open()?)? {
        println!("{}", folder.display());
    }
    Ok(ExitCode::SUCCESS)
}
