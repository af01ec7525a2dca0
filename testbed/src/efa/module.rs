//! The driver `efa.ko`, which no Debian kernel has: built from Debian's own source of the root's
//! kernel, in a root of its own that is gone afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::{Debian, require_mmdebstrap};
use crate::cache::{Cache, Layer};
use crate::error::{During, Error, Result};
use crate::process;
use crate::progress::Step;
use crate::root::{kernel_version, link, run_in, unpack};

/// Counts up when the build below changes its result.
const RECIPE_VERSION: u32 = 1;

/// The driver's folder in the kernel source.
const SOURCE_FOLDER: &str = "drivers/infiniband/hw/efa";

/// What compiles a module, beside the kernel's own headers and source.
const TOOLS: [&str; 15] = [
    "bash",
    "binutils",
    "coreutils",
    "dash",
    "findutils",
    "gcc-14",
    "grep",
    "kmod",
    "libc6-dev",
    "make",
    "mawk",
    "perl-base",
    "sed",
    "tar",
    "xz-utils",
];

const MODULE_FILE: &str = "efa.ko";
const DEPENDENCIES_FILE: &str = "dependencies";

/// The layer that holds the module and the names of the modules it needs.
#[derive(Debug)]
pub(super) struct EfaModule {
    cache: Cache,
    kernel: String,
}

impl EfaModule {
    /// The module for the kernel of `root`.
    pub(super) fn for_root(root: &Path, cache: &Cache) -> Result<Self> {
        Ok(Self { cache: cache.clone(), kernel: kernel_version(root)? })
    }
}

/// Names of the modules that must be loaded before the one in the layer `folder`.
pub(super) fn dependencies(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join(DEPENDENCIES_FILE);
    let text = fs::read_to_string(&path).during(|| format!("read {}", path.display()))?;
    Ok(text.split([',', '\n']).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

impl Layer for EfaModule {
    fn name(&self) -> String {
        "efa-module".into()
    }

    fn title(&self) -> String {
        "building the EFA driver (fetches about 250 MB, once for each kernel)".into()
    }

    fn recipe(&self) -> String {
        format!("version {RECIPE_VERSION}\nkernel {}\ntools {}\n", self.kernel, TOOLS.join(" "))
    }

    fn build(&self, folder: &Path, step: &Step) -> Result<()> {
        let root = folder.join("fs");
        let version = upstream_version(&self.kernel)?;
        let headers = format!("linux-headers-{}", self.kernel);
        let source = format!("linux-source-{version}");
        let debian = Debian::of_this_machine(&self.cache)?;
        let packages: Vec<&str> =
            TOOLS.iter().copied().chain([headers.as_str(), source.as_str()]).collect();
        require_mmdebstrap(&self.cache)?;
        unpack(&debian, &packages, &root, step)?;
        link(&root)?;

        step.detail("unpacking the driver's source");
        let archive = format!("usr/src/{source}.tar.xz");
        let members = format!("{source}/{SOURCE_FOLDER}");
        run_in(&root, &["sh", "-c", &extract(&archive, &members)])?;

        step.detail("compiling");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "setpriv", "--pdeathsig", "KILL"]);
        command.args(["sh", "-c", COMPILE, "sh"]);
        command.arg(&root).arg(&self.kernel).env("LC_ALL", "C").env("PATH", PATH);
        process::run_logged(&mut command, &folder.join("make.log"), step)?;

        let built = format!("/build/{MODULE_FILE}");
        run_in(&root, &["strip", "--strip-debug", &built])?;
        let needs = run_in(&root, &["modinfo", "--field", "depends", &built])?;
        let path = folder.join(DEPENDENCIES_FILE);
        fs::write(&path, needs).during(|| format!("write {}", path.display()))?;
        let module = folder.join(MODULE_FILE);
        fs::copy(root.join("build").join(MODULE_FILE), &module)
            .during(|| format!("copy {}", module.display()))?;
        process::output_of(Command::new("rm").args(["-rf", "--one-file-system"]).arg(&root))?;
        Ok(())
    }

    fn essentials(&self) -> Vec<PathBuf> {
        vec![MODULE_FILE.into(), DEPENDENCIES_FILE.into()]
    }
}

const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Compiles the folder /build of a root; the kernel's tools look into /proc.
const COMPILE: &str = r#"
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
exec chroot "$1" make -C "/usr/lib/modules/$2/build" M=/build CONFIG_INFINIBAND_EFA=m modules
"#;

/// A shell command that unpacks a folder of an archive to /build.
fn extract(archive: &str, folder: &str) -> String {
    let depth = folder.split('/').count();
    format!(
        "mkdir /build && xz -dc /{archive} | tar -x -C /build --strip-components={depth} {folder}"
    )
}

/// `7.3` of `7.3.4+deb13-amd64`: what Debian's source packages are named by.
fn upstream_version(kernel: &str) -> Result<String> {
    let mut numbers = kernel
        .split('.')
        .map(|part| part.split(|digit: char| !digit.is_ascii_digit()).next().unwrap_or_default());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if !major.is_empty() && !minor.is_empty() => {
            Ok(format!("{major}.{minor}"))
        }
        _ => Err(Error::Format { what: "the kernel's version".into(), found: kernel.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_packages_are_named_by_two_numbers() {
        assert_eq!(upstream_version("7.3.4+deb13-amd64").unwrap(), "7.3");
        assert_eq!(upstream_version("6.12+bpo-amd64").unwrap(), "6.12");
        upstream_version("amd64").unwrap_err();
    }

    #[test]
    fn the_folder_itself_is_stripped_from_what_is_unpacked() {
        let command = extract("usr/src/linux-source-7.3.tar.xz", "linux-source-7.3/drivers/efa");
        assert!(command.ends_with("--strip-components=3 linux-source-7.3/drivers/efa"));
    }
}
