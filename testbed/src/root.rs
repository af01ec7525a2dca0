//! The Debian root: the guest's file system, and the place QEMU runs from.
//!
//! Packages are unpacked, not installed (no maintainer script runs, nothing starts), so the few
//! things that scripts would have made are made here.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::apt::{Debian, fetch_options, require_mmdebstrap};
use crate::cache::{Cache, Layer};
use crate::error::{During, Error, Result};
use crate::modules;
use crate::process;
use crate::progress::Step;

/// Counts up when the build below changes its result.
const RECIPE_VERSION: u32 = 2;

/// The suites; the second is preferred, for its QEMU and its kernel.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];

/// What the root is made of, with what these depend on. The kernel is whichever is current.
const PACKAGES: [&str; 38] = [
    // the machine
    "qemu-system-x86",
    "linux-image-amd64",
    "kmod",
    "zstd",
    "xz-utils",
    // a system to work in
    "busybox-static",
    "bash",
    "bsdutils",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "findutils",
    "grep",
    "less",
    "libc-bin",
    "mawk",
    "ncurses-base",
    "procps",
    "sed",
    "util-linux",
    // RDMA, NVMe and the network
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "libfabric-bin",
    "nvme-cli",
    "fio",
    "iproute2",
    "iputils-ping",
    // to start ranks with
    "openmpi-bin",
    // looking inside
    "gdb",
    "pciutils",
    "ca-certificates",
    "python3-pip",
    "python3-venv",
    "strace",
    "tcpdump",
];

/// What Open MPI drags in for AMD's GPUs, which is half as large as all the rest.
const LEFT_OUT: [&str; 4] = ["libLLVM*", "libamd*", "libhsa*", "libz3*"];

/// Modules that stand uncompressed in the root, because every guest loads them or may.
const UNPACKED_MODULES: [&str; 14] = [
    "9p",
    "9pnet_virtio",
    "overlay",
    "virtio_rng",
    "dummy",
    "veth",
    "sch_netem",
    "rdma_rxe",
    "rdma_ucm",
    "ib_umad",
    "nvmet-rdma",
    "nvme-rdma",
    "null_blk",
    "brd",
];

/// Where the machine mounts things for QEMU inside the root; see `machine.rs`.
pub(crate) const MOUNT_POINTS: &str = "mnt";

/// How many folders of the host one machine can be given.
pub(crate) const MAXIMUM_SHARES: usize = 16;

/// The layer that holds the root, under `fs`.
#[derive(Debug)]
pub(crate) struct Root {
    cache: Cache,
}

impl Root {
    /// The one root there is.
    pub(crate) fn new(cache: &Cache) -> Self {
        Self { cache: cache.clone() }
    }
}

impl Layer for Root {
    fn name(&self) -> String {
        "root".into()
    }

    fn title(&self) -> String {
        "fetching and unpacking the Debian root (about 200 MB, once)".into()
    }

    fn recipe(&self) -> String {
        format!(
            "version {RECIPE_VERSION}\nsuites {}\npackages {}\nwithout {}\nunpacked modules {}\n",
            SUITES.join(" "),
            PACKAGES.join(" "),
            LEFT_OUT.join(" "),
            UNPACKED_MODULES.join(" ")
        )
    }

    fn build(&self, folder: &Path, step: &Step) -> Result<()> {
        let debian = Debian::of_this_machine(&self.cache)?;
        require_mmdebstrap(&self.cache)?;
        let root = folder.join("fs");
        unpack(&debian, &PACKAGES, &root, step)?;
        link(&root)?;
        complete(&root)?;
        step.detail("unpacking modules");
        let version = kernel_version(&root)?;
        unpack_modules(&root, &version)
    }

    fn essentials(&self) -> Vec<PathBuf> {
        ["fs/usr/bin/qemu-system-x86_64", "fs/usr/bin/busybox", "fs/usr/bin/rdma", "fs/mnt/root"]
            .iter()
            .map(PathBuf::from)
            .collect()
    }
}

