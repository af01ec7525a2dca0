//! The Diffie-Hellman groups of RFC 7919.

use crypto_bigint::{
    BoxedUint, Odd,
    modular::{BoxedMontyForm, BoxedMontyParams},
};

use crate::wire::auth::GroupId;

/// A group with an exchange; the group without one has no values to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) id: GroupId,
    /// Bits of the prime, a multiple of 64.
    bits: u32,
    /// What makes the formula of the RFC give a safe prime.
    addend: u32,
}

/// Bytes of a private value: twice the strength of the largest group, and more than the RFC asks.
pub(super) const PRIVATE_BYTES: usize = 64;

impl Group {
    /// All of them, the smallest first.
    pub(super) const ALL: [Self; 5] = [
        Self { id: GroupId::FFDHE_2048, bits: 2048, addend: 560_316 },
        Self { id: GroupId::FFDHE_3072, bits: 3072, addend: 2_625_351 },
        Self { id: GroupId::FFDHE_4096, bits: 4096, addend: 5_736_041 },
        Self { id: GroupId::FFDHE_6144, bits: 6144, addend: 15_705_020 },
        Self { id: GroupId::FFDHE_8192, bits: 8192, addend: 10_965_728 },
    ];

    pub(super) fn from_id(id: GroupId) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id == id)
    }

    /// Bytes of a public value and of the shared secret.
    pub(super) fn bytes(self) -> usize {
        usize::try_from(self.bits / 8).unwrap_or(usize::MAX)
    }

    /// The public value of a private one, big-endian.
    pub(super) fn public_value(self, private: &[u8; PRIVATE_BYTES]) -> Option<Vec<u8>> {
        self.power(&BoxedUint::from_be_slice(&[2], self.bits).ok()?, private)
    }

    /// The secret shared with the peer of this public value; nothing for a value that gives no
    /// secret: zero, one, the prime less one, or anything from the prime on.
    pub(super) fn shared_secret(
        self,
        private: &[u8; PRIVATE_BYTES],
        peer: &[u8],
    ) -> Option<Vec<u8>> {
        let peer = BoxedUint::from_be_slice(peer, self.bits).ok()?;
        let one = BoxedUint::one_with_precision(self.bits);
        let largest = self.prime()?.wrapping_sub(&one);
        (peer > one && peer < largest).then(|| self.power(&peer, private)).flatten()
    }

    fn power(self, base: &BoxedUint, private: &[u8; PRIVATE_BYTES]) -> Option<Vec<u8>> {
        let parameters = BoxedMontyParams::new(Odd::new(self.prime()?).into_option()?);
        let exponent = BoxedUint::from_be_slice(private, 8 * 64).ok()?;
        let power = BoxedMontyForm::new(base.clone(), &parameters).pow(&exponent);
        Some(power.retrieve().to_be_bytes().into_vec())
    }

    /// `2^b - 2^(b-64) + (floor(2^(b-130) e) + addend) 2^64 - 1`: 64 ones, the leading digits of
    /// Euler's number plus `addend - 1`, 64 ones.
    fn prime(self) -> Option<BoxedUint> {
        let middle_bytes = self.bytes().checked_sub(16)?;
        let mut middle = Vec::with_capacity(middle_bytes);
        for pair in EULER.as_bytes().chunks_exact(2).take(middle_bytes) {
            middle.push(u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?);
        }
        let mut carry = self.addend - 1;
        for byte in middle.iter_mut().rev() {
            let sum = u32::from(*byte) + carry;
            *byte = sum.to_le_bytes()[0];
            carry = sum >> 8;
        }
        let bytes = [&[0xff; 8], middle.as_slice(), &[0xff; 8]].concat();
        BoxedUint::from_be_slice(&bytes, self.bits).ok()
    }
}

/// The first 8064 binary digits of Euler's number, 2.718..., the two before the point included.
const EULER: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363\
    630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935\
    984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94b\
    b2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ec\
    c03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef183\
    7d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c907\
    7ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e\
    71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef\
    3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42d69f6d187763cf1d\
    5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c46dc778f971ad0038\
    092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851\
    f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
    917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7\
    a9a96910b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4\
    763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b\
    462d538cd72b03746ae77f5e62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403\
    ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329c\
    cff46aaa36ad004cf600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef\
    86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd70229388839d2af05e454504ac78b7582822846c0ba\
    35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e7451a8a93109703fee1c217e6c3826e52c\
    51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0a1fe3075a577e23183f81d4a\
    3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e2f741ef8c1fe86fe\
    a6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::hash::Hash;

    /// Digests made with another implementation, which also checked that the primes are safe.
    const PRIMES: [[u8; 4]; 5] = [
        [0x9c, 0xd3, 0xb7, 0xf3],
        [0x0e, 0xaf, 0x67, 0xdb],
        [0x46, 0x48, 0x41, 0x42],
        [0x22, 0x7a, 0xc9, 0x06],
        [0x77, 0x0b, 0x14, 0xef],
    ];

    fn first_four(value: &[u8]) -> [u8; 4] {
        Hash::Sha256.digest(value)[..4].try_into().unwrap()
    }

    fn counting_from(first: u8) -> [u8; PRIVATE_BYTES] {
        std::array::from_fn(|index| first + u8::try_from(index).unwrap())
    }

    #[test]
    fn the_primes_are_those_of_the_rfc() {
        for (group, digest) in Group::ALL.into_iter().zip(PRIMES) {
            assert_eq!(first_four(&group.prime().unwrap().to_be_bytes()), digest, "{group:?}");
        }
    }

    #[test]
    fn both_sides_compute_the_same_secret() {
        let group = Group::ALL[0];
        let (ours, theirs) = (counting_from(1), counting_from(65));
        let our_value = group.public_value(&ours).unwrap();
        let their_value = group.public_value(&theirs).unwrap();
        assert_eq!(first_four(&our_value), [0x19, 0x08, 0xb0, 0x77]);
        assert_eq!(first_four(&their_value), [0x95, 0xda, 0x64, 0x27]);
        let secret = group.shared_secret(&ours, &their_value).unwrap();
        assert_eq!(secret.len(), 256);
        assert_eq!(first_four(&secret), [0x17, 0x94, 0x7c, 0x48]);
        assert_eq!(group.shared_secret(&theirs, &our_value).unwrap(), secret);
    }

    #[test]
    fn values_that_give_no_secret_are_refused() {
        let group = Group::ALL[0];
        let prime = group.prime().unwrap();
        let one = BoxedUint::one_with_precision(2048);
        for value in [
            vec![0; 256],
            one.to_be_bytes().to_vec(),
            prime.wrapping_sub(&one).to_be_bytes().to_vec(),
            prime.to_be_bytes().to_vec(),
            vec![0xff; 256],
            vec![1; 257],
            Vec::new(),
        ] {
            assert_eq!(group.shared_secret(&counting_from(1), &value), None);
        }
    }
}
