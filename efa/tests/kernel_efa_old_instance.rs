//! An older instance type: no RDMA, and a device does not reach itself; see `kernel_efa_old_instance.efa`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[expect(dead_code, reason = "these need few of the tools")]
mod support;

use std::sync::Arc;

use efa::{
    EfaCapabilities, Error, Srd, VendorStatus,
    ibverbs::{Access, Operations, RecvWr, RemoteKey, RemoteMemory, SendWr},
};
use support::{Both, Lane, has_devices, pattern, told};

#[test]
fn writes_are_refused_before_anything_is_called_and_sends_go() {
    if !has_devices(2) {
        return;
    }
    let near = Lane::open(0);
    let attributes = efa::query_device(&near.context).unwrap();
    let rdma = EfaCapabilities::RDMA_READ | EfaCapabilities::RDMA_WRITE;
    let error = attributes.require(rdma).unwrap_err();
    assert!(matches!(error, Error::MissingCapability { missing, .. } if missing == rdma));
    let error = near.builder().operations(Operations::WRITE).create().unwrap_err();
    assert!(error.to_string().contains("does not have RDMA write"), "{error}");
    assert!(error.to_string().contains("instance type"), "{error}");

    let both = Both::between(near, Lane::open(1), |builder| builder);
    let source = both.near.memory_with(pattern(1, 5000), Access::LOCAL_WRITE);
    let target = both.far.memory_with(vec![0; 5000], Access::LOCAL_WRITE);
    let (bytes, to) = (source.segment(..).unwrap(), both.to_far.destination());
    let there = RemoteMemory::new(target.address(), 5000, RemoteKey(1)).unwrap().at(0).unwrap();
    let error = both.near_pair.post_send(&mut [SendWr::<Srd>::write_to(bytes, &there, to)]);
    let error = error.unwrap_err();
    assert!(error.error().to_string().contains("was not made for a "), "{}", error.error());

    both.far_pair.post_receive(&mut [RecvWr::to(1, target.segment(..).unwrap())]).unwrap();
    both.near_pair.post_send(&mut [SendWr::<Srd>::send_with_imm_to(bytes, to, 1)]).unwrap();
    both.near.successes(1);
    both.far.successes(1);
    assert_eq!(target.into_buffer().unwrap(), pattern(1, 5000));
}

#[test]
fn a_poller_of_an_old_library_tells_what_that_knows() {
    if !has_devices(2) {
        return;
    }
    let far = Lane::open(1);
    // Not the first queue of the device, whose number is zero: rdma-core 44 has that where later releases tell of
    // unsolicited writes.
    let queue = efa::completion_queue(&far.context, 16).create().unwrap();
    let far = Lane { queue: Arc::new(queue), ..far };
    let both = Both::between(Lane::open(0), far, |builder| builder);
    let source = both.near.memory_with(pattern(1, 64), Access::LOCAL_WRITE);
    let target = both.far.memory_with(vec![0; 64], Access::LOCAL_WRITE);
    both.far_pair.post_receive(&mut [RecvWr::to(1, target.segment(..).unwrap())]).unwrap();
    let (bytes, to) = (source.segment(..).unwrap(), both.to_far.destination());
    both.near_pair.post_send(&mut [SendWr::<Srd>::send_with_imm_to(bytes, to, 1)]).unwrap();
    both.near.successes(1);
    let completion = told(&both.far.queue);
    assert_eq!(completion.outcome().unwrap().immediate(), Some(1));
    assert_eq!(completion.is_unsolicited(), None);
}

#[test]
fn what_a_device_sends_to_itself_is_dropped_and_the_sender_told() {
    if !has_devices(1) {
        return;
    }
    let lane = Lane::open(0);
    let (one, other) = (lane.pair(), lane.pair());
    let peer = lane.peer(&lane, &other);
    let source = lane.memory_with(vec![1; 64], Access::LOCAL_WRITE);
    let bytes = source.segment(..).unwrap();
    one.post_send(&mut [SendWr::<Srd>::send_with_imm_to(bytes, peer.destination(), 1)]).unwrap();
    let failure = lane.failure();
    assert_eq!(failure.vendor_status(), VendorStatus::UNREACHABLE, "{failure}");
    assert!(failure.to_string().contains("the same device or instance"), "{failure}");
}
