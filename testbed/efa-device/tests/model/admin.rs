use efa_device::{AdminEffect, AdminFault, Capabilities, DeviceConfig};

use crate::driver::{Network, Payload, crc16, u16_at, u32_at, u64_at};

fn interface(interface_minor: u8) -> DeviceConfig {
    DeviceConfig { interface_minor, ..DeviceConfig::default() }
}

#[test]
fn commands_of_both_versions_are_answered_through_many_laps_of_the_rings() {
    for minor in 1..=3 {
        let network = Network::calm();
        let mut driver = network.device(interface(minor));
        for _ in 0..200 {
            let pd = driver.pd();
            driver.command(15, &Payload::default().u16(0, pd)).expect("a domain");
        }
        assert_eq!(driver.machine.interrupts(0), 400);
    }
}

#[test]
fn a_driver_that_polls_gets_no_interrupts() {
    let network = Network::calm();
    let mut driver = network.device(interface(3));
    driver.write_register(0x4c, 1);
    driver.machine.interrupts(0);
    driver.pd();
    assert_eq!(driver.machine.interrupts(0), 0);
}

#[test]
fn the_first_interface_has_no_checksum_in_its_responses() {
    let network = Network::calm();
    let mut driver = network.device(interface(1));
    driver.submit(14, 0, &[]);
    assert!(driver.response().is_some());
    let acq = driver.aq + 4096;
    assert_eq!(u16_at(&driver.machine.bytes(acq, 64), 4), 0);
}

#[test]
fn a_wrong_checksum_is_malformed_and_not_executed() {
    let network = Network::calm();
    let mut driver = network.device(DeviceConfig { max_protection_domains: 1, ..interface(3) });
    let mut entry = [0; 128];
    entry[2] = 14;
    let checksum = crc16(&entry) ^ 1;
    entry[4..6].copy_from_slice(&checksum.to_le_bytes());
    driver.submit_entry(&entry);
    assert_eq!(driver.response().expect("an answer").1, 4);
    driver.pd();
}

#[test]
fn unknown_opcodes_and_features_are_unsupported() {
    let network = Network::calm();
    let mut driver = network.device(interface(3));
    for opcode in [0, 20, 21, 22, 24, 30, 255] {
        assert_eq!(driver.command(opcode, &[]), Err(3), "opcode {opcode}");
    }
    assert_eq!(driver.command(11, &Payload::default().u8(13, 8)), Err(3));
    assert_eq!(driver.command(12, &Payload::default().u8(13, 1)), Err(3));
    assert_eq!(driver.command(13, &Payload::default().u8(12, 5)), Err(3));
}

#[test]
fn device_attributes_show_what_was_configured() {
    let network = Network::calm();
    let mut driver = network.device(DeviceConfig {
        capabilities: Capabilities { rdma_write: false, ..Capabilities::default() },
        max_rdma_size: 4096,
        max_queue_pairs: 5,
        ..interface(3)
    });
    let gid = driver.gid;
    let attributes = driver.command(11, &Payload::default().u8(13, 1)).expect("attributes");
    assert_eq!(u64_at(&attributes, 0), 0b10_1111_1110, "features 1 to 7 and 9");
    assert_eq!(u64_at(&attributes, 8), 0xffff_f000, "page sizes");
    assert_eq!(u16_at(&attributes, 28), 4, "doorbell BAR");
    assert_eq!(u32_at(&attributes, 32), 0b100_0011_0111, "no RDMA write");
    assert_eq!(u32_at(&attributes, 36), 4096);
    assert_eq!(attributes[40..48], gid[8..], "GUID");
    let network_attributes = driver.command(11, &Payload::default().u8(13, 3)).expect("network");
    assert_eq!(network_attributes[..16], gid);
    let queues = driver.command(11, &Payload::default().u8(13, 4)).expect("queues");
    assert_eq!(u32_at(&queues, 0), 5);
}

#[test]
fn every_mandatory_feature_is_there() {
    let network = Network::calm();
    let mut driver = network.device(interface(3));
    for feature in [1, 2, 3, 4, 5, 7, 9] {
        driver.command(11, &Payload::default().u8(13, feature)).expect("a feature");
    }
    let events = driver.command(11, &Payload::default().u8(13, 2)).expect("event groups");
    assert_eq!(u32_at(&events, 0) & 0x1e, 0x1e);
    assert_eq!(driver.command(12, &Payload::default().u8(13, 2).u32(20, 1 << 7)), Err(5));
}

#[test]
fn the_driver_can_leave_its_host_information() {
    let network = Network::calm();
    let mut driver = network.device(interface(3));
    let information = driver.allocate(512);
    driver.write(information, b"7.3.4");
    let payload = Payload::default().u32(0, 188).u64(4, information).u8(13, 6);
    driver.command_with(12, 2, &payload).expect("no fault");
    assert_eq!(driver.command_with(12, 2, &payload.u64(4, u64::MAX - 8)), Err(5));
}

#[test]
fn the_nth_command_of_an_opcode_fails_as_configured() {
    let network = Network::calm();
    let fault = |opcode, nth, effect| AdminFault { opcode, nth, effect };
    let mut driver = network.device(DeviceConfig {
        admin_faults: vec![
            fault(14, 2, AdminEffect::Status(7)),
            fault(16, 0, AdminEffect::Status(1)),
            fault(5, 1, AdminEffect::Silence),
        ],
        ..interface(3)
    });
    driver.command(14, &[]).expect("no fault");
    assert_eq!(driver.command(14, &[]), Err(7));
    driver.command(14, &[]).expect("no fault");
    assert_eq!(driver.command(16, &[]), Err(1));
    assert_eq!(driver.command(16, &[]), Err(1));
    driver.submit(5, 0, &[0; 20]);
    assert_eq!(driver.response(), None);
}
