//! Requests that fail: each with EFA's status and the text that explains it.

use efa::{
    Failure, Srd, VendorStatus,
    ibverbs::{
        Access, CompletionStatus, MemoryRegion, ProtectionDomain, RecvWr, RemoteKey, RemoteMemory,
        SendWr,
    },
};

use crate::support::{ALL, Both, KEY, Lane, has_devices, pattern, published};

/// Checks a failure against EFA's status, the one of verbs, and words of its explanation.
fn check(failure: Failure, vendor: VendorStatus, status: CompletionStatus, words: &str) {
    assert_eq!((failure.vendor_status(), failure.status()), (vendor, status));
    let text = failure.to_string();
    assert!(text.contains(words), "{text}");
    assert!(text.contains(&format!("{:#04x}", vendor.0)), "{text}");
}

/// Writes from `near` to any place.
fn write(both: &Both, to: &RemoteMemory) -> Failure {
    let source = both.near.memory(pattern(1, 4096));
    let bytes = source.segment(..).unwrap();
    let write =
        SendWr::<Srd>::write_to(bytes, &to.at(0).unwrap(), both.to_far.destination()).id(11);
    both.near_pair.post_send(&mut [write]).unwrap();
    let failure = both.near.failure();
    assert_eq!((failure.id(), failure.queue_pair()), (11, both.near_pair.number()));
    failure
}

#[test]
fn a_wrong_remote_key_is_a_bad_address() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let target = both.far.memory(vec![0; 4096]);
    let there = published(&target);
    let wrong =
        RemoteMemory::new(there.address(), there.len(), RemoteKey(there.key().0 ^ 1)).unwrap();
    check(
        write(&both, &wrong),
        VendorStatus::REMOTE_BAD_ADDRESS,
        CompletionStatus::REMOTE_ACCESS_ERROR,
        "the remote key is stale",
    );
}

#[test]
fn a_right_that_the_region_does_not_give_is_a_bad_address() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let target = both.far.memory_with(vec![0; 4096], access);
    check(
        write(&both, &published(&target)),
        VendorStatus::REMOTE_BAD_ADDRESS,
        CompletionStatus::REMOTE_ACCESS_ERROR,
        "does not allow this access",
    );
    assert_eq!(target.into_buffer().unwrap(), [0; 4096]);
}

#[test]
fn a_region_of_another_domain_is_a_bad_local_key() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let elsewhere = ProtectionDomain::allocate(&both.near.context).unwrap();
    let source = MemoryRegion::register(&elsewhere, vec![1_u8; 64], ALL).unwrap();
    let target = both.far.memory(vec![0; 64]);
    let (bytes, there) = (source.segment(..).unwrap(), published(&target).at(0).unwrap());
    let write = SendWr::<Srd>::write_to(bytes, &there, both.to_far.destination());
    both.near_pair.post_send(&mut [write]).unwrap();
    check(
        both.near.failure(),
        VendorStatus::INVALID_LOCAL_KEY,
        CompletionStatus::LOCAL_PROTECTION_ERROR,
        "another protection domain",
    );
}

#[test]
fn a_send_longer_than_the_mtu_is_a_bad_length() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let most = both.near.port.attributes.max_message_length() as usize;
    let source = both.near.memory(vec![1; most + 1]);
    let target = both.far.memory(vec![0; most + 1]);
    both.far_pair.post_receive(&mut [RecvWr::to(1, target.segment(..).unwrap())]).unwrap();
    let bytes = source.segment(..).unwrap();
    let send = SendWr::<Srd>::send_with_imm_to(bytes, both.to_far.destination(), 1);
    both.near_pair.post_send(&mut [send]).unwrap();
    check(
        both.near.failure(),
        VendorStatus::BAD_LENGTH,
        CompletionStatus::LOCAL_LENGTH_ERROR,
        "longer than the MTU",
    );
}

#[test]
fn a_receive_that_is_too_short_fails_on_both_sides() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let source = both.near.memory(vec![1; 100]);
    let target = both.far.memory(vec![0; 99]);
    both.far_pair.post_receive(&mut [RecvWr::to(8, target.segment(..).unwrap())]).unwrap();
    let bytes = source.segment(..).unwrap();
    let send = SendWr::<Srd>::send_with_imm_to(bytes, both.to_far.destination(), 1);
    both.near_pair.post_send(&mut [send]).unwrap();
    check(
        both.near.failure(),
        VendorStatus::REMOTE_BAD_LENGTH,
        CompletionStatus::REMOTE_INVALID_REQUEST,
        "shorter than the message",
    );
    let failure = both.far.failure();
    assert_eq!(failure.id(), 8);
    check(
        failure,
        VendorStatus::BAD_LENGTH,
        CompletionStatus::LOCAL_LENGTH_ERROR,
        "longer than the posted receive",
    );
}

