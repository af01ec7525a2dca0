//! Against the kernel's NVMe target, which nobody here wrote: `cargo testbed test nvmeof`.

#[path = "kernel_nvmet/authentication.rs"]
mod authentication;
#[path = "kernel_nvmet/blocks.rs"]
mod blocks;
#[path = "kernel_nvmet/devices.rs"]
mod devices;
#[path = "kernel_nvmet/losing.rs"]
mod losing;
#[path = "kernel_nvmet/media.rs"]
mod media;
#[path = "kernel_nvmet/target.rs"]
mod target;
#[path = "kernel_nvmet/tasks.rs"]
mod tasks;
