//! Bytes captured from the Linux kernel: commands of its initiator, completions and data of its
//! target (version 7.3). What we build is what the kernel builds, and what we read is what it says.

use std::fs;

use nvmeof::{
    Status,
    wire::{
        Command, Completion, Descriptor,
        admin::{self, IdentifyStructure, LogPage},
        command::Opcode,
        discovery::{DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType},
        event::AsynchronousEvent,
        fabrics::{self, Connect, ConnectResult},
        features::{EventConfiguration, Feature, QueueCounts, set_feature},
        identify::IdentifyController,
        identify_namespace::{IdentifyNamespace, NamespaceName, parse_namespace_names},
        nvm::{self, BlockCommand, BlockFlags},
        property::{Capabilities, CommandSets, Configuration, ControllerStatus, Property, Version},
    },
};

/// Bytes written as hexadecimal digits; zeros at the end may be left out.
fn bytes<const N: usize>(digits: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).unwrap_or_default();
    }
    bytes
}

/// Descriptors as the kernel's initiator makes them: the target invalidates the key.
fn keyed(address: u64, length: u32, key: u32) -> Descriptor {
    Descriptor::KeyedInvalidate { address, length, key }
}

fn block(opcode: Opcode, first_block: u64, blocks: u32, data: Descriptor) -> Command {
    let flags = BlockFlags::empty();
    BlockCommand { opcode, namespace: 1, first_block, blocks, flags, reference_tag: 0 }
        .to_command(data)
}

#[test]
fn commands_are_built_as_the_kernel_builds_them() {
    let connect = Connect { queue: 0, entries: 32, keep_alive_milliseconds: 5000 };
    let io_connect = Connect { queue: 1, entries: 128, keep_alive_milliseconds: 0 };
    // The kernel selects all command sets that are there (60h), we the NVM command set (0).
    let enable = u64::from(Configuration::enabled(4096).0);
    let shutdown = u64::from(Configuration::enabled(4096).normal_shutdown().0);
    let log = |page, length, offset| admin::get_log_page(page, length, offset, false);
    for (built, captured) in [
        (
            connect.to_command().data(keyed(0xffff_8880_085e_b400, 1024, 0x0025_5400)).id(0),
            "7f4000000100000000000000000000000000000000000000\
             00b45e088088ffff0004000054250 04f000000001f00000088130000",
        ),
        (
            io_connect.to_command().data(Descriptor::InCapsule { offset: 0, length: 1024 }).id(0),
            "7f4000000100000000000000000000000000000000000000\
             00000000000000000004000000000001000001007f00",
        ),
        (
            fabrics::property_get(Property::CAPABILITIES).id(1),
            "7f4001000400000000000000000000000000000000000000\
             0000000000000000000000000000004001",
        ),
        (
            fabrics::property_set(Property::CONFIGURATION, enable | 0x60).id(0x2000),
            "7f4000200000000000000000000000000000000000000000\
             0000000000000000000000000000004000000000140000006100460000000000",
        ),
        (
            fabrics::property_set(Property::CONFIGURATION, shutdown | 0x60).id(0x3001),
            "7f4001300000000000000000000000000000000000000000\
             0000000000000000000000000000004000000000140000006140460000000000",
        ),
        (
            admin::identify(IdentifyStructure::CONTROLLER, 0)
                .data(keyed(0xffff_8880_0784_a000, 4096, 0x0025_5500))
                .id(0x0a),
            "06400a000000000000000000000000000000000000000000\
             00a084078088ffff001000005525004f01",
        ),
        (
            set_feature(Feature::NUMBER_OF_QUEUES, QueueCounts::both(1).to_dword()).id(0x100a),
            "09400a100000000000000000000000000000000000000000\
             0000000000000000000000000000004007",
        ),
        (
            set_feature(
                Feature::ASYNCHRONOUS_EVENT_CONFIGURATION,
                (EventConfiguration::NAMESPACE_CHANGED | EventConfiguration::ASYMMETRIC_ACCESS)
                    .bits(),
            )
            .id(0x100b),
            "09400b100000000000000000000000000000000000000000\
             000000000000000000000000000000400b00000000090000",
        ),
        (
            admin::asynchronous_event_request().id(0x1f),
            "0c401f000000000000000000000000000000000000000000\
             00000000000000000000000000000040",
        ),
        (
            admin::keep_alive().id(0x3001),
            "1840013000000000000000000000000000000000000000000\
             0000000000000000000000000000040",
        ),
        (
            // The kernel leaves the namespace of the discovery log zero.
            log(LogPage::DISCOVERY, 2048, 1024)
                .namespace(0)
                .data(keyed(0xffff_8880_7fc0_c400, 2048, 0x0003_b500))
                .id(0x1016),
            "0240161000000000000000000000000000000000000000000\
             0c4c07f8088ffff00080000b503004f7000ff010000000000040000",
        ),
        (
            block(Opcode::WRITE, 0x18, 8, Descriptor::InCapsule { offset: 0, length: 4096 })
                .id(0x64),
            "0140640001000000000000000000000000000000000000000\
             0000000000000000010000000000001180000000000000007",
        ),
        (
            block(Opcode::WRITE, 0x180, 128, keyed(0xffff_8880_07e3_0000, 65_536, 0x0046_8200))
                .id(0x65),
            "0140650001000000000000000000000000000000000000000\
             000e3078088ffff00000100824600 4f80010000000000007f",
        ),
        (
            block(Opcode::READ, 0x100, 128, keyed(0xffff_8880_7fb9_a000, 65_536, 0x0046_8300))
                .id(0x66),
            "0240660001000000000000000000000000000000000000000\
             0a0b97f8088ffff00000100834600 4f00010000000000007f",
        ),
        (
            nvm::flush(1).id(0x67),
            "0040670001000000000000000000000000000000000000000\
             0000000000000000000000000000040",
        ),
        (
            block(Opcode::WRITE_ZEROES, 8, 8, Descriptor::NONE).id(0x68),
            "0840680001000000000000000000000000000000000000000\
             0000000000000000000000000000040080000000000000007",
        ),
        (
            nvm::deallocate(1, 1, Descriptor::InCapsule { offset: 0, length: 16 }).id(0x69),
            "0940690001000000000000000000000000000000000000000\
             0000000000000001000000000000001000000000400000 0",
        ),
    ] {
        let captured = bytes::<64>(&captured.replace(' ', ""));
        assert_eq!(built.as_bytes(), &captured, "{built:?}");
        assert_eq!(Command::parse(&captured).unwrap(), built);
    }
}

