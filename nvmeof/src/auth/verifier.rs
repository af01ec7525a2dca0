//! The controller's side of an authentication, for the fake target.

use super::{
    exchange::Proof,
    group::{Group, PRIVATE_BYTES},
    hash::Hash,
    secret::Secret,
};
use crate::{
    Nqn,
    wire::auth::{Challenge, FailureReason, GroupId, Negotiate, Reply, Success1, failure1},
};

/// What a controller knows of the one host that it serves.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) secret: Secret,
    pub(crate) controller_secret: Option<Secret>,
    pub(crate) host: Nqn,
    pub(crate) subsystem: Nqn,
    pub(crate) group: GroupId,
}

const SEQUENCE: u32 = 77;
const PRIVATE: [u8; PRIVATE_BYTES] = [0x31; PRIVATE_BYTES];
const HASH: Hash = Hash::Sha384;

impl Verifier {
    pub(crate) fn challenge(&self, negotiate: &[u8]) -> Vec<u8> {
        let negotiate = Negotiate::parse(negotiate).unwrap();
        assert!(negotiate.hashes.contains(&HASH.id()) && negotiate.groups.contains(&self.group));
        let group = Group::from_id(self.group);
        Challenge {
            transaction: negotiate.transaction,
            hash: HASH.id(),
            group: self.group,
            sequence: SEQUENCE,
            challenge: vec![0x42; HASH.bytes()],
            public_value: group.map_or(Vec::new(), |group| group.public_value(&PRIVATE).unwrap()),
        }
        .to_bytes()
    }

    pub(crate) fn judge(&self, reply: &[u8]) -> Vec<u8> {
        let reply = Reply::parse(reply).unwrap();
        let transaction = reply.transaction;
        let session_key = Group::from_id(self.group)
            .map(|group| HASH.digest(&group.shared_secret(&PRIVATE, &reply.public_value).unwrap()));
        let answer = |secret: &Secret, owner, sequence, challenge: &[u8], role, names| {
            let augmented = session_key.as_ref().map(|key| HASH.hmac(key, &[challenge]));
            let proof = Proof { sequence, transaction, role, names };
            let challenge = augmented.as_deref().unwrap_or(challenge);
            proof.compute(HASH, &secret.transformed(owner), challenge)
        };
        let asked = [0x42; 48];
        let names = [&self.host, &self.subsystem];
        if reply.response != answer(&self.secret, &self.host, SEQUENCE, &asked, "HostHost", names) {
            return failure1(transaction, FailureReason::FAILED);
        }
        let response = reply.challenge.as_ref().and_then(|challenge| {
            let names = [&self.subsystem, &self.host];
            let secret = self.controller_secret.as_ref()?;
            let sequence = reply.sequence;
            Some(answer(secret, &self.subsystem, sequence, challenge, "Controller", names))
        });
        Success1 { transaction, response }.to_bytes(48)
    }
}
