//! Messages of DH-HMAC-CHAP authentication, section 8.3.5.5.

use std::fmt;

use super::fields::{Fields, put};
use crate::{Error, Result};

/// Bytes to offer for a message from the controller: the longest that is defined fits easily.
pub const MAX_MESSAGE_BYTES: u32 = 4096;

const COMMON: u8 = 0x00;
const DH_HMAC_CHAP: u8 = 0x01;
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS_1: u8 = 0x03;
const SUCCESS_2: u8 = 0x04;
const FAILURE_2: u8 = 0xf0;
const FAILURE_1: u8 = 0xf1;

/// A hash function by its identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashId(pub u8);

impl HashId {
    /// SHA-256.
    pub const SHA_256: Self = Self(1);
    /// SHA-384.
    pub const SHA_384: Self = Self(2);
    /// SHA-512.
    pub const SHA_512: Self = Self(3);
}

/// A Diffie-Hellman group by its identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub u8);

impl GroupId {
    /// No exchange.
    pub const NULL: Self = Self(0);
    /// ffdhe2048 of RFC 7919.
    pub const FFDHE_2048: Self = Self(1);
    /// ffdhe3072 of RFC 7919.
    pub const FFDHE_3072: Self = Self(2);
    /// ffdhe4096 of RFC 7919.
    pub const FFDHE_4096: Self = Self(3);
    /// ffdhe6144 of RFC 7919.
    pub const FFDHE_6144: Self = Self(4);
    /// ffdhe8192 of RFC 7919.
    pub const FFDHE_8192: Self = Self(5);
}

/// What the host can do, its first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// Ties the messages of one authentication together.
    pub transaction: u16,
    /// Hash functions, best first; at most 30.
    pub hashes: Vec<HashId>,
    /// Groups, best first; at most 30.
    pub groups: Vec<GroupId>,
}

impl Negotiate {
    /// The size on the wire with one protocol.
    pub const BYTES: usize = 72;

    /// The message as it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = head(COMMON, NEGOTIATE, self.transaction, Self::BYTES);
        let (hashes, groups) = (self.hashes.len().min(30), self.groups.len().min(30));
        bytes[7] = 1;
        bytes[8] = DH_HMAC_CHAP;
        bytes[10] = u8::try_from(hashes).unwrap_or(0);
        bytes[11] = u8::try_from(groups).unwrap_or(0);
        for (index, hash) in self.hashes.iter().take(30).enumerate() {
            bytes[12 + index] = hash.0;
        }
        for (index, group) in self.groups.iter().take(30).enumerate() {
            bytes[42 + index] = group.0;
        }
        bytes
    }

    /// Reads the message as a controller receives it.
    ///
    /// # Errors
    ///
    /// [`Error::Short`] or [`Error::Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = message(bytes, COMMON, NEGOTIATE, Self::BYTES, "negotiate message")?;
        let (hashes, groups) = (usize::from(fields.u8(10)), usize::from(fields.u8(11)));
        if hashes > 30 || groups > 30 {
            return Err(Error::Malformed {
                structure: "negotiate message",
                field: "list length",
                found: u64::from(fields.u8(10).max(fields.u8(11))),
                rule: "is over 30",
            });
        }
        Ok(Self {
            transaction: fields.u16(4),
            hashes: fields.slice(12, hashes).iter().copied().map(HashId).collect(),
            groups: fields.slice(42, groups).iter().copied().map(GroupId).collect(),
        })
    }
}

/// What the controller asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// As in the negotiation.
    pub transaction: u16,
    /// The hash function it chose.
    pub hash: HashId,
    /// The group it chose.
    pub group: GroupId,
    /// A number that it does not use twice.
    pub sequence: u32,
    /// Random bytes, as many as the hash has.
    pub challenge: Vec<u8>,
    /// Its public value; empty without a group.
    pub public_value: Vec<u8>,
}

