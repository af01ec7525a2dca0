//! The RDMA devices of this machine, their ports and their GIDs, as `ibv_devinfo` and `show_gids` tell them.
//!
//! ```text
//! cargo run --example devices
//! ```
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that prints what it finds"
)]

use std::{error::Error, process::ExitCode};

use ibverbs::{Device, GidEntry};

fn main() -> ExitCode {
    match show() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("devices: {}", example_support::chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn show() -> Result<(), Box<dyn Error>> {
    let devices = ibverbs::devices()?;
    if devices.is_empty() {
        println!("no RDMA device; a device in software: rdma link add rxe0 type rxe netdev eth0");
    }
    for device in &devices {
        show_device(device)?;
    }
    Ok(())
}

fn show_device(device: &Device) -> Result<(), Box<dyn Error>> {
    let context = device.open()?;
    let limits = context.query_device()?;
    println!("{} ({})", device.name(), device.node_name());
    println!("  GUID {:016x}, firmware {:?}", device.guid()?, limits.firmware_version());
    println!(
        "  at most {} queue pairs of {} requests and {} segments, {} completions a queue, {} regions",
        limits.max_queue_pairs(),
        limits.max_requests(),
        limits.max_segments(),
        limits.max_completion_entries(),
        limits.max_memory_regions()
    );
    let gids = context.query_gid_table()?;
    for port in context.ports()? {
        let attributes = context.query_port(port)?;
        println!(
            "  port {port}: {}, {}, MTU {} of {}, {} Mb/s, lid {}",
            attributes.state(),
            attributes.link_layer(),
            attributes.active_mtu(),
            attributes.max_mtu(),
            attributes.megabits_per_second(),
            attributes.lid()
        );
        for GidEntry { index, gid, kind, .. } in gids.iter().filter(|entry| entry.port == port) {
            println!("    GID {index}: {gid} ({kind})");
        }
    }
    Ok(())
}
