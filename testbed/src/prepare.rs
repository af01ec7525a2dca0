//! Makes ready what every machine needs.

use std::path::PathBuf;
use std::process::Command;

use crate::boot_files::BootFiles;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::process::{is_installed, output_of};
use crate::root::Root;

/// The essentials of a machine.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The guest's file system.
    pub(crate) root: PathBuf,
    /// The folder with `vmlinux` and `initramfs`.
    pub(crate) boot: PathBuf,
}

/// Finds what is needed in the cache, or builds what is missing; all of it anew if `renew` is set,
/// from the packages that are current now.
pub(crate) fn prepare(cache: &Cache, renew: bool) -> Result<Prepared> {
    require_root()?;
    let root = Root::new(cache);
    let folder = if renew { cache.renew(&root)? } else { cache.ensure(&root)? };
    let boot = BootFiles::of_root(&folder, &root)?;
    let boot = if renew { cache.renew(&boot)? } else { cache.ensure(&boot)? };
    Ok(Prepared { root: folder.join("fs"), boot })
}

/// Mounting, `chroot` and unpacking device nodes are for root.
fn require_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Host(
            "the virtual machine needs root (it mounts and uses chroot in a namespace of its own): \
             sudo --preserve-env=HOME env \"PATH=$PATH\" cargo testbed …"
                .into(),
        ));
    }
    for program in ["unshare", "setpriv"] {
        if !is_installed(program) {
            return Err(Error::Host(format!("{program} is missing: apt-get install util-linux")));
        }
    }
    let namespace = output_of(Command::new("unshare").args(["--mount", "true"]));
    namespace.map(drop).map_err(|error| {
        Error::Host(format!(
            "the virtual machine needs a mount namespace of its own, which is refused here (a \
             container needs --privileged, or the capability SYS_ADMIN): {error}"
        ))
    })
}