impl Challenge {
    /// The message as a controller sends it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = head(DH_HMAC_CHAP, CHALLENGE, self.transaction, 16);
        bytes[6] = u8::try_from(self.challenge.len()).unwrap_or(u8::MAX);
        bytes[8] = self.hash.0;
        bytes[9] = self.group.0;
        let length = u16::try_from(self.public_value.len()).unwrap_or(u16::MAX);
        put(&mut bytes, 10, &length.to_le_bytes());
        put(&mut bytes, 12, &self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.challenge);
        bytes.extend_from_slice(&self.public_value);
        bytes
    }

    /// Reads the message.
    ///
    /// # Errors
    ///
    /// [`Error::Authentication`] if it is a failure message; [`Error::Short`] or
    /// [`Error::Malformed`] if it is not what it should be.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let name = "challenge message";
        let fields = message(bytes, DH_HMAC_CHAP, CHALLENGE, 16, name)?;
        let (hash, public) = (usize::from(fields.u8(6)), usize::from(fields.u16(10)));
        let fields = Fields::new(bytes, 16 + hash + public, name).map(|_| fields)?;
        Ok(Self {
            transaction: fields.u16(4),
            hash: HashId(fields.u8(8)),
            group: GroupId(fields.u8(9)),
            sequence: fields.u32(12),
            challenge: fields.slice(16, hash).to_vec(),
            public_value: fields.slice(16 + hash, public).to_vec(),
        })
    }
}

/// What the host answers, and asks in turn.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    /// As in the negotiation.
    pub transaction: u16,
    /// A number that the host does not use twice; zero when it asks nothing.
    pub sequence: u32,
    /// The answer.
    pub response: Vec<u8>,
    /// Random bytes for the controller to answer, as long as the response.
    pub challenge: Option<Vec<u8>>,
    /// The host's public value; empty without a group.
    pub public_value: Vec<u8>,
}

impl Reply {
    /// The message as it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = head(DH_HMAC_CHAP, REPLY, self.transaction, 16);
        bytes[6] = u8::try_from(self.response.len()).unwrap_or(u8::MAX);
        bytes[8] = u8::from(self.challenge.is_some());
        let length = u16::try_from(self.public_value.len()).unwrap_or(u16::MAX);
        put(&mut bytes, 10, &length.to_le_bytes());
        put(&mut bytes, 12, &self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.response);
        match &self.challenge {
            Some(challenge) => bytes.extend_from_slice(challenge),
            None => bytes.resize(bytes.len() + self.response.len(), 0),
        }
        bytes.extend_from_slice(&self.public_value);
        bytes
    }

    /// Reads the message as a controller receives it.
    ///
    /// # Errors
    ///
    /// [`Error::Short`] or [`Error::Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let name = "reply message";
        let fields = message(bytes, DH_HMAC_CHAP, REPLY, 16, name)?;
        let (hash, public) = (usize::from(fields.u8(6)), usize::from(fields.u16(10)));
        let fields = Fields::new(bytes, 16 + 2 * hash + public, name).map(|_| fields)?;
        let has_challenge = fields.u8(8) & 1 != 0;
        Ok(Self {
            transaction: fields.u16(4),
            sequence: fields.u32(12),
            response: fields.slice(16, hash).to_vec(),
            challenge: has_challenge.then(|| fields.slice(16 + hash, hash).to_vec()),
            public_value: fields.slice(16 + 2 * hash, public).to_vec(),
        })
    }
}

/// Tells that there is a reply, and not what is in it.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("transaction", &self.transaction).finish_non_exhaustive()
    }
}

/// The controller knows the host, and answers if it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success1 {
    /// As in the negotiation.
    pub transaction: u16,
    /// The answer.
    pub response: Option<Vec<u8>>,
}

impl Success1 {
    /// The message as a controller sends it, for a hash of `hash_bytes` bytes.
    #[must_use]
    pub fn to_bytes(&self, hash_bytes: u8) -> Vec<u8> {
        let mut bytes = head(DH_HMAC_CHAP, SUCCESS_1, self.transaction, 16);
        bytes[6] = hash_bytes;
        bytes[8] = u8::from(self.response.is_some());
        bytes.extend_from_slice(self.response.as_deref().unwrap_or_default());
        bytes
    }

