//! Devices, ports and GIDs in one table.

use std::{error::Error, process::ExitCode};

use clap::Args;
use example_support::chain;
use ibverbs::{Device, DeviceSelector, GidEntry};
use serde_json::{Value, json};

use crate::{
    doctor::{
        machine::{self, Machine},
        network::{self, Interface},
    },
    output,
};

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
    let machine = Machine::this();
    let devices = match ibverbs::devices() {
        Ok(devices) => devices,
        Err(error) => {
            let code = output::failure(&error);
            output::note(DOCTOR);
            return Ok(code);
        }
    };
    let wanted: Vec<&Device> =
        devices.iter().filter(|device| options.device.wants(device.name())).collect();
    if wanted.is_empty() {
        let names: Vec<&str> = devices.iter().map(Device::name).collect();
        if names.is_empty() {
            output::note(&format!("no RDMA device; {DOCTOR}"));
        } else {
            let there = names.join(", ");
            output::note(&format!(
                "no RDMA device that -d or RDMA_DEVICE wants; there are {there}"
            ));
        }
    }
    // One that does not answer hides no other.
    let (mut rows, mut objects, mut fails) = (vec![head()], Vec::new(), false);
    for device in &wanted {
        let described = if options.json {
            describe(&machine, device).map(|object| objects.push(object))
        } else {
            rows_of(&machine, device).map(|found| rows.extend(found))
        };
        if let Err(error) = described {
            fails = true;
            let problem = chain(error.as_ref());
            output::note(&format!("{}: {problem}", device.name()));
            objects.push(json!({ "name": device.name(), "error": problem }));
        }
    }
    if options.json {
        output::json(&json!(objects));
    } else if rows.len() > 1 {
        output::table(&rows);
    }
    if fails {
        output::note(DOCTOR);
    }
    Ok(if wanted.is_empty() || fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Where to look on.
const DOCTOR: &str = "`rdma4rs doctor` says what is missing, and what works without a device";

fn head() -> Vec<String> {
    let words =
        ["device", "port", "state", "link", "Mb/s", "MTU", "GID index", "GID", "type", "interface"];
    words.map(str::to_owned).to_vec()
}

/// One row for each GID, or one for a port that has none.
fn rows_of(machine: &Machine, device: &Device) -> Result<Vec<Vec<String>>, Box<dyn Error>> {
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
            let interface = match network::of_gid(machine, device.name(), entry) {
                Some(Interface::Here(name)) => name,
                Some(Interface::Elsewhere(name)) => format!("{name} (another namespace)"),
                None => "-".to_owned(),
            };
            let rest = [index.to_string(), gid.to_string(), kind.to_string(), interface];
            rows.push([start.as_slice(), &rest].concat());
        }
    }
    Ok(rows)
}

/// Everything that is known, for programs.
fn describe(machine: &Machine, device: &Device) -> Result<Value, Box<dyn Error>> {
    let context = device.open()?;
    let limits = context.query_device()?;
    let gids = context.query_gid_table()?;
    let mut ports = Vec::new();
    for port in context.ports()? {
        let attributes = context.query_port(port)?;
        let of_port = gids.iter().filter(|entry| entry.port == port);
        let gids: Vec<Value> = of_port
            .map(|entry| {
                let (interface, here) = match network::of_gid(machine, device.name(), entry) {
                    Some(Interface::Here(name)) => (Some(name), true),
                    Some(Interface::Elsewhere(name)) => (Some(name), false),
                    None => (None, true),
                };
                json!({
                    "index": entry.index,
                    "gid": entry.gid.to_string(),
                    "type": entry.kind.to_string(),
                    "interface": interface,
                    "in_this_namespace": here,
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
    let function = machine.function(device.name());
    let of_function = |file: &str| machine::text(function.as_ref()?.join(file));
    let numa_node = of_function("numa_node").and_then(|text| text.parse::<u32>().ok());
    Ok(json!({
        "name": device.name(),
        "node": device.node_name(),
        "pci_address": function.as_deref().map(machine::name),
        "numa_node": numa_node,
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
