//! The three hash functions, and what the protocol makes of them.

use hmac::{Hmac, KeyInit, Mac, digest::Digest};
use sha2::{Sha256, Sha384, Sha512};

use crate::wire::auth::HashId;

/// A hash function that this crate has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// All of them, in the order they are offered.
    pub(super) const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    pub(super) fn from_id(id: HashId) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    pub(super) const fn id(self) -> HashId {
        match self {
            Self::Sha256 => HashId::SHA_256,
            Self::Sha384 => HashId::SHA_384,
            Self::Sha512 => HashId::SHA_512,
        }
    }

    /// Bytes of a digest.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    pub(super) fn digest(self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(message).to_vec(),
            Self::Sha384 => Sha384::digest(message).to_vec(),
            Self::Sha512 => Sha512::digest(message).to_vec(),
        }
    }

    /// HMAC over the parts one after the other.
    pub(super) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Sha256 => finish(Hmac::<Sha256>::new_from_slice(key), parts),
            Self::Sha384 => finish(Hmac::<Sha384>::new_from_slice(key), parts),
            Self::Sha512 => finish(Hmac::<Sha512>::new_from_slice(key), parts),
        }
    }
}

fn finish<M: Mac, E>(mac: Result<M, E>, parts: &[&[u8]]) -> Vec<u8> {
    // HMAC takes keys of every length, so there is no error to tell of; an empty digest, which
    // equals no response, stands for it.
    let Ok(mut mac) = mac else { return Vec::new() };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

/// Compares without telling by its time where the first difference is.
pub(super) fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_have_the_length_that_is_said() {
        for hash in Hash::ALL {
            assert_eq!(hash.digest(b"x").len(), hash.bytes());
            assert_eq!(hash.hmac(&[7; 200], &[b"x"]).len(), hash.bytes());
            assert_eq!(hash.hmac(b"", &[b"ab", b"c"]), hash.hmac(b"", &[b"a", b"bc"]));
        }
    }

    #[test]
    fn only_the_same_bytes_are_equal() {
        assert!(equal(b"abc", b"abc"));
        assert!(!equal(b"abc", b"abd"));
        assert!(!equal(b"abc", b"ab"));
        assert!(!equal(b"", b"a"));
    }
}
