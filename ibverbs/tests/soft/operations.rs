//! Every operation, on both ways of posting.

use ibverbs::Posting;
use soft_device::SoftDevice;

use crate::{
    common::transfers::every_operation_within,
    support::{assert_clean, open},
};

fn every_operation(posting: Posting) {
    let device = SoftDevice::new();
    every_operation_within(&open(&device), posting);
    assert_clean(&device);
}

#[test]
fn every_operation_moves_the_right_bytes_by_extended_posting() {
    every_operation(Posting::Extended);
}

#[test]
fn every_operation_moves_the_right_bytes_by_classic_posting() {
    every_operation(Posting::Classic);
}
