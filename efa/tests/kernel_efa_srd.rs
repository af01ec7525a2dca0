//! Sends, writes and reads between two EFA devices under the kernel's own driver.

mod common;

use common::{Both, has_devices, pattern, published};
use efa::{
    Srd,
    ibverbs::{Operation, RecvWr, SendWr},
};

#[test]
fn a_write_with_immediate_places_its_bytes_and_completes_a_receive() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let source = both.near.memory(pattern(1, 100_000));
    let target = both.far.memory(vec![0; 100_000]);
    let credit = both.far.memory(vec![0; 1]);
    both.far_pair.post_receive(&mut [RecvWr::to(7, credit.segment(..).unwrap())]).unwrap();

    let (memory, to) = (published(&target).at(0).unwrap(), both.to_far.destination());
    let write = SendWr::<Srd>::write_with_imm_to(source.segment(..).unwrap(), &memory, to, 0xC0DE);
    both.near_pair.post_send(&mut [write.id(9)]).unwrap();

    let sent = both.near.completion();
    assert_eq!(sent.outcome().unwrap().id(), 9);
    let received = both.far.completion();
    let received = received.outcome().unwrap();
    assert_eq!(received.id(), 7);
    assert_eq!(received.operation(), Operation::RECEIVE_WRITE_WITH_IMMEDIATE);
    assert_eq!(received.immediate(), Some(0xC0DE));
    assert_eq!(received.byte_length(), 100_000);
    assert_eq!(target.into_buffer().unwrap(), source.into_buffer().unwrap());
}
