//! Cuts the kernel proper out of a compressed kernel image.
//!
//! QEMU can start the uncompressed kernel directly (PVH), which saves the guest from unpacking itself,
//! the slowest part of a boot on an emulated processor. The positions come from the setup header, see
//! `Documentation/arch/x86/boot.rst` of the Linux kernel.

use crate::error::{Error, Result};

/// The compressed kernel inside an image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Payload<'image> {
    /// The program that unpacks it, with its arguments, from standard input to standard output.
    pub(crate) decompressor: &'static [&'static str],
    /// The compressed bytes.
    pub(crate) bytes: &'image [u8],
}

const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const VERSION: usize = 0x206;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// The build appends the unpacked size to the compressed stream; decompressors stumble over it.
const SIZE_TRAILER: usize = 4;

/// Finds the compressed kernel.
///
/// # Errors
/// [`Error::Format`] if this is no bzImage of boot protocol 2.08 or later, if the header points
/// outside the image, or if the compression is unknown.
pub(crate) fn payload(image: &[u8]) -> Result<Payload<'_>> {
    let bad = |found: &str| Error::Format { what: "the kernel image".into(), found: found.into() };
    if image.get(MAGIC..MAGIC + 4) != Some(b"HdrS") {
        return Err(bad("no setup header"));
    }
    let number = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let version = number(VERSION).ok_or_else(|| bad("a cut-off header"))? & 0xffff;
    if version < 0x208 {
        return Err(bad("a boot protocol older than 2.08"));
    }
    let setup = usize::from(*image.get(SETUP_SECTORS).ok_or_else(|| bad("a cut-off header"))?);
    let start = number(PAYLOAD_OFFSET).and_then(|offset| offset.checked_add((setup + 1) * 512));
    let end =
        start.zip(number(PAYLOAD_LENGTH)).and_then(|(start, length)| start.checked_add(length));
    let bytes = start
        .zip(end)
        .and_then(|(start, end)| image.get(start..end)?.split_last_chunk::<SIZE_TRAILER>())
        .map(|(bytes, _size)| bytes)
        .ok_or_else(|| bad("a payload outside of the image"))?;
    let decompressor: &[&str] = match bytes {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => &["zstd", "--decompress", "--stdout"],
        [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            &["xz", "--decompress", "--stdout", "--single-stream"]
        }
        [0x1f, 0x8b, ..] => &["gzip", "--decompress", "--stdout"],
        _ => return Err(bad("an unknown compression")),
    };
    Ok(Payload { decompressor, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 512 * 4 + 16];
        image[SETUP_SECTORS] = 3;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[VERSION..VERSION + 2].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&16_u32.to_le_bytes());
        let length = u32::try_from(payload.len() + SIZE_TRAILER).unwrap();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(&[0; SIZE_TRAILER]);
        image
    }

    #[test]
    fn the_payload_is_cut_out_without_its_size() {
        let image = image(&[0x28, 0xb5, 0x2f, 0xfd, 7, 8]);
        let payload = payload(&image).unwrap();
        assert_eq!(payload.bytes, [0x28, 0xb5, 0x2f, 0xfd, 7, 8]);
        assert_eq!(payload.decompressor[0], "zstd");
    }

    #[test]
    fn broken_images_are_refused() {
        let good = image(&[0x28, 0xb5, 0x2f, 0xfd]);
        for length in [0, 0x1f1, 0x206, 0x24a, good.len() - 1] {
            assert!(payload(&good[..length]).is_err(), "{length}");
        }
        let mut old = good.clone();
        old[VERSION] = 7;
        payload(&old).unwrap_err();
        let mut far = good.clone();
        far[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&[0xff; 4]);
        payload(&far).unwrap_err();
        payload(&image(b"LZ4.")).unwrap_err();
    }
}
