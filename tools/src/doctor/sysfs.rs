//! What the kernel says in files.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The text of a file without the white space around it; `None` if there is none.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
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

/// The network interface of an index, in this process's network namespace.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    entries("/sys/class/net")
        .into_iter()
        .find(|path| text(path.join("ifindex")).is_some_and(|text| text == index.to_string()))
        .map(|path| name(&path))
}

/// Major and minor number of a kernel release such as `6.12.3-amd64`.
pub(crate) fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_read_up_to_their_minor_number() {
        assert_eq!(kernel_version("6.12.3+deb13-amd64"), Some((6, 12)));
        assert_eq!(kernel_version("5.4"), Some((5, 4)));
        assert_eq!(kernel_version("linux"), None);
    }
}
