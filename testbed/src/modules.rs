//! Kernel modules: which files a set of modules needs, in the order they must be loaded.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::root::run_in;

/// The files of `names` and of all they depend on, as paths inside `root`, dependencies first and
/// each file once. Modules that are built into the kernel need no file and are left out.
pub(crate) fn in_load_order(root: &Path, version: &str, names: &[&str]) -> Result<Vec<PathBuf>> {
    let mut words = vec!["modprobe", "--set-version", version, "--show-depends", "--all"];
    words.extend(names);
    let output = run_in(root, &words)?;
    Ok(parse_show_depends(&String::from_utf8_lossy(&output)))
}

/// Reads `insmod FILE [options]` lines; `builtin NAME` lines need nothing.
fn parse_show_depends(text: &str) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    text.lines()
        .filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next())
        .filter(|file| seen.insert((*file).to_owned()))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_first_and_once() {
        let text = "insmod /lib/modules/7/ib_core.ko.xz \ninsmod /lib/modules/7/rdma_rxe.ko.xz \n\
                    builtin virtio_console\ninsmod /lib/modules/7/ib_core.ko.xz \n\
                    insmod /lib/modules/7/brd.ko rd_nr=1\n";
        let files = parse_show_depends(text);
        assert_eq!(
            files,
            ["ib_core.ko.xz", "rdma_rxe.ko.xz", "brd.ko"]
                .map(|f| Path::new("/lib/modules/7").join(f))
        );
    }
}
