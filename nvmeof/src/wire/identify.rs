//! Identify data of a controller, section 5.1.13.2.1.

use super::{
    admin::IDENTIFY_BYTES,
    features::EventConfiguration,
    fields::{Fields, put},
    property::Version,
};
use crate::Result;

/// What a controller says about itself; the fields that a host over RDMA has use for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdentifyController {
    /// Serial number.
    pub serial_number: String,
    /// Model number.
    pub model_number: String,
    /// Firmware revision.
    pub firmware_revision: String,
    /// The largest transfer as a power of two of the smallest page; 0 means no limit.
    pub max_transfer_exponent: u8,
    /// The controller's identifier in its subsystem.
    pub controller_id: u16,
    /// Version of the specification it follows.
    pub version: Version,
    /// Asynchronous events it can report.
    pub events: EventConfiguration,
    /// 1 for an I/O controller, 2 for discovery, 3 for administration, 0 when not told.
    pub controller_type: u8,
    /// The three command retry delays, in units of 100 milliseconds.
    pub retry_delays: [u16; 3],
    /// Abort commands at once, less one.
    pub abort_limit: u8,
    /// Granularity of the keep-alive timer in units of 100 milliseconds; 0 means no keep-alive.
    pub keep_alive_granularity: u16,
    /// Commands that the controller handles at once; 0 when not told.
    pub max_outstanding_commands: u16,
    /// The highest namespace identifier.
    pub namespaces: u32,
    /// Optional commands it has.
    pub optional_commands: OptionalCommands,
    /// Whether there is a volatile write cache, so that Flush matters.
    pub has_volatile_write_cache: bool,
    /// What the controller understands in descriptors.
    pub sgl_support: SglSupport,
    /// The subsystem's name.
    pub subsystem: String,
    /// Bytes of an I/O command capsule, entry included, in units of 16.
    pub command_capsule_units: u32,
    /// Bytes of an I/O response capsule, entry included, in units of 16.
    pub response_capsule_units: u32,
    /// Where in-capsule data begins, in units of 16 bytes after the entry.
    pub in_capsule_offset_units: u16,
    /// Descriptors in a capsule at most; 0 means no limit.
    pub max_descriptors: u8,
}

/// The ONCS field: which optional commands of the NVM command set there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OptionalCommands(pub u16);

impl OptionalCommands {
    /// Compare.
    #[must_use]
    pub const fn has_compare(self) -> bool {
        self.0 & 1 != 0
    }

    /// Dataset Management, which deallocates.
    #[must_use]
    pub const fn has_dataset_management(self) -> bool {
        self.0 & 1 << 2 != 0
    }

    /// Write Zeroes.
    #[must_use]
    pub const fn has_write_zeroes(self) -> bool {
        self.0 & 1 << 3 != 0
    }
}

/// The SGLS field: what a controller understands in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SglSupport(pub u32);

impl SglSupport {
    /// SGLs at all, whatever alignment they need.
    #[must_use]
    pub const fn has_sgl(self) -> bool {
        self.0 & 0x3 != 0
    }

    /// Whether data must begin at a multiple of four bytes and be one long.
    #[must_use]
    pub const fn needs_dword_alignment(self) -> bool {
        self.0 & 0x3 == 2
    }

    /// Keyed data blocks, without which nothing moves over RDMA.
    #[must_use]
    pub const fn has_keyed(self) -> bool {
        self.0 & 1 << 2 != 0
    }

    /// Offsets in the address field: data inside the capsule.
    #[must_use]
    pub const fn has_offset(self) -> bool {
        self.0 & 1 << 20 != 0
    }
}

