//! The CRC-16 of admin queue entries: polynomial 0x8005 reflected, initial value and final XOR
//! 0xffff (the "CRC-16/USB" of the catalogues). It covers a whole entry with its checksum field
//! zero.

/// The checksum of `bytes`.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    let remainder = bytes.iter().fold(0xffff_u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xa001 } else { crc >> 1 }
        })
    });
    !remainder
}

#[cfg(test)]
mod tests {
    use super::crc16;

    #[test]
    fn the_catalogue_check_value_comes_out() {
        assert_eq!(crc16(b"123456789"), 0xb4c8);
        assert_eq!(crc16(b""), 0);
    }
}
