//! rdma4py's packages, for the guest's Python.

use std::process::Command;

use super::Settings;
use crate::error::Result;
use crate::process::output_of;
use crate::progress::Step;

/// The packages; they depend on nothing but each other.
const PACKAGES: [&str; 2] = ["ibverbs==2026.10.22", "nvmeof==2026.10.22"];

/// The version of the Python in the guest.
const VERSION: &str = "3.13";

/// Fetches the packages into `bench/python` of cargo's target folder, once.
pub(super) fn fetch(settings: &Settings<'_>) -> Result<()> {
    let folder = settings.workspace.target.join("bench/python");
    if folder.join("nvmeof").is_dir() {
        return Ok(());
    }
    let step = Step::start("fetching rdma4py");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]);
    pip.args(["--python-version", VERSION, "--target"]).arg(&folder).args(PACKAGES);
    output_of(&mut pip)?;
    step.done();
    Ok(())
}
