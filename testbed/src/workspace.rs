//! The cargo workspace that the testbed works on, as `cargo metadata` describes it.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::process;

/// A workspace of cargo.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Its root folder.
    pub(crate) root: PathBuf,
    /// Where cargo builds to.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// The workspace that this program belongs to.
    pub(crate) fn find() -> Result<Self> {
        let mut command = cargo();
        command.args(["metadata", "--format-version=1", "--no-deps"]);
        if let Some(folder) = std::env::var_os("CARGO_MANIFEST_DIR") {
            command.arg("--manifest-path").arg(PathBuf::from(folder).join("Cargo.toml"));
        }
        let output = process::output_of(&mut command)?;
        let bad = |found: String| Error::Format { what: "cargo's metadata".into(), found };
        let metadata: Value =
            serde_json::from_slice(&output).map_err(|error| bad(error.to_string()))?;
        let path = |name: &str| -> Result<PathBuf> {
            let text = metadata.get(name).and_then(Value::as_str);
            text.map(PathBuf::from).ok_or_else(|| bad(format!("no {name}")))
        };
        Ok(Self { root: path("workspace_root")?, target: path("target_directory")? })
    }

    /// The folders that the guest must see.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        vec![self.root.clone(), self.target.clone()]
    }
}

/// The cargo that started this program, or the one in `PATH`.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
