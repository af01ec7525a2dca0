//! What the kernel says in files: of this machine, or of a tree of files that looks like one.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where the kernel's files are.
#[derive(Debug)]
pub(crate) struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The one that this runs on.
    pub(crate) fn this() -> Self {
        Self { root: PathBuf::from("/") }
    }

    /// The place of an absolute path.
    pub(crate) fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file without the white space around it; `None` if there is none, or it cannot be read.
    pub(crate) fn text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        text(self.path(absolute))
    }

    /// The entries of a folder, sorted by name; empty if it is not there.
    pub(crate) fn entries(&self, absolute: impl AsRef<Path>) -> Vec<PathBuf> {
        entries(self.path(absolute))
    }

    /// The release of the kernel, such as `6.12.3-amd64`.
    pub(crate) fn kernel_release(&self) -> String {
        self.text("/proc/sys/kernel/osrelease").unwrap_or_default()
    }

    /// Whether a module of the kernel is loaded or built in.
    pub(crate) fn has_module(&self, name: &str) -> bool {
        self.path("/sys/module").join(name).exists()
    }

    /// Whether the kernel's files have a module, loaded or not; `None` if they are not here.
    pub(crate) fn could_load(&self, module: &str) -> Option<bool> {
        let folder = Path::new("/lib/modules").join(self.kernel_release());
        let list = self.text(folder.join("modules.dep"))?;
        let built_in = self.text(folder.join("modules.builtin")).unwrap_or_default();
        let file = |line: &str| {
            let path = line.split(':').next().unwrap_or_default();
            let name = path.rsplit('/').next().unwrap_or_default();
            name.split('.').next().unwrap_or_default().replace('-', "_") == module
        };
        Some(list.lines().chain(built_in.lines()).any(file))
    }

    /// The network interface of an index, in this process's network namespace.
    pub(crate) fn interface(&self, index: u32) -> Option<String> {
        let index = index.to_string();
        self.entries("/sys/class/net")
            .into_iter()
            .find(|path| text(path.join("ifindex")).is_some_and(|text| text == index))
            .map(|path| name(&path))
    }

    /// The RDMA devices that the kernel has, whether or not anybody may use them.
    pub(crate) fn rdma_devices(&self) -> Vec<String> {
        self.entries("/sys/class/infiniband").iter().map(|path| name(path)).collect()
    }

    /// The PCI function of an RDMA device; `None` for one in software.
    pub(crate) fn function(&self, device: &str) -> Option<PathBuf> {
        fs::canonicalize(self.path("/sys/class/infiniband").join(device).join("device")).ok()
    }
}

#[cfg(test)]
impl Machine {
    /// What the folders of such machines begin with.
    const MADE: &str = "rdma4rs-doctor-";

    /// A machine with nothing but these files, until it is dropped; a value that begins with `->` is a link.
    pub(crate) fn made_of(test: &str, files: &[(&str, &str)]) -> Self {
        let name = format!("{}{}-{test}", Self::MADE, std::process::id());
        let machine = Self { root: std::env::temp_dir().join(name) };
        drop(fs::remove_dir_all(&machine.root));
        fs::create_dir_all(&machine.root).unwrap();
        for (path, content) in files {
            machine.add(path, content.as_bytes());
        }
        machine
    }

    /// One more file.
    pub(crate) fn add(&self, path: &str, content: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match content.strip_prefix(b"->") {
            Some(target) => {
                let target = self.path(std::str::from_utf8(target).unwrap());
                fs::create_dir_all(&target).unwrap();
                std::os::unix::fs::symlink(target, path).unwrap();
            }
            None => fs::write(path, content).unwrap(),
        }
    }
}

#[cfg(test)]
impl Drop for Machine {
    fn drop(&mut self) {
        if name(&self.root).starts_with(Self::MADE) {
            drop(fs::remove_dir_all(&self.root));
        }
    }
}

/// The text of a file without the white space around it; `None` if there is none, or it cannot be read.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The entries of a folder, sorted by name; empty if it is not there.
pub(crate) fn entries(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = read.map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// The last part of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The last part of what a link leads to.
pub(crate) fn target(link: impl AsRef<Path>) -> Option<String> {
    fs::read_link(link).ok().map(|path| name(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_looked_for_by_name_whatever_the_file_is_called() {
        let machine = Machine::made_of(
            "modules",
            &[
                ("/proc/sys/kernel/osrelease", "6.12.3-amd64\n"),
                (
                    "/lib/modules/6.12.3-amd64/modules.dep",
                    "kernel/drivers/infiniband/core/ib_uverbs.ko.xz: kernel/x/ib_core.ko.xz\n\
                     kernel/drivers/infiniband/hw/bnxt-re.ko:\n",
                ),
                ("/lib/modules/6.12.3-amd64/modules.builtin", "kernel/net/rdma_ucm.ko\n"),
            ],
        );
        for (module, there) in
            [("ib_uverbs", true), ("bnxt_re", true), ("rdma_ucm", true), ("ib_core", false)]
        {
            assert_eq!(machine.could_load(module), Some(there), "{module}");
        }
        assert_eq!(Machine::made_of("no-modules", &[]).could_load("ib_uverbs"), None);
    }

    #[test]
    fn an_interface_is_found_by_its_index_alone() {
        let machine = Machine::made_of(
            "interfaces",
            &[("/sys/class/net/lo/ifindex", "1\n"), ("/sys/class/net/eth0/ifindex", "12\n")],
        );
        assert_eq!(machine.interface(12).as_deref(), Some("eth0"));
        assert_eq!(machine.interface(2), None);
    }
}
