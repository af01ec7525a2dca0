//! What the unit tests share: seeded random bytes, so that a failure repeats.

/// A small generator (`SplitMix64`); the same seed gives the same bytes everywhere.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    /// Up to `longest` bytes, half of them zeros now and then, which reaches deeper.
    pub(crate) fn bytes(&mut self, longest: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(longest + 1)];
        self.fill(&mut bytes);
        if self.below(2) == 0 {
            for byte in &mut bytes {
                if self.below(2) == 0 {
                    *byte = 0;
                }
            }
        }
        bytes
    }
}
