//! Devices, ports and GIDs in one table.

use std::{error::Error, process::ExitCode};

use clap::Args;
use ibverbs::{Device, DeviceSelector, GidEntry};
use serde_json::{Value, json};

use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Only these devices: NAME or NAME:PORT, several with commas between them, with ^ in front to exclude and = for whole names.
    #[arg(short = 'd', long = "device", env = "RDMA_DEVICE", default_value = "")]
    device: DeviceSelector,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let devices = ibverbs::devices()?;
    let wanted: Vec<&Device> =
        devices.iter().filter(|device| options.device.wants(device.name())).collect();
    if options.json {
        let devices =
            wanted.iter().map(|device| describe(device)).collect::<Result<Vec<_>, _>>()?;
        output::json(&json!(devices));
    } else if wanted.is_empty() {
        output::line("no RDMA device; `rdma4rs doctor` says what is missing");
    } else {
        let head = [
            "device",
            "port",
            "state",
            "link",
            "Mb/s",
            "MTU",
            "GID index",
            "GID",
            "type",
            "interface",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for device in &wanted {
            rows.extend(rows_of(device)?);
        }
        output::table(&rows);
    }
    Ok(if wanted.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// One row for each GID, or one for a port that has none.
fn rows_of(device: &Device) -> Result<Vec<Vec<String>>, Box<dyn Error>> {
    let context = device.open()?;
    let gids = context.query_gid_table()?;
    let mut rows = Vec::new();
    for port in context.ports()? {
        let attributes = context.query_port(port)?;
        let start = vec![
            device.name().to_owned(),
            port.to_string(),
            attributes.state().to_string(),
            attributes.link_layer().to_string(),
            attributes.megabits_per_second().to_string(),
            attributes.active_mtu().to_string(),
        ];
        let mut of_port = gids.iter().filter(|entry| entry.port == port).peekable();
        if of_port.peek().is_none() {
            rows.push(start.clone());
        }
        for entry in of_port {
            let GidEntry { index, gid, kind, .. } = entry;
            let rest = [index.to_string(), gid.to_string(), kind.to_string(), interface(entry)];
            rows.push([start.as_slice(), &rest].concat());
        }
    }
    Ok(rows)
}

/// Everything that is known, for programs.
fn describe(device: &Device) -> Result<Value, Box<dyn Error>> {
    let context = device.open()?;
    let limits = context.query_device()?;
    let gids = context.query_gid_table()?;
    let mut ports = Vec::new();
    for port in context.ports()? {
        let attributes = context.query_port(port)?;
        let of_port = gids.iter().filter(|entry| entry.port == port);
        let gids: Vec<Value> = of_port
            .map(|entry| {
                json!({
                    "index": entry.index,
                    "gid": entry.gid.to_string(),
                    "type": entry.kind.to_string(),
                    "interface": interface(entry),
                })
            })
            .collect();
        ports.push(json!({
            "port": port.get(),
            "state": attributes.state().to_string(),
            "link_layer": attributes.link_layer().to_string(),
            "megabits_per_second": attributes.megabits_per_second(),
            "active_mtu": attributes.active_mtu().bytes(),
            "max_mtu": attributes.max_mtu().bytes(),
            "max_message_length": attributes.max_message_length(),
            "lid": attributes.lid(),
            "gids": gids,
        }));
    }
    Ok(json!({
        "name": device.name(),
        "node": device.node_name(),
        "guid": format!("{:016x}", device.guid()?),
        "firmware": limits.firmware_version(),
        "vendor_id": limits.vendor_id(),
        "vendor_part_id": limits.vendor_part_id(),
        "max_queue_pairs": limits.max_queue_pairs(),
        "max_requests": limits.max_requests(),
        "max_segments": limits.max_segments(),
        "max_completion_entries": limits.max_completion_entries(),
        "max_memory_regions": limits.max_memory_regions(),
        "max_region_length": limits.max_region_length(),
        "ports": ports,
    }))
}

/// The name of the network interface behind a GID.
pub(crate) fn interface(entry: &GidEntry) -> String {
    crate::doctor::sysfs::interface_name(entry.interface_index).unwrap_or_else(|| "-".to_owned())
}
