//! The host's side of one authentication, as a state machine without input or output.

use std::fmt;

use super::{
    group::{Group, PRIVATE_BYTES},
    hash::{Hash, equal},
    secret::Secret,
};
use crate::{
    Error, Nqn, Result, random,
    wire::auth::{Challenge, FailureReason, GroupId, Negotiate, Reply, Success1, success2},
};

/// One authentication of one queue.
pub(crate) struct Exchange<'host> {
    secret: &'host Secret,
    /// What the controller has to prove to have; nothing if it need not.
    controller_secret: Option<&'host Secret>,
    host: &'host Nqn,
    subsystem: &'host Nqn,
    transaction: u16,
    /// What the controller has to answer, once it was asked.
    expected: Option<Vec<u8>>,
}

impl<'host> Exchange<'host> {
    /// Begins; `transaction` tells this authentication from others of the same association.
    pub(crate) fn new(
        secret: &'host Secret,
        controller_secret: Option<&'host Secret>,
        host: &'host Nqn,
        subsystem: &'host Nqn,
        transaction: u16,
    ) -> Self {
        Self { secret, controller_secret, host, subsystem, transaction, expected: None }
    }

    pub(crate) const fn transaction(&self) -> u16 {
        self.transaction
    }

    /// The first message: everything this crate can do.
    pub(crate) fn negotiate(&self) -> Vec<u8> {
        let groups = Group::ALL.iter().map(|group| group.id);
        Negotiate {
            transaction: self.transaction,
            hashes: Hash::ALL.iter().map(|hash| hash.id()).collect(),
            groups: std::iter::once(GroupId::NULL).chain(groups).collect(),
        }
        .to_bytes()
    }

    /// Answers the controller's challenge, and challenges it if it has something to prove.
    pub(crate) fn reply(&mut self, challenge: &[u8]) -> Result<Vec<u8>> {
        let failed = |reason| Error::Authentication { reason };
        let challenge = Challenge::parse(challenge)?;
        if challenge.transaction != self.transaction {
            return Err(failed(FailureReason::INCORRECT_MESSAGE));
        }
        let hash =
            Hash::from_id(challenge.hash).ok_or_else(|| failed(FailureReason::HASH_UNUSABLE))?;
        if challenge.challenge.len() != hash.bytes() {
            return Err(failed(FailureReason::INCORRECT_PAYLOAD));
        }
        let (public_value, session_key) = match challenge.group {
            GroupId::NULL if challenge.public_value.is_empty() => (Vec::new(), None),
            GroupId::NULL => return Err(failed(FailureReason::INCORRECT_PAYLOAD)),
            id => {
                let group =
                    Group::from_id(id).ok_or_else(|| failed(FailureReason::GROUP_UNUSABLE))?;
                let (public, secret) = diffie_hellman(group, &challenge.public_value)?;
                (public, Some(hash.digest(&secret)))
            }
        };

        let proof = |key: Vec<u8>, sequence, challenge: &[u8], role, names: [&Nqn; 2]| {
            let augmented = session_key.as_ref().map(|key| hash.hmac(key, &[challenge]));
            let proof = Proof { sequence, transaction: self.transaction, role, names };
            proof.compute(hash, &key, augmented.as_deref().unwrap_or(challenge))
        };
        let response = proof(
            self.secret.transformed(self.host),
            challenge.sequence,
            &challenge.challenge,
            "HostHost",
            [self.host, self.subsystem],
        );
        let (mut own_challenge, mut sequence) = (None, 0);
        let mut expected = None;
        if let Some(secret) = self.controller_secret {
            let mut bytes = vec![0; hash.bytes()];
            random::fill(&mut bytes)?;
            // Zero would say that nothing is asked.
            sequence = random::number()?.max(1);
            expected = Some(proof(
                secret.transformed(self.subsystem),
                sequence,
                &bytes,
                "Controller",
                [self.subsystem, self.host],
            ));
            own_challenge = Some(bytes);
        }
        self.expected = expected;
        Ok(Reply {
            transaction: self.transaction,
            sequence,
            response,
            challenge: own_challenge,
            public_value,
        }
        .to_bytes())
    }