impl IdentifyController {
    /// Reads the data.
    ///
    /// # Errors
    ///
    /// [`Error::Short`](crate::Error::Short) with fewer than 4096 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, 4096, "identify controller data")?;
        Ok(Self {
            serial_number: fields.text(4, 20),
            model_number: fields.text(24, 40),
            firmware_revision: fields.text(64, 8),
            max_transfer_exponent: fields.u8(77),
            controller_id: fields.u16(78),
            version: Version(fields.u32(80)),
            events: EventConfiguration::from_bits_retain(fields.u32(92)),
            controller_type: fields.u8(111),
            retry_delays: [fields.u16(128), fields.u16(130), fields.u16(132)],
            abort_limit: fields.u8(258),
            keep_alive_granularity: fields.u16(320),
            max_outstanding_commands: fields.u16(514),
            namespaces: fields.u32(516),
            optional_commands: OptionalCommands(fields.u16(520)),
            has_volatile_write_cache: fields.u8(525) & 1 != 0,
            sgl_support: SglSupport(fields.u32(536)),
            subsystem: fields.text(768, 256),
            command_capsule_units: fields.u32(1792),
            response_capsule_units: fields.u32(1796),
            in_capsule_offset_units: fields.u16(1800),
            max_descriptors: fields.u8(1803),
        })
    }

    /// The data as a target sends it, all else zero.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = identify_page();
        put(&mut bytes, 4, &padded::<20>(&self.serial_number));
        put(&mut bytes, 24, &padded::<40>(&self.model_number));
        put(&mut bytes, 64, &padded::<8>(&self.firmware_revision));
        put(&mut bytes, 77, &[self.max_transfer_exponent]);
        put(&mut bytes, 78, &self.controller_id.to_le_bytes());
        put(&mut bytes, 80, &self.version.0.to_le_bytes());
        put(&mut bytes, 92, &self.events.bits().to_le_bytes());
        put(&mut bytes, 111, &[self.controller_type]);
        for (index, delay) in self.retry_delays.iter().enumerate() {
            put(&mut bytes, 128 + 2 * index, &delay.to_le_bytes());
        }
        put(&mut bytes, 258, &[self.abort_limit]);
        put(&mut bytes, 320, &self.keep_alive_granularity.to_le_bytes());
        // Entries of 64 and 16 bytes, required and largest.
        put(&mut bytes, 512, &[0x66, 0x44]);
        put(&mut bytes, 514, &self.max_outstanding_commands.to_le_bytes());
        put(&mut bytes, 516, &self.namespaces.to_le_bytes());
        put(&mut bytes, 520, &self.optional_commands.0.to_le_bytes());
        put(&mut bytes, 525, &[u8::from(self.has_volatile_write_cache)]);
        put(&mut bytes, 536, &self.sgl_support.0.to_le_bytes());
        put(&mut bytes[..1024], 768, self.subsystem.as_bytes());
        put(&mut bytes, 1792, &self.command_capsule_units.to_le_bytes());
        put(&mut bytes, 1796, &self.response_capsule_units.to_le_bytes());
        put(&mut bytes, 1800, &self.in_capsule_offset_units.to_le_bytes());
        put(&mut bytes, 1803, &[self.max_descriptors]);
        bytes
    }

    /// Bytes of data that fit into an I/O command capsule.
    #[must_use]
    pub fn in_capsule_bytes(&self) -> u64 {
        let capsule = u64::from(self.command_capsule_units) * 16;
        capsule.saturating_sub(64 + u64::from(self.in_capsule_offset_units) * 16)
    }

    /// The largest transfer in bytes, if there is a limit: a power of two of the smallest page.
    /// Exponents whose limit would not fit 64 bits limit nothing.
    #[must_use]
    pub fn max_transfer_bytes(&self, min_page_size: u64) -> Option<u64> {
        size_limit(self.max_transfer_exponent, min_page_size)
    }
}

/// A limit that is a power of two of the smallest page, and none if it is 0 or does not fit 64 bits.
pub(super) fn size_limit(exponent: u8, min_page_size: u64) -> Option<u64> {
    match exponent {
        0 => None,
        exponent => min_page_size.checked_mul(1_u64.checked_shl(u32::from(exponent))?),
    }
}

