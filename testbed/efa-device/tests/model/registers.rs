use std::time::Duration;

use efa_device::{DeviceConfig, GuestMemory, Layout};

use crate::driver::{Network, u16_at, u64_at};

#[test]
fn a_readless_read_answers_in_memory_with_the_value_and_the_request_number() {
    let network = Network::calm();
    let mut driver = network.plug(DeviceConfig { interface_minor: 2, ..DeviceConfig::default() });
    assert_eq!(driver.read_register(0), None, "no address was given yet");
    driver.set_read_address();
    assert_eq!(driver.read_register(0x00), Some(2));
    assert_eq!(driver.read_register(0x04), Some(1));
    let caps = driver.read_register(0x08).unwrap();
    assert_ne!(caps >> 1 & 0x1f, 0, "a reset time-out");
    assert_eq!(caps >> 8 & 0xff, 48, "address bits");
    assert_eq!(driver.read_register(0x58), Some(1), "ready");
    assert_eq!(driver.read_register(0xfff0), Some(0));
}

#[test]
fn a_reset_clears_the_read_address_and_shows_its_progress() {
    let network = Network::calm();
    let mut driver = network.plug(DeviceConfig::default());
    driver.set_read_address();
    driver.write_register(0x54, 1);
    assert_eq!(driver.read_register(0x58), None);
    driver.set_read_address();
    assert_eq!(driver.read_register(0x58), Some(1 | 1 << 3));
    driver.write_register(0x54, 0);
    assert_eq!(driver.read_register(0x58), Some(1 | 1 << 4));
}

#[test]
fn a_reset_forgets_every_object() {
    let network = Network::calm();
    let mut driver =
        network.device(DeviceConfig { max_protection_domains: 1, ..Default::default() });
    driver.pd();
    assert_eq!(driver.command(14, &[]), Err(1));
    driver.probe();
    driver.pd();
}

#[test]
fn keep_alives_come_once_a_second_when_enabled_and_wrap_around_the_ring() {
    let network = Network::calm();
    let mut driver = network.device(DeviceConfig::default());
    network.advance(Duration::from_secs(5));
    driver.machine.interrupts(0);
    assert_eq!(driver.machine.bytes(driver.aenq, 64), vec![0; 64], "not enabled");
    enable_keep_alives(&mut driver);
    driver.machine.interrupts(0);
    for event in 0..40_u32 {
        network.advance(Duration::from_secs(1));
        let entry = driver.machine.bytes(driver.aenq + u64::from(event % 16) * 64, 64);
        assert_eq!(u16_at(&entry, 0), 4);
        assert_eq!(u32::from(entry[4]), u32::from(event / 16 % 2 == 0), "phase");
        assert_eq!(driver.machine.interrupts(0), 1);
        driver.write_register(0x40, event + 1);
    }
}

#[test]
fn a_full_event_ring_is_not_overwritten() {
    let network = Network::calm();
    let mut driver = network.device(DeviceConfig::default());
    enable_keep_alives(&mut driver);
    driver.machine.interrupts(0);
    for _ in 0..20 {
        network.advance(Duration::from_secs(1));
    }
    assert_eq!(driver.machine.interrupts(0), 16);
    assert_eq!(driver.machine.bytes(driver.aenq + 4, 1), [1], "phase of the first lap");
}

fn enable_keep_alives(driver: &mut crate::driver::Driver) {
    let payload = crate::driver::Payload::default().u8(13, 2).u32(20, 1 << 4);
    driver.command(12, &payload).expect("enabled");
}

#[test]
fn a_function_reset_revives_a_dead_device() {
    let network = Network::calm();
    let mut driver = network.plug(DeviceConfig { dies_after: Some(0), ..Default::default() });
    driver.set_read_address();
    assert_eq!(driver.read_register(0x00), Some(3));
    driver.reset_function();
    assert_eq!(driver.read_register(0x00), None);
    driver.probe();
}

#[test]
fn bars_are_powers_of_two() {
    for max_queue_pairs in [1, 3, 256, 1000] {
        let layout = Layout::new(&DeviceConfig { max_queue_pairs, ..Default::default() });
        assert!(layout.send_queue_bytes().is_power_of_two());
        assert!(layout.doorbell_bytes().is_power_of_two());
    }
}

#[test]
fn an_answer_outside_memory_is_dropped() {
    let network = Network::calm();
    let driver = network.plug(DeviceConfig::default());
    driver.write_register(0x60, 0xffff_fffc);
    driver.write_register(0x64, 0xffff_ffff);
    driver.write_register(0x5c, 1);
    driver.write(0, &[0; 8]);
    let mut bytes = [0; 8];
    driver.machine.read(0, &mut bytes).unwrap();
    assert_eq!(u64_at(&bytes, 0), 0);
}
