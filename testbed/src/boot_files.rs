//! What QEMU starts: the uncompressed kernel and a small initramfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cache::Layer;
use crate::cpio::Archive;
use crate::error::{During, Error, Result};
use crate::kernel_image;
use crate::modules;
use crate::process;
use crate::progress::Step;
use crate::root::{kernel_version, run_in};

/// Counts up when the build below changes its result.
const RECIPE_VERSION: u32 = 1;

/// What it takes to mount the shared folders; every other module is loaded from the root.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

const INIT: &str = include_str!("init.sh");

/// The layer that holds `vmlinux` and `initramfs`.
#[derive(Debug)]
pub(crate) struct BootFiles {
    root: PathBuf,
    root_recipe: String,
}

impl BootFiles {
    /// The boot files for the root whose layer is `folder`.
    pub(crate) fn of_root(folder: &Path, layer: &dyn Layer) -> Self {
        Self { root: folder.join("fs"), root_recipe: layer.recipe() }
    }
}

impl Layer for BootFiles {
    fn name(&self) -> String {
        "boot".into()
    }

    fn title(&self) -> String {
        "making the kernel and the initramfs ready".into()
    }

    fn recipe(&self) -> String {
        let modules = MODULES.join(" ");
        format!("version {RECIPE_VERSION}\nmodules {modules}\n{}\n{INIT}", self.root_recipe)
    }

    fn build(&self, folder: &Path, step: &Step) -> Result<()> {
        let version = kernel_version(&self.root)?;
        step.detail("unpacking the kernel");
        self.unpack_kernel(&version, &folder.join("vmlinux"))?;
        step.detail("packing the initramfs");
        let path = folder.join("initramfs");
        fs::write(&path, self.initramfs(&version)?).during(|| format!("write {}", path.display()))
    }

    fn essentials(&self) -> Vec<PathBuf> {
        vec!["vmlinux".into(), "initramfs".into()]
    }
}

impl BootFiles {
    fn unpack_kernel(&self, version: &str, target: &Path) -> Result<()> {
        let modules = self.root.join("usr/lib/modules").join(version).join("vmlinuz");
        let boot = self.root.join("boot").join(format!("vmlinuz-{version}"));
        let file = if modules.exists() { modules } else { boot };
        let image = fs::read(&file).during(|| format!("read {}", file.display()))?;
        let payload = kernel_image::payload(&image)?;

        let packed = target.with_extension("packed");
        fs::write(&packed, payload.bytes).during(|| format!("write {}", packed.display()))?;
        let input = fs::File::open(&packed).during(|| format!("open {}", packed.display()))?;
        let output = fs::File::create(target).during(|| format!("create {}", target.display()))?;
        let status = Command::new("chroot")
            .arg(&self.root)
            .args(payload.decompressor)
            .stdin(input)
            .stdout(output)
            .stderr(Stdio::inherit())
            .status()
            .during(|| "start the decompressor".into())?;
        if !status.success() {
            let command = payload.decompressor.join(" ");
            return Err(Error::Command { command, status, tail: String::new() });
        }
        fs::remove_file(&packed).during(|| format!("remove {}", packed.display()))
    }

    fn initramfs(&self, version: &str) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for folder in ["bin", "dev", "proc", "sys", "modules", "lower", "upper", "new"] {
            archive.folder(folder);
        }
        archive.character_device("dev/console", (5, 1));
        let busybox = self.root.join("usr/bin/busybox");
        let busybox = fs::read(&busybox).during(|| format!("read {}", busybox.display()))?;
        archive.file("bin/busybox", true, &busybox);
        archive.file("bin/sh", true, &busybox);
        archive.file("init", true, INIT.as_bytes());

        let mut order = String::new();
        for file in modules::in_load_order(&self.root, version, &MODULES)? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let data = self.module(&file)?;
            let name = name.trim_end_matches(".xz");
            archive.file(&format!("modules/{name}"), false, &data);
            order.push_str(name);
            order.push('\n');
        }
        archive.file("modules/order", false, order.as_bytes());
        Ok(archive.finish())
    }

    /// A module's content, unpacked.
    fn module(&self, file: &Path) -> Result<Vec<u8>> {
        if file.extension().is_some_and(|kind| kind == "xz") {
            return run_in(
                &self.root,
                &["xz", "--decompress", "--stdout", &file.to_string_lossy()],
            );
        }
        let path = self.root.join(file.strip_prefix("/").unwrap_or(file));
        fs::read(&path).during(|| format!("read {}", path.display()))
    }
}

/// The essentials of a machine, made ready: the root's file system and the boot files' folder.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The guest's file system.
    pub(crate) root: PathBuf,
    /// The folder with `vmlinux` and `initramfs`.
    pub(crate) boot: PathBuf,
}

/// Builds what is missing, or finds it in the cache.
pub(crate) fn prepare(cache: &crate::cache::Cache) -> Result<Prepared> {
    require_root()?;
    let root = crate::root::Root::new(cache);
    let folder = cache.ensure(&root)?;
    let boot = cache.ensure(&BootFiles::of_root(&folder, &root))?;
    Ok(Prepared { root: folder.join("fs"), boot })
}

/// Mounting, `chroot` and unpacking device nodes are for root.
fn require_root() -> Result<()> {
    if rustix::process::geteuid().is_root() && process::is_installed("unshare") {
        return Ok(());
    }
    Err(Error::Host(
        "the virtual machine needs root (it mounts and uses chroot in a namespace of its own): \
         sudo --preserve-env env \"PATH=$PATH\" cargo testbed …"
            .into(),
    ))
}