    /// Reads the message.
    ///
    /// # Errors
    ///
    /// [`Error::Authentication`] if it is a failure message; [`Error::Short`] or
    /// [`Error::Malformed`] if it is not what it should be.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let name = "success message";
        let fields = message(bytes, DH_HMAC_CHAP, SUCCESS_1, 16, name)?;
        let transaction = fields.u16(4);
        if fields.u8(8) & 1 == 0 {
            return Ok(Self { transaction, response: None });
        }
        let hash = usize::from(fields.u8(6));
        Fields::new(bytes, 16 + hash, name)?;
        Ok(Self { transaction, response: Some(fields.slice(16, hash).to_vec()) })
    }
}

/// The message by which the host says that it knows the controller.
#[must_use]
pub fn success2(transaction: u16) -> Vec<u8> {
    head(DH_HMAC_CHAP, SUCCESS_2, transaction, 16)
}

/// The message by which the host gives up.
#[must_use]
pub fn failure2(transaction: u16, reason: FailureReason) -> Vec<u8> {
    failure(FAILURE_2, transaction, reason)
}

/// The message by which the controller gives up.
#[must_use]
pub fn failure1(transaction: u16, reason: FailureReason) -> Vec<u8> {
    failure(FAILURE_1, transaction, reason)
}

/// Which message of the host this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostMessage {
    /// [`Negotiate`].
    Negotiate,
    /// [`Reply`].
    Reply,
    /// [`success2`].
    Success2,
    /// [`failure2`].
    Failure2,
}

impl HostMessage {
    /// Looks at the first two bytes.
    #[must_use]
    pub const fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [COMMON, NEGOTIATE, ..] => Some(Self::Negotiate),
            [DH_HMAC_CHAP, REPLY, ..] => Some(Self::Reply),
            [DH_HMAC_CHAP, SUCCESS_2, ..] => Some(Self::Success2),
            [COMMON, FAILURE_2, ..] => Some(Self::Failure2),
            _ => None,
        }
    }
}

/// Why an authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FailureReason(pub u8);

impl FailureReason {
    /// The other side did not prove that it has the secret.
    pub const FAILED: Self = Self(1);
    /// No protocol that both sides have.
    pub const PROTOCOL_UNUSABLE: Self = Self(2);
    /// A secure channel was asked for and cannot be had, or the other way round.
    pub const SECURE_CHANNEL_MISMATCH: Self = Self(3);
    /// No hash function that both sides have.
    pub const HASH_UNUSABLE: Self = Self(4);
    /// No group that both sides have.
    pub const GROUP_UNUSABLE: Self = Self(5);
    /// A field of a message was wrong.
    pub const INCORRECT_PAYLOAD: Self = Self(6);
    /// Another message was expected.
    pub const INCORRECT_MESSAGE: Self = Self(7);
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            1 => "authentication failed",
            2 => "authentication protocol not usable",
            3 => "secure channel concatenation mismatch",
            4 => "hash function not usable",
            5 => "Diffie-Hellman group not usable",
            6 => "incorrect payload",
            7 => "incorrect protocol message",
            other => return write!(f, "unknown reason {other:02x}h"),
        })
    }
}

fn head(kind: u8, id: u8, transaction: u16, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    put(&mut bytes, 0, &[kind, id]);
    put(&mut bytes, 4, &transaction.to_le_bytes());
    bytes
}

fn failure(id: u8, transaction: u16, reason: FailureReason) -> Vec<u8> {
    let mut bytes = head(COMMON, id, transaction, 8);
    // Reason code 1, "authentication failure", is the only one; the explanation tells more.
    put(&mut bytes, 6, &[1, reason.0]);
    bytes
}