/// An identify page of zeros.
pub(super) fn identify_page() -> Vec<u8> {
    vec![0; usize::try_from(IDENTIFY_BYTES).unwrap_or(4096)]
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [b' '; N];
    put(&mut bytes, 0, text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Bytes as a Linux target of version 6 sends them, as far as they are looked at.
    fn golden() -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[4..24].copy_from_slice(b"34d5a58bc8ae1c3d0f11");
        bytes[24..64].copy_from_slice(b"Linux                                   ");
        bytes[64..72].copy_from_slice(b"6.12.0  ");
        bytes[77] = 0;
        bytes[78..80].copy_from_slice(&[1, 0]);
        bytes[80..84].copy_from_slice(&[0, 0, 2, 0]);
        bytes[92..96].copy_from_slice(&[0x00, 0x09, 0x00, 0x00]);
        bytes[111] = 1;
        bytes[258..260].copy_from_slice(&[3, 3]);
        bytes[320..322].copy_from_slice(&[10, 0]);
        bytes[512..520].copy_from_slice(&[0x66, 0x44, 0x80, 0x00, 0x00, 0x04, 0, 0]);
        bytes[520..522].copy_from_slice(&[0x0c, 0x00]);
        bytes[525] = 0x07;
        bytes[536..540].copy_from_slice(&[0x05, 0x00, 0x10, 0x00]);
        bytes[768..796].copy_from_slice(b"nqn.2024-01.org.example:disk");
        bytes[1792..1800].copy_from_slice(&[0x04, 0x01, 0, 0, 1, 0, 0, 0]);
        bytes[1803] = 1;
        bytes
    }

    #[test]
    fn the_bytes_of_a_linux_target_are_read() {
        let controller = IdentifyController::parse(&golden()).unwrap();
        assert_eq!(controller.model_number, "Linux");
        assert_eq!(controller.firmware_revision, "6.12.0");
        assert_eq!(controller.version, Version::new(2, 0, 0));
        assert!(controller.events.contains(EventConfiguration::NAMESPACE_CHANGED));
        assert!(controller.optional_commands.has_dataset_management());
        assert!(controller.optional_commands.has_write_zeroes());
        assert!(!controller.optional_commands.has_compare());
        assert!(controller.sgl_support.has_sgl() && controller.sgl_support.has_keyed());
        assert!(controller.sgl_support.has_offset());
        assert_eq!(controller.in_capsule_bytes(), 4096);
        assert_eq!(controller.max_transfer_bytes(4096), None);
        assert_eq!(controller.subsystem, "nqn.2024-01.org.example:disk");
        assert_eq!(controller.keep_alive_granularity, 10);
    }

    #[test]
    fn identify_data_survives_the_round_trip() {
        let mut random = Random::new(5);
        for _ in 0..500 {
            let mut bytes = vec![0; 4096];
            random.fill(&mut bytes);
            let controller = IdentifyController::parse(&bytes).unwrap();
            assert_eq!(IdentifyController::parse(&controller.to_bytes()).unwrap(), controller);
            let _limits = (controller.in_capsule_bytes(), controller.max_transfer_bytes(4096));
        }
    }

    #[test]
    fn absurd_transfer_limits_do_not_overflow() {
        let mut controller = IdentifyController::parse(&golden()).unwrap();
        controller.max_transfer_exponent = 5;
        assert_eq!(controller.max_transfer_bytes(4096), Some(131_072));
        controller.max_transfer_exponent = 255;
        assert_eq!(controller.max_transfer_bytes(4096), None);
        controller.command_capsule_units = u32::MAX;
        controller.in_capsule_offset_units = u16::MAX;
        assert!(controller.in_capsule_bytes() > 0);
        controller.command_capsule_units = 0;
        assert_eq!(controller.in_capsule_bytes(), 0);
    }

    #[test]
    fn short_identify_data_is_an_error() {
        IdentifyController::parse(&[0; 4095]).unwrap_err();
    }
}