#[test]
fn completions_are_read_as_the_kernel_means_them() {
    let completion = |digits| Completion::parse(&bytes::<16>(digits)).unwrap();
    let connect = completion("01000000000000000100000000000000");
    assert!(connect.status.is_success());
    assert_eq!(ConnectResult::from_dword(connect.dword0()).controller_id, 1);

    let capabilities = Capabilities(completion("7f00000f200800000200000001000000").result);
    assert_eq!(capabilities.max_queue_entries(), 128);
    assert!(capabilities.has_nvm_command_set() && capabilities.has_io_command_sets());
    assert_eq!(capabilities.command_sets(), CommandSets::ALL);
    assert_eq!(capabilities.timeout(), std::time::Duration::from_millis(7500));

    let status = completion("01000000000000000600000001200000");
    assert!(ControllerStatus(status.dword0()).is_ready());
    let status = completion("08000000000000001900000001400000");
    assert!(ControllerStatus(status.dword0()).is_shutdown_complete());
    let version = completion("00010200000000000700000000300000");
    assert_eq!(Version(version.dword0()), Version::new(2, 1, 0));
    let queues = completion("7f007f00000000000c0000000a100000");
    assert_eq!(QueueCounts::from_dword(queues.dword0()).pairs(), 128);

    let write = completion("00000000000000000500010064000000");
    assert_eq!((write.command_id, write.submission_queue_head), (0x64, 5));
    // Event requests end like this when the controller goes away.
    let event = completion("0000000000000000100000001f000c80");
    assert!(!event.status.is_success() && event.status.is_do_not_retry());
    assert!(event.status.is_same_code(Status::INTERNAL_ERROR));
}

fn page(name: &str) -> Vec<u8> {
    fs::read(format!("{}/tests/captured/{name}.bin", env!("CARGO_MANIFEST_DIR")))
        .unwrap_or_default()
}

#[test]
fn identify_data_is_read_as_the_kernel_means_it() {
    let controller = IdentifyController::parse(&page("identify-controller")).unwrap();
    assert_eq!(controller.serial_number, "34d5a58bc8ae1c3d0f11");
    assert_eq!(controller.model_number, "Linux");
    assert_eq!(controller.subsystem, "nqn.2024-01.org.example:disk");
    assert_eq!(controller.version, Version::new(2, 1, 0));
    assert_eq!(controller.controller_type, 1);
    assert!(controller.sgl_support.has_keyed() && controller.sgl_support.has_offset());
    assert!(controller.optional_commands.has_write_zeroes());
    assert!(controller.optional_commands.has_dataset_management());
    assert!(controller.keep_alive_granularity > 0 && controller.has_volatile_write_cache);
    assert!(controller.in_capsule_bytes() >= 4096);

    let namespace = IdentifyNamespace::parse(&page("identify-namespace")).unwrap();
    assert_eq!(namespace.size_in_blocks, 128 << 11);
    assert_eq!(namespace.format().unwrap().block_bytes(), Some(512));
    assert!(namespace.is_shared && !namespace.is_write_protected);

    let uuid = |last| bytes::<16>(&format!("2cd2c43ba90a45c1a8cd86b33ab273{last:02x}"));
    assert_eq!(
        parse_namespace_names(&page("namespace-descriptors")).unwrap(),
        [NamespaceName::Uuid(uuid(1)), NamespaceName::Nguid(uuid(2)), NamespaceName::CommandSet(0)]
    );
}

#[test]
fn the_discovery_log_is_read_as_the_kernel_means_it() {
    let log = page("discovery-log");
    assert_eq!(DiscoveryHeader::parse(&log).unwrap().records, 2);
    let entries: Vec<DiscoveryEntry> = log[DiscoveryHeader::BYTES..]
        .chunks_exact(DiscoveryEntry::BYTES)
        .map(|entry| DiscoveryEntry::parse(entry).unwrap())
        .collect();
    let kinds: Vec<SubsystemType> = entries.iter().map(|entry| entry.subsystem_type).collect();
    assert_eq!(kinds, [SubsystemType::CURRENT_DISCOVERY, SubsystemType::NVM]);
    for entry in &entries {
        assert_eq!(entry.transport, TransportType::RDMA);
        assert_eq!((entry.address.as_str(), entry.service.as_str()), ("10.99.0.1", "4420"));
    }
    assert_eq!(entries[1].subsystem.as_str(), "nqn.2024-01.org.example:disk");
}

#[test]
fn events_are_told_by_their_number() {
    // As the kernel reports a new namespace: notice, information 0, page 4.
    assert_eq!(AsynchronousEvent::from_dword(0x0004_0002), AsynchronousEvent::NamespaceChanged);
}
