//! What namespaces stand on, beside the ram disks, and what the kernel says reaches it.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "what goes wrong here fails the test"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::target::{run, write};

const TRACING: &str = "/sys/kernel/tracing";

/// A block device in memory with a volatile write cache, that knows forced unit access and discards.
pub(crate) struct CachedDisk {
    settings: PathBuf,
    path: PathBuf,
}

impl CachedDisk {
    pub(crate) fn new(block_bytes: u32, mebibytes: u32) -> Self {
        run("modprobe", &["null_blk", "nr_devices=0"]);
        let name = format!("cached{block_bytes}");
        let settings = Path::new("/sys/kernel/config/nullb").join(&name);
        fs::create_dir(&settings).unwrap();
        for (attribute, value) in [
            ("size", mebibytes),
            ("blocksize", block_bytes),
            ("memory_backed", 1),
            ("cache_size", 1),
            ("fua", 1),
            ("discard", 1),
            ("power", 1),
        ] {
            write(&settings.join(attribute), &value.to_string());
        }
        let path = appeared(&Path::new("/dev").join(name));
        Self { settings, path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for CachedDisk {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.settings) {
            eprintln!("{}: {error}", self.settings.display());
        }
    }
}

/// An ext4 file system on a disk.
pub(crate) struct FileSystem(PathBuf);

impl FileSystem {
    pub(crate) fn new(disk: &Path) -> Self {
        let place = PathBuf::from(format!("/tmp/mounted-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        run("modprobe", &["ext4"]);
        run("mkfs.ext4", &["-q", disk.to_str().unwrap()]);
        run("mount", &["-t", "ext4", disk.to_str().unwrap(), place.to_str().unwrap()]);
        Self(place)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        run("umount", &[self.0.to_str().unwrap()]);
        fs::remove_dir(&self.0).unwrap();
    }
}

/// A SCSI disk in memory, whose blocks carry protection information of type 1.
pub(crate) struct ProtectedDisk(PathBuf);

impl ProtectedDisk {
    pub(crate) fn new() -> Self {
        run("modprobe", &["sd_mod"]);
        run("modprobe", &["scsi_debug", "dev_size_mb=16", "dif=1", "dix=1"]);
        Self(appeared(Path::new("/dev/sda")))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ProtectedDisk {
    fn drop(&mut self) {
        // Whoever looks at new disks may still have it open.
        let started = Instant::now();
        while !Command::new("modprobe").args(["-r", "scsi_debug"]).status().unwrap().success() {
            assert!(started.elapsed() < Duration::from_secs(60), "scsi_debug stays in use");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// What the kernel issues to one block device while this lives.
pub(crate) struct Trace {
    device: String,
}

impl Trace {
    pub(crate) fn of(disk: &Path) -> Self {
        if !Path::new(TRACING).join("trace").exists() {
            run("mount", &["-t", "tracefs", "tracefs", TRACING]);
        }
        let name = disk.file_name().unwrap().to_str().unwrap();
        let numbers = fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
        let trace = Self { device: numbers.trim().replace(':', ",") };
        trace.forget();
        Self::switch("1");
        trace
    }

    /// Forgets what was issued so far.
    pub(crate) fn forget(&self) {
        write(&Path::new(TRACING).join("trace"), "");
    }

    /// What was issued: the kernel's letters for what it does, as in `WFS` for a synchronous write
    /// with forced unit access, and the bytes.
    pub(crate) fn issued(&self) -> Vec<(String, u64)> {
        let text = fs::read_to_string(Path::new(TRACING).join("trace")).unwrap();
        text.lines()
            .filter_map(|line| {
                let (_, what) = line.split_once("block_rq_issue: ")?;
                let mut words = what.split_whitespace();
                if words.next()? != self.device {
                    return None;
                }
                let letters = words.next()?.to_owned();
                Some((letters, words.next()?.parse().ok()?))
            })
            .collect()
    }

    fn switch(value: &str) {
        write(&Path::new(TRACING).join("events/block/block_rq_issue/enable"), value);
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        Self::switch("0");
    }
}

/// A device node, once it is there.
fn appeared(path: &Path) -> PathBuf {
    let started = Instant::now();
    while !path.exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "{} is not there", path.display());
        thread::sleep(Duration::from_millis(20));
    }
    path.to_owned()
}
