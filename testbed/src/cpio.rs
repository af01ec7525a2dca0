//! The archive format of an initramfs: cpio, "newc". See `Documentation/driver-api/early-userspace`
//! of the Linux kernel for the form.

/// An archive being written, in memory.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

/// Kinds of entries, as the upper bits of a file mode.
const FOLDER: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

impl Archive {
    /// Adds an empty folder. Its parents must have been added before.
    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER | 0o755, (0, 0), &[]);
    }

    /// Adds a file, executable or not.
    pub(crate) fn file(&mut self, path: &str, executable: bool, data: &[u8]) {
        self.entry(path, REGULAR | if executable { 0o755 } else { 0o644 }, (0, 0), data);
    }

    /// Adds a character device with its major and minor number.
    pub(crate) fn character_device(&mut self, path: &str, number: (u32, u32)) {
        self.entry(path, CHARACTER_DEVICE | 0o600, number, &[]);
    }

    /// Ends the archive and hands it out.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        self.entries += 1;
        let links = if mode & FOLDER != 0 { 2 } else { 1 };
        // Files of the initramfs are far below the 4 GiB that the format can say.
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(path.len() + 1).unwrap_or(u32::MAX);
        let fields =
            [self.entries, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_end_with_the_trailer() {
        let mut archive = Archive::default();
        archive.folder("dev");
        archive.character_device("dev/console", (5, 1));
        archive.file("init", true, b"#!sh\n");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"0707010000000100"));
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("000081ed"), "the mode of an executable file");
        assert!(text.contains("0000000500000001"), "the device's number");
        assert!(text.ends_with("TRAILER!!!\0\0\0\0") || text.contains("TRAILER!!!\0"));
    }
}
