//! Identify data of namespaces: NVM Command Set Specification 1.1, section 4.1.5.1, and the lists
//! of section 5.1.13.2 of the base specification.

use super::{
    block_format::{BlockFormat, ProtectionType},
    fields::{Fields, put},
    identify::identify_page,
};
use crate::{Error, Result};

/// What a controller says about a namespace; the fields that a host has use for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdentifyNamespace {
    /// Blocks that can be addressed; 0 means that there is no such namespace.
    pub size_in_blocks: u64,
    /// Blocks that can be allocated.
    pub capacity_in_blocks: u64,
    /// Blocks that are allocated.
    pub used_blocks: u64,
    /// Which of `formats` is in use.
    pub format_index: u8,
    /// Whether metadata is sent at the end of each block rather than apart.
    pub metadata_in_block: bool,
    /// The end-to-end protection in use.
    pub protection: ProtectionType,
    /// Whether protection information is the first eight bytes of the metadata, not the last.
    pub protection_first: bool,
    /// Whether several controllers may reach it.
    pub is_shared: bool,
    /// Whether it is write protected.
    pub is_write_protected: bool,
    /// Globally unique identifier; all zeros when there is none.
    pub nguid: [u8; 16],
    /// IEEE extended unique identifier; all zeros when there is none.
    pub eui64: [u8; 8],
    /// The formats it can have, 1 to 64.
    pub formats: Vec<BlockFormat>,
}

impl IdentifyNamespace {
    /// Reads the data.
    ///
    /// # Errors
    ///
    /// [`Error::Short`] with fewer than 4096 bytes; [`Error::Malformed`] for more formats than
    /// there is room for, or if the format in use is not one of them.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields::new(bytes, 4096, "identify namespace data")?;
        let malformed = |field, found: u8, rule| Error::Malformed {
            structure: "identify namespace data",
            field,
            found: u64::from(found),
            rule,
        };
        let format_count = fields.u8(25);
        if format_count > 63 {
            return Err(malformed("number of LBA formats", format_count, "is over 63"));
        }
        let formatted = fields.u8(26);
        let format_index = formatted & 0xf | formatted >> 1 & 0x30;
        if format_index > format_count {
            return Err(malformed("formatted LBA size", format_index, "is no format in the list"));
        }
        Ok(Self {
            size_in_blocks: fields.u64(0),
            capacity_in_blocks: fields.u64(8),
            used_blocks: fields.u64(16),
            format_index,
            metadata_in_block: formatted & 0x10 != 0,
            protection: ProtectionType(fields.u8(29) & 0x7),
            protection_first: fields.u8(29) & 0x8 != 0,
            is_shared: fields.u8(30) & 1 != 0,
            is_write_protected: fields.u8(99) & 1 != 0,
            nguid: fields.array(104),
            eui64: fields.array(120),
            formats: (0..=usize::from(format_count))
                .map(|index| BlockFormat::read(fields, 128 + 4 * index))
                .collect(),
        })
    }

    /// The data as a target sends it, all else zero.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = identify_page();
        put(&mut bytes, 0, &self.size_in_blocks.to_le_bytes());
        put(&mut bytes, 8, &self.capacity_in_blocks.to_le_bytes());
        put(&mut bytes, 16, &self.used_blocks.to_le_bytes());
        let last = u8::try_from(self.formats.len().saturating_sub(1)).unwrap_or(u8::MAX);
        let formatted = self.format_index & 0xf
            | (self.format_index & 0x30) << 1
            | u8::from(self.metadata_in_block) << 4;
        let protection = self.protection.0 & 0x7 | u8::from(self.protection_first) << 3;
        put(&mut bytes, 25, &[last, formatted]);
        put(&mut bytes, 29, &[protection, u8::from(self.is_shared)]);
        put(&mut bytes, 99, &[u8::from(self.is_write_protected)]);
        put(&mut bytes, 104, &self.nguid);
        put(&mut bytes, 120, &self.eui64);
        for (index, format) in self.formats.iter().take(64).enumerate() {
            put(&mut bytes, 128 + 4 * index, &format.to_bytes());
        }
        bytes
    }

    /// The format in use.
    #[must_use]
    pub fn format(&self) -> Option<BlockFormat> {
        self.formats.get(usize::from(self.format_index)).copied()
    }
}

/// Reads a list of active namespaces, which a zero ends; at most 1024.
///
/// # Errors
///
/// [`Error::Short`] with fewer than 4096 bytes; [`Error::Malformed`] if the identifiers do not
/// grow, which would make a host that asks for the rest go round in circles.
pub fn parse_active_namespaces(bytes: &[u8]) -> Result<Vec<u32>> {
    let fields = Fields::new(bytes, 4096, "active namespace list")?;
    let list: Vec<u32> =
        (0..1024).map(|index| fields.u32(4 * index)).take_while(|id| *id != 0).collect();
    match list.windows(2).find(|pair| pair[0] >= pair[1]) {
        None => Ok(list),
        Some(pair) => Err(Error::Malformed {
            structure: "active namespace list",
            field: "identifier",
            found: u64::from(pair[1]),
            rule: "is not above the one before it",
        }),
    }
}

/// A list of active namespaces as a target sends it.
#[must_use]
pub fn active_namespaces_to_bytes(list: &[u32]) -> Vec<u8> {
    let mut bytes = identify_page();
    for (index, id) in list.iter().take(1024).enumerate() {
        put(&mut bytes, 4 * index, &id.to_le_bytes());
    }
    bytes
}

/// A name that stays with a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NamespaceName {
    /// IEEE extended unique identifier.
    Eui64([u8; 8]),
    /// Globally unique identifier.
    Nguid([u8; 16]),
    /// Universally unique identifier, in the byte order of RFC 9562.
    Uuid([u8; 16]),
    /// The command set: 0 for NVM.
    CommandSet(u8),
}

