//! A device that the network no longer reaches; see `kernel_efa_loss.efa`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
mod silent_peer;
#[expect(dead_code, reason = "these need few of the tools")]
mod support;

use efa::{
    Srd, VendorStatus,
    ibverbs::{CompletionStatus, SendWr},
};
use silent_peer::writes_until_one_fails;
use support::{Both, Lane, has_devices};

#[test]
fn a_peer_that_falls_silent_is_told_from_one_that_never_answered() {
    if !has_devices(3) {
        return;
    }
    let both = Both::new();
    let source = both.near.memory(vec![1; 64]);
    let target = both.far.memory(vec![0; 64]);
    let failure = writes_until_one_fails(&both, &source, &target);
    assert_eq!(failure.vendor_status(), VendorStatus::UNRESPONSIVE, "{failure}");
    assert!(failure.to_string().contains("answered before"), "{failure}");

    let other = Lane::open(2);
    let pair = other.pair();
    let to_far = other.peer(&both.far, &both.far_pair);
    let source = other.memory(vec![1; 64]);
    let bytes = source.segment(..).unwrap();
    let send = SendWr::<Srd>::send_with_imm_to(bytes, to_far.destination(), 1);
    pair.post_send(&mut [send]).unwrap();
    let failure = other.failure();
    assert_eq!(failure.vendor_status(), VendorStatus::UNREACHABLE, "{failure}");
    assert!(failure.to_string().contains("security group"), "{failure}");
    // What verbs call it depends on the release of rdma-core.
    let statuses = [CompletionStatus::RESPONSE_TIMEOUT, CompletionStatus::GENERAL_ERROR];
    assert!(statuses.contains(&failure.status()), "{failure}");
}