/// Unpacks packages, with all they depend on, into the new folder `root`.
pub(crate) fn unpack(debian: &Debian, packages: &[&str], root: &Path, step: &Step) -> Result<()> {
    let sources = root.with_extension("sources.list");
    let lines: Vec<String> = SUITES.iter().map(|suite| debian.source_line(suite)).collect();
    fs::write(&sources, lines.join("\n") + "\n")
        .during(|| format!("write {}", sources.display()))?;

    // In a mount namespace of its own, and ended with this process: an interrupted build leaves neither
    // mounts behind nor a program that goes on writing.
    let mut command = Command::new("unshare");
    command.args(["--mount", "setpriv", "--pdeathsig", "TERM"]);
    command.args(["mmdebstrap", "--mode=root", "--variant=extract"]);
    for option in fetch_options() {
        command.arg(format!("--aptopt={option}"));
    }
    command.args([
        "--aptopt=APT::Install-Recommends \"false\"",
        "--aptopt=APT::Sandbox::User \"root\"",
        // QEMU's own dependencies must come from where QEMU comes from.
        &format!("--aptopt=APT::Default-Release \"{}\"", SUITES[1]),
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
    ]);
    for library in LEFT_OUT {
        command.arg(format!("--dpkgopt=path-exclude=/usr/lib/x86_64-linux-gnu/{library}"));
    }
    command.arg(format!("--include={}", packages.join(",")));
    command.arg(SUITES[0]).arg(root).arg(&sources);
    process::run_logged(&mut command, &root.with_extension("mmdebstrap.log"), step)
}

/// What maintainer scripts would have made, as far as programs need it to run with `chroot`.
pub(crate) fn link(root: &Path) -> Result<()> {
    for (link, target) in [
        ("bin", "usr/bin"),
        ("sbin", "usr/sbin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
        ("usr/bin/sh", "dash"),
        ("usr/bin/awk", "mawk"),
        ("usr/bin/vi", "busybox"),
        ("usr/bin/pager", "less"),
        ("etc/mtab", "../proc/self/mounts"),
    ] {
        let link = root.join(link);
        if fs::symlink_metadata(&link).is_err() {
            symlink(target, &link).during(|| format!("link {}", link.display()))?;
        }
    }
    ["dev", "proc", "sys", "tmp"].iter().try_for_each(|folder| make_folder(&root.join(folder)))
}

/// The rest of what maintainer scripts would have made, and where the machine mounts things.
fn complete(root: &Path) -> Result<()> {
    for folder in ["root", "run", "mnt/boot", "mnt/root", "mnt/run"] {
        make_folder(&root.join(folder))?;
    }
    for share in 0..MAXIMUM_SHARES {
        make_folder(&root.join(MOUNT_POINTS).join(format!("share{share}")))?;
    }
    for (file, text) in [
        (
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        ),
        ("etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"),
        ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n10.99.1.1 a\n10.99.1.2 b\n"),
        ("etc/hostname", "rdma4rs\n"),
    ] {
        let file = root.join(file);
        fs::write(&file, text).during(|| format!("write {}", file.display()))?;
    }
    join_certificates(root)
}

/// The bundle of certificates without which pip does not even start.
fn join_certificates(root: &Path) -> Result<()> {
    let folder = root.join("usr/share/ca-certificates/mozilla");
    let entries = fs::read_dir(&folder).during(|| format!("read {}", folder.display()))?;
    let mut bundle = Vec::new();
    for entry in entries {
        let file = entry.during(|| format!("read {}", folder.display()))?.path();
        bundle.extend(fs::read(&file).during(|| format!("read {}", file.display()))?);
    }
    make_folder(&root.join("etc/ssl/certs"))?;
    let file = root.join("etc/ssl/certs/ca-certificates.crt");
    fs::write(&file, bundle).during(|| format!("write {}", file.display()))
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).during(|| format!("create {}", path.display()))
}

/// The version of the kernel in the root; the newest by name if there is more than one.
pub(crate) fn kernel_version(root: &Path) -> Result<String> {
    let folder = root.join("usr/lib/modules");
    let entries = fs::read_dir(&folder).during(|| format!("read {}", folder.display()))?;
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).max().ok_or_else(|| {
        Error::Format { what: "the root's kernel".into(), found: "no modules folder".into() }
    })
}

/// Unpacks the modules that guests load, so that loading them costs no decompression in the guest.
fn unpack_modules(root: &Path, version: &str) -> Result<()> {
    run_in(root, &["depmod", version])?;
    let files = modules::in_load_order(root, version, &UNPACKED_MODULES)?;
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "xz")) {
        run_in(root, &["xz", "--decompress", &file.to_string_lossy()])?;
    }
    run_in(root, &["depmod", version]).map(drop)
}

/// Runs a program of the root in the root, and hands back its standard output.
pub(crate) fn run_in(root: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let mut command = Command::new("chroot");
    command.arg(root).args(words);
    command.env("PATH", "/usr/sbin:/usr/bin").env("LC_ALL", "C").stderr(Stdio::piped());
    process::output_of(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_found_without_knowing_its_version() {
        let root = std::env::temp_dir().join(format!("root-test-{}", std::process::id()));
        for version in ["6.12.1-amd64", "7.3.4+deb13-amd64"] {
            fs::create_dir_all(root.join("usr/lib/modules").join(version)).unwrap();
        }
        assert_eq!(kernel_version(&root).unwrap(), "7.3.4+deb13-amd64");
        fs::remove_dir_all(&root).unwrap();
    }
}
