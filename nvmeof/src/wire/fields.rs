//! Little-endian fields at fixed places, read and written without a way to panic.

use crate::{Error, Result};

/// Bytes whose length was checked once; reads past the end give zeros.
#[derive(Clone, Copy)]
pub(super) struct Fields<'bytes>(&'bytes [u8]);

impl<'bytes> Fields<'bytes> {
    /// Takes bytes of which at least `expected` must be there.
    pub(super) fn new(
        bytes: &'bytes [u8],
        expected: usize,
        structure: &'static str,
    ) -> Result<Self> {
        if bytes.len() < expected {
            return Err(Error::Short { structure, expected, found: bytes.len() });
        }
        Ok(Self(bytes))
    }

    /// Takes bytes whose length the type already fixes.
    pub(super) const fn all(bytes: &'bytes [u8]) -> Self {
        Self(bytes)
    }

    // Inlined, reads and writes of a field at a known place become one move.
    #[inline]
    pub(super) fn array<const N: usize>(self, at: usize) -> [u8; N] {
        let available = self.0.get(at..).unwrap_or_default();
        if let Some(whole) = available.first_chunk() {
            return *whole;
        }
        let mut out = [0; N];
        put(&mut out, 0, available);
        out
    }

    pub(super) fn slice(self, at: usize, length: usize) -> &'bytes [u8] {
        self.0.get(at..).and_then(|rest| rest.get(..length)).unwrap_or_default()
    }

    #[inline]
    pub(super) fn u8(self, at: usize) -> u8 {
        u8::from_le_bytes(self.array(at))
    }

    #[inline]
    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    #[inline]
    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    #[inline]
    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    /// Text padded with spaces or zeros, as Identify and the discovery log write it. What is not
    /// ASCII text becomes `?`, so that nothing a target sends can reach a terminal as a control.
    pub(super) fn text(self, at: usize, length: usize) -> String {
        let bytes = self.slice(at, length);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let text: String = bytes[..end]
            .iter()
            .map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' })
            .collect();
        text.trim_end_matches(' ').to_owned()
    }
}

/// Writes `bytes` at `at`; what would lie past the end is dropped.
#[inline]
pub(super) fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    let room = image.get_mut(at..).unwrap_or_default();
    let length = room.len().min(bytes.len());
    room[..length].copy_from_slice(&bytes[..length]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_past_the_end_are_zeros() {
        let fields = Fields::new(&[1, 2, 3], 3, "test").unwrap();
        assert_eq!(fields.u16(1), 0x0302);
        assert_eq!(fields.u32(1), 0x0000_0302);
        assert_eq!(fields.u64(usize::MAX), 0);
        assert!(fields.slice(2, 5).is_empty());
    }

    #[test]
    fn writes_past_the_end_are_dropped() {
        let mut image = [9; 3];
        put(&mut image, 2, &[1, 2]);
        put(&mut image, 7, &[5]);
        put(&mut image, 0, &[]);
        assert_eq!(image, [9, 9, 1]);
    }

    #[test]
    fn control_characters_never_leave_a_text_field() {
        let fields = Fields::new(b"a\x1b[2J\xff  \0junk", 0, "test").unwrap();
        assert_eq!(fields.text(0, 12), "a?[2J?");
    }

    #[test]
    fn too_few_bytes_are_an_error_with_both_numbers() {
        let error = Fields::new(&[0; 3], 16, "completion").map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "completion has 3 bytes, at least 16 are needed");
    }
}
