//! Commands that inherit nothing of what launchers say.

use std::{env, ffi::OsStr, process::Command};

/// The program under test.
pub(crate) const TRY_RANKS: &str = env!("CARGO_BIN_EXE_try-ranks");

/// Long enough in seconds that a busy machine never reaches it.
pub(crate) const PATIENT: &str = "120";

/// A command with a long time-out and without variables of any launcher around the tests.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    const PREFIXES: [&str; 8] =
        ["OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM_", "MASTER_", "TORCHELASTIC_", "RDMA4RS_"];
    const NAMES: [&str; 3] = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if PREFIXES.iter().any(|prefix| text.starts_with(prefix)) || NAMES.contains(&&*text) {
            command.env_remove(&name);
        }
    }
    command.env("RDMA4RS_TIMEOUT", PATIENT);
    command
}