    /// Checks the controller's last message; gives the message that ends the exchange, if one is
    /// due.
    pub(crate) fn finish(self, success: &[u8]) -> Result<Option<Vec<u8>>> {
        let failed = |reason| Error::Authentication { reason };
        let success = Success1::parse(success)?;
        if success.transaction != self.transaction {
            return Err(failed(FailureReason::INCORRECT_MESSAGE));
        }
        match (self.expected, success.response) {
            (None, _) => Ok(None),
            (Some(expected), Some(response)) if equal(&expected, &response) => {
                Ok(Some(success2(self.transaction)))
            }
            // A controller that was asked and does not answer has proved nothing either.
            (Some(_), _) => Err(failed(FailureReason::FAILED)),
        }
    }
}

/// Tells who, and no secret.
impl fmt::Debug for Exchange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("host", self.host).finish_non_exhaustive()
    }
}

/// What a response is computed over, besides the challenge.
pub(super) struct Proof<'names> {
    pub(super) sequence: u32,
    pub(super) transaction: u16,
    pub(super) role: &'static str,
    pub(super) names: [&'names Nqn; 2],
}

impl Proof<'_> {
    pub(super) fn compute(&self, hash: Hash, key: &[u8], challenge: &[u8]) -> Vec<u8> {
        let [first, second] = self.names;
        hash.hmac(
            key,
            &[
                challenge,
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                // No secure channel.
                &[0],
                self.role.as_bytes(),
                first.as_str().as_bytes(),
                &[0],
                second.as_str().as_bytes(),
            ],
        )
    }
}

