//! The programs that are measured natively, and the device in software that they run on.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::error::{During, Error, Result};
use crate::headers::include_folders;
use crate::process;
use crate::workspace::Workspace;

/// The package that is the device in software as a `libibverbs.so.1`.
const DEVICE_PACKAGE: &str = "soft-device-drop-in";

/// The programs, built.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Where C programs and the device stand, and profiles are written.
    pub(crate) folder: PathBuf,
    examples: PathBuf,
}

impl Programs {
    /// Builds the examples and their C twins of these names.
    pub(crate) fn build(workspace: &Workspace, cache: &Cache, names: &[&str]) -> Result<Self> {
        let folder = workspace.target.join("bench");
        fs::create_dir_all(&folder).during(|| format!("create {}", folder.display()))?;
        workspace.build_release_examples(names)?;
        for name in names {
            build_twin(workspace, cache, &folder, name)?;
        }
        Ok(Self { folder, examples: workspace.target.join("release/examples") })
    }

    /// Our program.
    pub(crate) fn ours(&self, name: &str) -> PathBuf {
        self.examples.join(name)
    }

    /// Its twin in C.
    pub(crate) fn twin(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Builds the device in software; the folder is for `LD_LIBRARY_PATH`.
    pub(crate) fn device(&self, workspace: &Workspace) -> Result<PathBuf> {
        workspace.build_release(DEVICE_PACKAGE)?;
        let folder = self.folder.join("device");
        fs::create_dir_all(&folder).during(|| format!("create {}", folder.display()))?;
        let built = workspace.target.join("release/libibverbs.so");
        let library = folder.join("libibverbs.so.1");
        fs::copy(&built, &library).during(|| format!("copy {}", built.display()))?;
        // It has the functions of libefa too. A link, so that both names are one library with one state.
        let efa = folder.join("libefa.so.1");
        if !efa.exists() {
            symlink("libibverbs.so.1", &efa).during(|| format!("link {}", efa.display()))?;
        }
        Ok(folder)
    }
}

/// Compiles `benches/c/NAME.c`, if there is one, for the rdma-core that the guest has.
fn build_twin(workspace: &Workspace, cache: &Cache, folder: &Path, name: &str) -> Result<()> {
    let source = workspace.root.join("benches/c").join(name).with_extension("c");
    if !source.exists() {
        return Ok(());
    }
    let includes = include_folders(cache)?;
    let include = includes.get(1).or_else(|| includes.last()).ok_or_else(|| Error::Format {
        what: "the headers of rdma-core".into(),
        found: "none".into(),
    })?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wl,--as-needed", "-o"]).arg(folder.join(name)).arg(&source);
    compiler.arg("-I").arg(include);
    compiler.arg("-L").arg(include.join("../lib/x86_64-linux-gnu")).args(["-libverbs", "-lefa"]);
    // What rdma-core itself is linked with is in the guest.
    compiler.arg("-Wl,--unresolved-symbols=ignore-in-shared-libs");
    process::output_of(&mut compiler).map(drop)
}
