//! A device without reads and with small transfers; see `kernel_efa_limits.efa`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[expect(dead_code, reason = "these need few of the tools")]
mod support;

use efa::{
    EfaCapabilities, Error, Srd, VendorStatus,
    ibverbs::{Access, MemoryRegion, Operations, SendWr},
};
use support::{Both, KEY, Lane, has_devices, pattern, published};

/// What a region may be registered for on a device without reads.
const WRITES: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

#[test]
fn what_the_device_lacks_is_refused_before_anything_is_called() {
    if !has_devices(1) {
        return;
    }
    let lane = Lane::open(0);
    let attributes = efa::query_device(&lane.context).unwrap();
    assert!(!attributes.capabilities().contains(EfaCapabilities::RDMA_READ));
    let missing = |error: Error| match error {
        Error::MissingCapability { missing, .. } => missing,
        other => panic!("{other}"),
    };
    let read = lane.builder().operations(Operations::READ | Operations::SEND);
    assert_eq!(missing(read.create().unwrap_err()), EfaCapabilities::RDMA_READ);
    let retries = lane.builder().receiver_not_ready_retries(3);
    assert_eq!(missing(retries.prepare(&lane.port, KEY).unwrap_err()), EfaCapabilities::RNR_RETRY);
    let unsolicited = lane.builder().unsolicited_write_receives();
    let wanted = EfaCapabilities::UNSOLICITED_WRITE_RECV;
    assert_eq!(missing(unsolicited.create().unwrap_err()), wanted);
    let queue = efa::completion_queue(&lane.context, 16).unsolicited();
    assert_eq!(missing(queue.create().unwrap_err()), wanted);
    let access = WRITES | Access::REMOTE_READ;
    let error = MemoryRegion::register(&lane.domain, vec![0_u8; 64], access).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
}

#[test]
fn a_queue_pair_has_what_the_device_has_and_a_read_is_refused_when_it_is_posted() {
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    let target = both.far.memory_with(vec![0; 64], WRITES);
    let into = both.near.memory_with(vec![0; 64], WRITES);
    let (there, to) = (published(&target).at(0).unwrap(), both.to_far.destination());
    let read = SendWr::<Srd>::read_from(into.segment(..).unwrap(), &there, to);
    let error = both.near_pair.post_send(&mut [read]).unwrap_err();
    assert!(error.error().to_string().contains("was not made for a "), "{}", error.error());
    let write = SendWr::<Srd>::write_to(into.segment(..).unwrap(), &there, to);
    both.near_pair.post_send(&mut [write]).unwrap();
    both.near.successes(1);
}

#[test]
fn a_transfer_over_the_largest_size_fails_whole_and_succeeds_in_pieces() {
    if !has_devices(2) {
        return;
    }
    const LENGTH: usize = 500_000;
    let both = Both::new();
    let largest = efa::query_device(&both.near.context).unwrap().max_rdma_size();
    assert_eq!(largest, 65_536);
    let source = both.near.memory_with(pattern(1, LENGTH), WRITES);
    let target = both.far.memory_with(vec![0; LENGTH], WRITES);
    let there = published(&target).at(0).unwrap();
    let to = both.to_far.destination();
    let whole = SendWr::<Srd>::write_to(source.segment(..).unwrap(), &there, to);
    // The provider or the device says so, depending on the release.
    if both.near_pair.post_send(&mut [whole]).is_ok() {
        let failure = both.near.failure();
        assert_eq!(failure.vendor_status(), VendorStatus::BAD_LENGTH);
        assert!(failure.to_string().contains("write_wrs"), "{failure}");
    }
    let mut writes: Vec<_> =
        efa::write_wrs(&source, .., &there, &both.to_far, largest).unwrap().collect();
    assert_eq!(writes.len(), 8);
    both.near_pair.post_send(&mut writes).unwrap();
    both.near.successes(8);
    assert_eq!(target.into_buffer().unwrap(), source.into_buffer().unwrap());
}