fn message<'b>(
    bytes: &'b [u8],
    kind: u8,
    id: u8,
    expected: usize,
    structure: &'static str,
) -> Result<Fields<'b>> {
    let fields = Fields::new(bytes, 8, structure)?;
    let found = (fields.u8(0), fields.u8(1));
    if found == (COMMON, FAILURE_1) || found == (COMMON, FAILURE_2) {
        return Err(Error::Authentication { reason: FailureReason(fields.u8(7)) });
    }
    if found != (kind, id) {
        return Err(Error::Malformed {
            structure,
            field: "type and identifier",
            found: u64::from(found.0) << 8 | u64::from(found.1),
            rule: "is not that of the message expected here",
        });
    }
    Fields::new(bytes, expected, structure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn a_negotiation_lists_hashes_and_groups_apart() {
        let negotiate = Negotiate {
            transaction: 0x0201,
            hashes: vec![HashId::SHA_256, HashId::SHA_512],
            groups: vec![GroupId::NULL, GroupId::FFDHE_2048],
        };
        let bytes = negotiate.to_bytes();
        assert_eq!(bytes.len(), 72);
        assert_eq!(bytes[..14], [0, 0, 0, 0, 1, 2, 0, 1, 1, 0, 2, 2, 1, 3]);
        assert_eq!(bytes[42..45], [0, 1, 0]);
        assert_eq!(Negotiate::parse(&bytes).unwrap(), negotiate);
        assert_eq!(HostMessage::of(&bytes), Some(HostMessage::Negotiate));
    }

    #[test]
    fn challenge_reply_and_success_survive_the_round_trip() {
        let challenge = Challenge {
            transaction: 1,
            hash: HashId::SHA_384,
            group: GroupId::FFDHE_2048,
            sequence: 0x0403_0201,
            challenge: vec![5; 48],
            public_value: vec![6; 256],
        };
        let bytes = challenge.to_bytes();
        assert_eq!(bytes[..16], [1, 1, 0, 0, 1, 0, 48, 0, 2, 1, 0, 1, 1, 2, 3, 4]);
        assert_eq!(Challenge::parse(&bytes).unwrap(), challenge);
        Challenge::parse(&bytes[..bytes.len() - 1]).unwrap_err();

        for own in [None, Some(vec![9; 48])] {
            let reply = Reply {
                transaction: 1,
                sequence: 7,
                response: vec![8; 48],
                challenge: own,
                public_value: vec![3; 256],
            };
            let bytes = reply.to_bytes();
            assert_eq!(bytes.len(), 16 + 96 + 256);
            assert_eq!(Reply::parse(&bytes).unwrap(), reply);
        }

        let success = Success1 { transaction: 1, response: Some(vec![4; 48]) };
        assert_eq!(Success1::parse(&success.to_bytes(48)).unwrap(), success);
    }

    #[test]
    fn a_failure_in_place_of_a_message_is_an_authentication_error() {
        let error = Challenge::parse(&failure1(1, FailureReason::HASH_UNUSABLE)).unwrap_err();
        assert!(matches!(error, Error::Authentication { reason: FailureReason::HASH_UNUSABLE }));
    }

    #[test]
    fn messages_from_anywhere_are_read_or_refused() {
        let mut random = Random::new(8);
        for round in 0..20_000 {
            let mut bytes = random.bytes(300);
            if bytes.len() > 2 && round % 2 == 0 {
                bytes[0] = 1;
                bytes[1] = [CHALLENGE, REPLY, SUCCESS_1][random.below(3)];
            }
            if let Ok(challenge) = Challenge::parse(&bytes) {
                assert_eq!(Challenge::parse(&challenge.to_bytes()).unwrap(), challenge);
            }
            if let Ok(reply) = Reply::parse(&bytes) {
                assert_eq!(Reply::parse(&reply.to_bytes()).unwrap(), reply);
            }
            let _other = (Success1::parse(&bytes), Negotiate::parse(&bytes));
        }
    }
}