/// A fresh public value, and the secret shared with the controller.
fn diffie_hellman(group: Group, peer: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let wrong_value = || Error::Authentication { reason: FailureReason::INCORRECT_PAYLOAD };
    if peer.len() != group.bytes() {
        return Err(wrong_value());
    }
    let mut private = [0; PRIVATE_BYTES];
    random::fill(&mut private)?;
    let secret = group.shared_secret(&private, peer).ok_or_else(wrong_value)?;
    let public = group.public_value(&private).ok_or_else(wrong_value)?;
    Ok((public, secret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{testing::Random, wire::auth::HashId};

    const KEY_32: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    const KEY_48: &str =
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

    fn names() -> (Nqn, Nqn) {
        let name = |text| Nqn::new(text).unwrap();
        (name("nqn.2024-01.org.example:host"), name("nqn.2024-01.org.example:disk"))
    }

    fn challenge(hash: Hash) -> Challenge {
        Challenge {
            transaction: 0x0506,
            hash: hash.id(),
            group: GroupId::NULL,
            sequence: 0x0102_0304,
            challenge: vec![0xa5; hash.bytes()],
            public_value: Vec::new(),
        }
    }

    /// Responses to the challenge above, computed with another implementation of HMAC.
    #[test]
    fn responses_are_those_of_another_implementation() {
        let (host, subsystem) = names();
        for (secret, hash, first_bytes) in [
            (format!("DHHC-1:00:{KEY_32}"), Hash::Sha256, [0x2c, 0xe4, 0x37, 0x2d]),
            (format!("DHHC-1:01:{KEY_32}"), Hash::Sha256, [0x3c, 0x98, 0x47, 0x48]),
            (format!("DHHC-1:02:{KEY_48}"), Hash::Sha384, [0x2e, 0x33, 0x03, 0x78]),
            (format!("DHHC-1:03:{KEY_48}"), Hash::Sha256, [0xa5, 0x27, 0xd1, 0xa7]),
        ] {
            let secret: Secret = secret.parse().unwrap();
            let mut exchange = Exchange::new(&secret, None, &host, &subsystem, 0x0506);
            let reply = exchange.reply(&challenge(hash).to_bytes()).unwrap();
            let reply = Reply::parse(&reply).unwrap();
            assert_eq!(reply.response[..4], first_bytes);
            assert_eq!((reply.challenge, reply.sequence), (None, 0));
        }
    }

    #[test]
    fn a_session_key_changes_the_challenge_that_is_answered() {
        let (host, subsystem) = names();
        let secret: Secret = format!("DHHC-1:01:{KEY_32}").parse().unwrap();
        let counting = |first: u8| std::array::from_fn(|i| first + u8::try_from(i).unwrap());
        let group = Group::from_id(GroupId::FFDHE_2048).unwrap();
        let peer = group.public_value(&counting(65)).unwrap();
        let shared = group.shared_secret(&counting(1), &peer).unwrap();
        let hash = Hash::Sha256;
        let augmented = hash.hmac(&hash.digest(&shared), &[&[0xa5; 32]]);
        let proof = Proof {
            sequence: 0x0102_0304,
            transaction: 0x0506,
            role: "HostHost",
            names: [&host, &subsystem],
        };
        let response = proof.compute(hash, &secret.transformed(&host), &augmented);
        assert_eq!(response[..4], [0xf7, 0x6e, 0x46, 0x68]);
    }

    #[test]
    fn a_controller_that_proves_itself_is_believed_and_no_other() {
        let (host, subsystem) = names();
        let secret: Secret = format!("DHHC-1:00:{KEY_32}").parse().unwrap();
        let theirs: Secret = format!("DHHC-1:01:{KEY_48}").parse().unwrap();
        for (knows, answers) in [(true, true), (false, true), (true, false)] {
            let mut exchange = Exchange::new(&secret, Some(&theirs), &host, &subsystem, 0x0506);
            let reply = exchange.reply(&challenge(Hash::Sha512).to_bytes()).unwrap();
            let reply = Reply::parse(&reply).unwrap();
            let used = if knows { &theirs } else { &secret };
            let proof = Proof {
                sequence: reply.sequence,
                transaction: 0x0506,
                role: "Controller",
                names: [&subsystem, &host],
            };
            let asked = reply.challenge.unwrap();
            let response = proof.compute(Hash::Sha512, &used.transformed(&subsystem), &asked);
            let success = Success1 { transaction: 0x0506, response: answers.then_some(response) };
            let result = exchange.finish(&success.to_bytes(64));
            assert_eq!(result.is_ok(), knows && answers);
        }
    }

    #[test]
    fn challenges_that_do_not_fit_are_refused() {
        let (host, subsystem) = names();
        let secret: Secret = format!("DHHC-1:00:{KEY_32}").parse().unwrap();
        let good = challenge(Hash::Sha256);
        for (wrong, reason) in [
            (Challenge { transaction: 1, ..good.clone() }, FailureReason::INCORRECT_MESSAGE),
            (Challenge { hash: HashId(9), ..good.clone() }, FailureReason::HASH_UNUSABLE),
            (Challenge { group: GroupId(9), ..good.clone() }, FailureReason::GROUP_UNUSABLE),
            (
                Challenge { challenge: vec![1; 31], ..good.clone() },
                FailureReason::INCORRECT_PAYLOAD,
            ),
            (Challenge { public_value: vec![1], ..good.clone() }, FailureReason::INCORRECT_PAYLOAD),
            (
                Challenge {
                    group: GroupId::FFDHE_2048,
                    public_value: vec![0; 256],
                    ..good.clone()
                },
                FailureReason::INCORRECT_PAYLOAD,
            ),
        ] {
            let mut exchange = Exchange::new(&secret, None, &host, &subsystem, 0x0506);
            let error = exchange.reply(&wrong.to_bytes()).unwrap_err();
            assert!(matches!(error, Error::Authentication { reason: found } if found == reason));
        }
    }

    #[test]
    fn messages_from_anywhere_end_in_a_reply_or_an_error() {
        let (host, subsystem) = names();
        let secret: Secret = format!("DHHC-1:00:{KEY_32}").parse().unwrap();
        let mut random = Random::new(10);
        for _ in 0..2_000 {
            let mut bytes = challenge(Hash::Sha256).to_bytes();
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
            let mut exchange = Exchange::new(&secret, None, &host, &subsystem, 0x0506);
            let _replied_or_refused = exchange.reply(&bytes);
            let _finished_or_refused = exchange.finish(&random.bytes(80));
        }
    }
}