#[test]
fn a_requester_without_reverse_address_handle_is_an_unknown_peer() {
    if !has_devices(2) {
        return;
    }
    let (near, far) = (Lane::open(0), Lane::open(1));
    let (near_pair, far_pair) = (near.pair(), far.pair());
    let to_far = near.peer(&far, &far_pair);
    let source = near.memory(vec![1; 64]);
    let target = far.memory(vec![0; 64]);
    let there = published(&target).at(0).unwrap();
    let request =
        || SendWr::<Srd>::write_to(source.segment(..).unwrap(), &there, to_far.destination());
    near_pair.post_send(&mut [request()]).unwrap();
    check(
        near.failure(),
        VendorStatus::UNKNOWN_PEER,
        CompletionStatus::REMOTE_OPERATION_ERROR,
        "the responder has no address handle for the requester",
    );

    let to_near = far.peer(&near, &near_pair);
    near_pair.post_send(&mut [request()]).unwrap();
    near.completion().outcome().unwrap();
    drop(to_near);
}

#[test]
fn a_receiver_that_is_not_ready_is_given_up_when_retries_are_limited() {
    if !has_devices(2) {
        return;
    }
    let both = Both::with(|builder| builder.receiver_not_ready_retries(0));
    let source = both.near.memory(vec![1; 64]);
    let bytes = source.segment(..).unwrap();
    let send = SendWr::<Srd>::send_with_imm_to(bytes, both.to_far.destination(), 1);
    both.near_pair.post_send(&mut [send]).unwrap();
    check(
        both.near.failure(),
        VendorStatus::REMOTE_RECEIVER_NOT_READY,
        CompletionStatus::RECEIVER_NOT_READY,
        "posted too few receives",
    );
}

#[test]
fn a_destroyed_peer_is_a_bad_queue_pair() {
    if !has_devices(2) {
        return;
    }
    let (near, far) = (Lane::open(0), Lane::open(1));
    let near_pair = near.pair();
    let peer = {
        let far_pair = far.pair();
        near.peer(&far, &far_pair)
    };
    let source = near.memory(vec![1; 64]);
    let bytes = source.segment(..).unwrap();
    let send = SendWr::<Srd>::send_with_imm_to(bytes, peer.destination(), 1);
    near_pair.post_send(&mut [send]).unwrap();
    check(
        near.failure(),
        VendorStatus::REMOTE_BAD_QUEUE_PAIR,
        CompletionStatus::REMOTE_INVALID_DATAGRAM,
        "was destroyed",
    );
}

#[test]
fn ends_that_disagree_on_unsolicited_writes_are_told() {
    if !has_devices(2) {
        return;
    }
    let (near, far) = (Lane::open(0), Lane::telling(1));
    let near_pair = near.pair();
    let far_pair = far.builder().unsolicited_write_receives().prepare(&far.port, KEY).unwrap();
    let (to_far, _to_near) = (near.peer(&far, &far_pair), far.peer(&near, &near_pair));
    let source = near.memory(vec![1; 64]);
    let target = far.memory(vec![0; 64]);
    let (bytes, there) = (source.segment(..).unwrap(), published(&target).at(0).unwrap());
    let write = SendWr::<Srd>::write_with_imm_to(bytes, &there, to_far.destination(), 1);
    near_pair.post_send(&mut [write]).unwrap();
    let failure = near.failure();
    // The status of verbs depends on the release of rdma-core.
    let status = failure.status();
    let words = "agree on unsolicited write receives";
    check(failure, VendorStatus::FEATURE_MISMATCH, status, words);
}

#[test]
fn a_queue_pair_that_is_ended_flushes_its_receives() {
    if !has_devices(1) {
        return;
    }
    let lane = Lane::open(0);
    let pair = lane.pair();
    let target = lane.memory(vec![0; 64]);
    for id in 0..3 {
        pair.post_receive(&mut [RecvWr::to(id, target.segment(..).unwrap())]).unwrap();
    }
    pair.fail().unwrap();
    for done in lane.completions(3) {
        let failure = Failure::from(done.outcome().unwrap_err());
        assert!(failure.is_flushed());
        assert_eq!(failure.vendor_status(), VendorStatus::FLUSHED);
    }
}

#[test]
fn a_full_send_queue_says_that_it_must_be_polled() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let source = both.near.memory(vec![1; 64]);
    let target = both.far.memory(vec![0; 64]);
    let there = published(&target).at(0).unwrap();
    let room = both.near_pair.capabilities().send_requests as usize;
    let request =
        || SendWr::<Srd>::write_to(source.segment(..).unwrap(), &there, both.to_far.destination());
    let mut posted = 0;
    let error = loop {
        match both.near_pair.post_send(&mut [request()]) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        // Nothing is polled, so that the queue fills even if the device is done at once.
        assert!(posted <= 2 * room);
    };
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    assert!(error.error().to_string().contains("poll completions"), "{}", error.error());
    both.near.successes(posted);
    both.near_pair.post_send(&mut [request()]).unwrap();
    both.near.completion().outcome().unwrap();
}
