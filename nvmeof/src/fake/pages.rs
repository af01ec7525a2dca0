//! What the target says about itself.

use crate::wire::{
    block_format::{BlockFormat, ProtectionType},
    features::EventConfiguration,
    identify::{IdentifyController, OptionalCommands, SglSupport},
    identify_namespace::IdentifyNamespace,
    property::Version,
};

pub(super) fn identify() -> IdentifyController {
    let mut controller = IdentifyController::parse(&[0; 4096]).unwrap();
    controller.model_number = "Fake".to_owned();
    // 32 KiB.
    controller.max_transfer_exponent = 3;
    controller.version = Version::new(2, 0, 0);
    controller.events = EventConfiguration::NAMESPACE_CHANGED;
    controller.controller_type = 1;
    controller.keep_alive_granularity = 1;
    controller.max_outstanding_commands = 128;
    controller.namespaces = 1;
    controller.optional_commands = OptionalCommands(0x0d);
    controller.sgl_support = SglSupport(1 | 1 << 2 | 1 << 20);
    // 4 KiB of data in the capsule.
    controller.command_capsule_units = (64 + 4096) / 16;
    controller.response_capsule_units = 1;
    controller
}

pub(crate) fn namespace(
    blocks: u64,
    data_size_exponent: u8,
    metadata_bytes: u16,
    protection: ProtectionType,
) -> IdentifyNamespace {
    let mut namespace = IdentifyNamespace::parse(&[0; 4096]).unwrap();
    namespace.size_in_blocks = blocks;
    namespace.capacity_in_blocks = blocks;
    namespace.protection = protection;
    namespace.formats =
        vec![BlockFormat { metadata_bytes, data_size_exponent, relative_performance: 0 }];
    namespace
}
