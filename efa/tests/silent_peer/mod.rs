//! Writing to a peer that answers at first and not for ever.

use efa::{
    Failure, Srd,
    ibverbs::{MemoryRegion, SendWr},
};

use crate::support::{Both, published};

/// Writes one region into the other until that fails, and says how. At least one write must succeed before.
pub(crate) fn writes_until_one_fails(
    both: &Both,
    source: &MemoryRegion<'static, Vec<u8>>,
    target: &MemoryRegion<'static, Vec<u8>>,
) -> Failure {
    let there = published(target).at(0).unwrap();
    for written in 0..100 {
        let bytes = source.segment(..).unwrap();
        let write = SendWr::<Srd>::write_to(bytes, &there, both.to_far.destination());
        both.near_pair.post_send(&mut [write]).unwrap();
        if let Err(failed) = both.near.completion().outcome() {
            assert!(written > 0, "it should answer at first");
            return Failure::from(failed);
        }
    }
    panic!("it should not answer for ever");
}
