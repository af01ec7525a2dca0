//! Secrets as nvme-cli writes them: `DHHC-1:hh:base64:`, section 8.3.5.5.7.

use std::{fmt, str::FromStr};

use base64ct::{Base64, Encoding};

use super::hash::Hash;
use crate::{Error, Nqn, Result, wire::auth::HashId};

/// A secret that a host or a controller proves to have.
///
/// Its text form is `DHHC-1:`, two digits for the transformation (`00` none, `01` to `03` HMAC with
/// SHA-256, 384 or 512), `:`, the base64 form of the key and its CRC-32, `:`. `nvme gen-dhchap-key`
/// makes such secrets. Neither `Debug` nor any error shows the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    transformation: Option<Hash>,
}

impl Secret {
    /// The key that is used: the secret's own, or one made of it and the name of who has it.
    pub(super) fn transformed(&self, owner: &Nqn) -> Vec<u8> {
        match self.transformation {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[owner.as_str().as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

impl FromStr for Secret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |reason| Error::InvalidSecret { reason };
        let rest = text
            .trim()
            .strip_prefix("DHHC-1:")
            .ok_or_else(|| invalid("it does not begin with DHHC-1:"))?;
        let (digits, rest) =
            rest.split_once(':').ok_or_else(|| invalid("it has no transformation"))?;
        let transformation = match (digits.len(), digits.parse()) {
            (2, Ok(0)) => None,
            (2, Ok(id @ 1..=3)) => Hash::from_id(HashId(id)),
            _ => return Err(invalid("the transformation is not 00, 01, 02 or 03")),
        };
        let encoded = rest.strip_suffix(':').unwrap_or(rest);
        let mut key = Base64::decode_vec(encoded)
            .map_err(|_| invalid("the part before the last colon is not base64"))?;
        if !matches!(key.len(), 36 | 52 | 68) {
            return Err(invalid("the key does not have 32, 48 or 64 bytes"));
        }
        let checksum = key.split_off(key.len() - 4);
        if checksum != crc32(&key).to_le_bytes() {
            return Err(invalid("the checksum is wrong, so a character is too"));
        }
        Ok(Self { key, transformation })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes, {:?})", self.key.len(), self.transformation)
    }
}

/// CRC-32 of IEEE 802.3; a bit at a time is fast enough for 64 bytes.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    const PLAIN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn a_plain_secret_is_its_key() {
        let secret: Secret = PLAIN.parse().unwrap();
        let expected: Vec<u8> = (0..32).collect();
        assert_eq!(secret.transformed(&Nqn::new("a").unwrap()), expected);
    }

    #[test]
    fn a_transformed_secret_depends_on_its_owner() {
        let secret: Secret = PLAIN.replace(":00:", ":01:").parse().unwrap();
        let host = Nqn::new("nqn.2024-01.org.example:host").unwrap();
        assert_eq!(secret.transformed(&host)[..4], [0x8c, 0x85, 0x9b, 0xd1]);
        assert_ne!(secret.transformed(&host), secret.transformed(&Nqn::new("b").unwrap()));
    }

    #[test]
    fn wrong_secrets_say_what_is_wrong_and_nothing_of_the_key() {
        for (wrong, reason) in [
            ("", "does not begin"),
            ("DHHC-1:", "has no transformation"),
            ("DHHC-1:04:AAAA:", "not 00, 01, 02 or 03"),
            ("DHHC-1:0:AAAA:", "not 00, 01, 02 or 03"),
            ("DHHC-1:00:AA!A:", "not base64"),
            ("DHHC-1:00:AAAA:", "32, 48 or 64"),
            (&PLAIN.replace("AAEC", "AAED"), "checksum"),
        ] {
            let text = wrong.parse::<Secret>().unwrap_err().to_string();
            assert!(text.contains(reason), "{wrong}: {text}");
            assert!(!text.contains("AA"));
        }
    }

    #[test]
    fn debug_output_shows_no_key() {
        let shown = format!("{:?}", PLAIN.parse::<Secret>().unwrap());
        assert_eq!(shown, "Secret(32 bytes, None)");
    }

    #[test]
    fn text_from_anywhere_is_read_or_refused() {
        let mut random = Random::new(9);
        for _ in 0..20_000 {
            let mut text = PLAIN.to_owned().into_bytes();
            let at = random.below(text.len());
            text[at] = 0x20 + u8::try_from(random.below(0x5f)).unwrap();
            let text = String::from_utf8(text).unwrap();
            let _read_or_refused = text.parse::<Secret>();
        }
    }
}