/// Reads a list of namespace identification descriptors; those of unknown type are left out.
///
/// # Errors
///
/// [`Error::Short`] with fewer than 4096 bytes; [`Error::Malformed`] if a descriptor's length is
/// not that of its type, or runs past the end.
pub fn parse_namespace_names(bytes: &[u8]) -> Result<Vec<NamespaceName>> {
    let fields = Fields::new(bytes, 4096, "namespace identification descriptors")?;
    let mut names = Vec::new();
    let mut at = 0;
    while at + 4 <= 4096 {
        let (kind, length) = (fields.u8(at), fields.u8(at + 1));
        if kind == 0 && length == 0 {
            break;
        }
        let end = at + 4 + usize::from(length);
        let malformed = |rule| Error::Malformed {
            structure: "namespace identification descriptor",
            field: "length",
            found: u64::from(length),
            rule,
        };
        if end > 4096 {
            return Err(malformed("runs past the end of the list"));
        }
        match (kind, length) {
            (1, 8) => names.push(NamespaceName::Eui64(fields.array(at + 4))),
            (2, 16) => names.push(NamespaceName::Nguid(fields.array(at + 4))),
            (3, 16) => names.push(NamespaceName::Uuid(fields.array(at + 4))),
            (4, 1) => names.push(NamespaceName::CommandSet(fields.u8(at + 4))),
            (1..=4, _) => return Err(malformed("is not that of the descriptor's type")),
            _ => {}
        }
        at = end;
    }
    Ok(names)
}

/// A list of namespace identification descriptors as a target sends it.
#[must_use]
pub fn namespace_names_to_bytes(names: &[NamespaceName]) -> Vec<u8> {
    let mut bytes = identify_page();
    let mut at = 0;
    for name in names {
        let (kind, value): (u8, &[u8]) = match name {
            NamespaceName::Eui64(value) => (1, value),
            NamespaceName::Nguid(value) => (2, value),
            NamespaceName::Uuid(value) => (3, value),
            NamespaceName::CommandSet(value) => (4, std::slice::from_ref(value)),
        };
        put(&mut bytes, at, &[kind, u8::try_from(value.len()).unwrap_or(0)]);
        put(&mut bytes, at + 4, value);
        at += 4 + value.len();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn plain() -> IdentifyNamespace {
        IdentifyNamespace {
            size_in_blocks: 131_072,
            capacity_in_blocks: 131_072,
            used_blocks: 131_072,
            format_index: 0,
            metadata_in_block: false,
            protection: ProtectionType::NONE,
            protection_first: false,
            is_shared: true,
            is_write_protected: false,
            nguid: [9; 16],
            eui64: [0; 8],
            formats: vec![BlockFormat {
                metadata_bytes: 0,
                data_size_exponent: 9,
                relative_performance: 0,
            }],
        }
    }

    #[test]
    fn identify_data_has_its_fields_where_the_specification_says() {
        let bytes = plain().to_bytes();
        assert_eq!(bytes[..8], [0, 0, 2, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[25..27], [0, 0]);
        assert_eq!(bytes[128..132], [0, 0, 9, 0]);
        let parsed = IdentifyNamespace::parse(&bytes).unwrap();
        assert_eq!(parsed, plain());
        assert_eq!(parsed.format().unwrap().block_bytes(), Some(512));
    }

    #[test]
    fn a_format_index_outside_the_list_is_refused() {
        let mut bytes = plain().to_bytes();
        bytes[26] = 1;
        IdentifyNamespace::parse(&bytes).unwrap_err();
        bytes[25] = 64;
        IdentifyNamespace::parse(&bytes).unwrap_err();
    }

    #[test]
    fn format_indexes_above_fifteen_use_the_upper_bits() {
        let mut namespace = plain();
        namespace.formats = vec![namespace.formats[0]; 40];
        namespace.format_index = 37;
        namespace.metadata_in_block = true;
        assert_eq!(IdentifyNamespace::parse(&namespace.to_bytes()).unwrap(), namespace);
    }

    #[test]
    fn namespace_data_from_anywhere_is_read_or_refused() {
        let mut random = Random::new(6);
        for _ in 0..500 {
            let mut bytes = vec![0; 4096];
            random.fill(&mut bytes);
            bytes[25] &= 63;
            if let Ok(namespace) = IdentifyNamespace::parse(&bytes) {
                assert_eq!(IdentifyNamespace::parse(&namespace.to_bytes()).unwrap(), namespace);
            }
            let _refused_or_not = parse_active_namespaces(&bytes);
            if let Ok(names) = parse_namespace_names(&bytes) {
                assert_eq!(
                    parse_namespace_names(&namespace_names_to_bytes(&names)).unwrap(),
                    names
                );
            }
        }
    }

    #[test]
    fn a_namespace_list_must_grow() {
        let list = active_namespaces_to_bytes(&[1, 2, 7]);
        assert_eq!(parse_active_namespaces(&list).unwrap(), [1, 2, 7]);
        let circle = active_namespaces_to_bytes(&[1, 2, 2]);
        parse_active_namespaces(&circle).unwrap_err();
    }

    #[test]
    fn names_survive_the_round_trip_and_lengths_are_checked() {
        let names = [
            NamespaceName::Eui64([1; 8]),
            NamespaceName::Nguid([2; 16]),
            NamespaceName::Uuid([3; 16]),
            NamespaceName::CommandSet(0),
        ];
        let mut bytes = namespace_names_to_bytes(&names);
        assert_eq!(parse_namespace_names(&bytes).unwrap(), names);
        bytes[1] = 9;
        parse_namespace_names(&bytes).unwrap_err();
    }
}
