//! What QEMU starts: the uncompressed kernel and a small initramfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cache::Layer;
use crate::cpio::Archive;
use crate::error::{During, Error, Result};
use crate::kernel_image;
use crate::modules;
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
    kernel: String,
    root_recipe: String,
}

impl BootFiles {
    /// The boot files for the root whose layer is `folder`.
    pub(crate) fn of_root(folder: &Path, layer: &dyn Layer) -> Result<Self> {
        let root = folder.join("fs");
        Ok(Self { kernel: kernel_version(&root)?, root, root_recipe: layer.recipe() })
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
        let Self { kernel, root_recipe, .. } = self;
        let modules = MODULES.join(" ");
        format!(
            "version {RECIPE_VERSION}\nkernel {kernel}\nmodules {modules}\n{root_recipe}\n{INIT}"
        )
    }

    fn build(&self, folder: &Path, step: &Step) -> Result<()> {
        step.detail("unpacking the kernel");
        self.unpack_kernel(&self.kernel, &folder.join("vmlinux"))?;
        step.detail("packing the initramfs");
        let path = folder.join("initramfs");
        fs::write(&path, self.initramfs(&self.kernel)?)
            .during(|| format!("write {}", path.display()))
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
