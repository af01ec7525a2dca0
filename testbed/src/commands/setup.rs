//! `cargo testbed setup`

use std::process::ExitCode;

use clap::Args;

use crate::cache::Cache;
use crate::error::Result;
use crate::prepare::prepare;
use crate::progress::note;

/// Options of `setup`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Build all of it again, from the packages that are current now. No guest may be running.
    #[arg(long)]
    renew: bool,
}

/// Builds what is missing.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cache = Cache::open()?;
    prepare(&cache, options.renew)?;
    note(&format!("ready, in {}", cache.folder().display()));
    Ok(ExitCode::SUCCESS)
}
