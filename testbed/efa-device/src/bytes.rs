//! Little-endian fields in byte strings that a guest wrote or will read.
//!
//! A field that lies outside the string reads as zero and swallows writes, so that no length a
//! guest chooses can make this crate panic.

/// Reads fields of a structure laid out in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn array<const N: usize>(self, offset: usize) -> [u8; N] {
        offset
            .checked_add(N)
            .and_then(|end| self.0.get(offset..end))
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0; N])
    }

    pub(crate) fn u8(self, offset: usize) -> u8 {
        let [byte] = self.array(offset);
        byte
    }

    pub(crate) fn u16(self, offset: usize) -> u16 {
        u16::from_le_bytes(self.array(offset))
    }

    pub(crate) fn u32(self, offset: usize) -> u32 {
        u32::from_le_bytes(self.array(offset))
    }

    pub(crate) fn u64(self, offset: usize) -> u64 {
        u64::from_le_bytes(self.array(offset))
    }

    /// Everything from `offset` on.
    pub(crate) fn from(self, offset: usize) -> Self {
        Self(self.0.get(offset..).unwrap_or_default())
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Writes fields of a structure laid out in memory.
pub(crate) trait PutFields {
    fn put<const N: usize>(&mut self, offset: usize, bytes: [u8; N]);

    fn put_u8(&mut self, offset: usize, value: u8) {
        self.put(offset, [value]);
    }

    fn put_u16(&mut self, offset: usize, value: u16) {
        self.put(offset, value.to_le_bytes());
    }

    fn put_u32(&mut self, offset: usize, value: u32) {
        self.put(offset, value.to_le_bytes());
    }

    fn put_u64(&mut self, offset: usize, value: u64) {
        self.put(offset, value.to_le_bytes());
    }
}

impl PutFields for [u8] {
    fn put<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        let field = offset.checked_add(N).and_then(|end| self.get_mut(offset..end));
        if let Some(field) = field {
            field.copy_from_slice(&bytes);
        }
    }
}

/// Bits 15:0.
pub(crate) fn low_u16(value: u32) -> u16 {
    let [a, b, _, _] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// Bits 31:16.
pub(crate) fn high_u16(value: u32) -> u16 {
    let [_, _, a, b] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// Bits 31:0.
pub(crate) fn low_u32(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A count or index as this machine's `usize`; larger than any object if it does not fit.
pub(crate) fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_and_zero_outside_the_bytes() {
        let fields = Fields(&[1, 2, 3, 4, 5]);
        assert_eq!(fields.u16(1), 0x0302);
        assert_eq!(fields.u32(1), 0x0504_0302);
        assert_eq!(fields.u32(2), 0);
        assert_eq!(fields.u64(usize::MAX), 0);
        assert_eq!(fields.from(9).bytes(), b"");
    }

    #[test]
    fn writes_outside_the_bytes_are_swallowed() {
        let mut bytes = [0; 4];
        bytes.put_u16(2, 0xabcd);
        bytes.put_u32(1, 0xffff_ffff);
        bytes.put_u8(usize::MAX, 1);
        assert_eq!(bytes, [0, 0, 0xcd, 0xab]);
    }

    #[test]
    fn halves_of_a_doorbell_value() {
        assert_eq!((low_u16(0x8001_1234), high_u16(0x8001_1234)), (0x1234, 0x8001));
        assert_eq!(low_u32(0x1_2345_6789), 0x2345_6789);
    }
}
