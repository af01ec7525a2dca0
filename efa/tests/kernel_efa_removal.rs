//! A device that is taken out of the machine, and put back.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[expect(dead_code, reason = "these need few of the tools")]
mod support;

use std::{fs, path::Path, thread, time::Duration};

use efa::{
    Srd, VendorStatus,
    ibverbs::{RecvWr, SendWr},
};
use support::{Both, Lane, device, has_devices, pattern};

/// How many devices there are.
fn count() -> usize {
    efa::devices().unwrap().len()
}

/// Sends a message from one end to the other, where it must arrive.
fn send(both: &Both) {
    let source = both.near.memory(pattern(1, 1000));
    let target = both.far.memory(vec![0; 1000]);
    both.far_pair.post_receive(&mut [RecvWr::to(1, target.segment(..).unwrap())]).unwrap();
    let bytes = source.segment(..).unwrap();
    let send = SendWr::<Srd>::send_with_imm_to(bytes, both.to_far.destination(), 1);
    both.near_pair.post_send(&mut [send]).unwrap();
    both.near.successes(1);
    both.far.successes(1);
    assert_eq!(target.into_buffer().unwrap(), pattern(1, 1000));
}

#[test]
fn a_device_goes_when_its_programs_have_let_it_go_and_its_peers_are_told() {
    if !has_devices(4) {
        return;
    }
    let before = count();
    let both = Both::between(Lane::open(0), Lane::open(before - 1), |builder| builder);
    send(&both);
    let switch = Path::new(device(before - 1).sysfs_path()).join("device/remove");
    // The driver waits until nobody has the device open.
    let removal = thread::spawn(move || fs::write(switch, "1").unwrap());
    thread::sleep(Duration::from_millis(300));
    assert!(!removal.is_finished());
    let Both { near, far, near_pair, far_pair, to_far, _to_near } = both;
    drop((far_pair, _to_near, far));
    removal.join().unwrap();
    assert_eq!(count(), before - 1);

    let source = near.memory(vec![1; 64]);
    let bytes = source.segment(..).unwrap();
    let send_there = SendWr::<Srd>::send_with_imm_to(bytes, to_far.destination(), 1);
    near_pair.post_send(&mut [send_there]).unwrap();
    let failure = near.failure();
    // The queue pair went before its device.
    assert_eq!(failure.vendor_status(), VendorStatus::REMOTE_BAD_QUEUE_PAIR, "{failure}");

    fs::write("/sys/bus/pci/rescan", "1").unwrap();
    assert_eq!(count(), before);
    send(&Both::between(near, Lane::open(before - 1), |builder| builder));
}
