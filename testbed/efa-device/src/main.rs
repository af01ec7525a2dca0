//! Serves EFA devices to QEMU: one Unix socket per device, all on one network.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use efa_device::{
    AdminEffect, AdminFault, Capabilities, DeviceConfig, Endpoint, FabricConfig, serve,
};

/// EFA devices in software for QEMU (vfio-user-pci), all on one network.
///
/// Give one socket per device; virtual machines that connect to sockets of one run reach each
/// other. DEVICE in an option is the position of its socket, from 0.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Unix sockets to listen on, one per device.
    #[arg(required = true, value_name = "SOCKET")]
    sockets: Vec<PathBuf>,

    /// Devices cannot read remote memory.
    #[arg(long)]
    no_rdma_read: bool,
    /// Devices cannot write remote memory.
    #[arg(long)]
    no_rdma_write: bool,
    /// The number of receiver-not-ready retries cannot be set.
    #[arg(long)]
    no_rnr_retry: bool,
    /// Every write with immediate uses up a receive.
    #[arg(long)]
    no_unsolicited_write: bool,
    /// No completion counters.
    #[arg(long)]
    no_event_counters: bool,
    /// Send requests have 16-bit identifiers only.
    #[arg(long)]
    no_wide_request_ids: bool,
    /// Register interface 0.N: 1, 2 (checksums) or 3 (128-byte commands).
    #[arg(long, value_name = "N")]
    interface: Option<u8>,
    /// Largest RDMA read or write in bytes.
    #[arg(long, value_name = "BYTES")]
    max_rdma_size: Option<u32>,
    /// Queue pairs per device.
    #[arg(long, value_name = "N")]
    max_qp: Option<u32>,
    /// Completion queues per device.
    #[arg(long, value_name = "N")]
    max_cq: Option<u32>,
    /// Memory regions per device.
    #[arg(long, value_name = "N")]
    max_mr: Option<u32>,
    /// Address handles per device.
    #[arg(long, value_name = "N")]
    max_ah: Option<u32>,
    /// Protection domains per device.
    #[arg(long, value_name = "N")]
    max_pd: Option<u32>,
    /// How long the driver waits for an admin command, in tenths of a second, at most 15.
    #[arg(long, value_name = "TENTHS")]
    admin_timeout: Option<u8>,

    /// Refuse an admin command: OPCODE:NTH:STATUS, NTH from 1, 0 for every one; STATUS is 1 to 7,
    /// or "silent" for no answer at all.
    #[arg(long, value_name = "OPCODE:NTH:STATUS")]
    fail: Vec<Fault>,
    /// The device falls silent after so many messages it sent or received.
    #[arg(long, value_name = "DEVICE:MESSAGES")]
    die: Vec<Limit>,
    /// The network to the device breaks after so many messages it received.
    #[arg(long, value_name = "DEVICE:MESSAGES")]
    lose: Vec<Limit>,

    /// Deliver SRD messages in order.
    #[arg(long)]
    in_order: bool,
    /// Longest time in microseconds that a message is held back to be overtaken.
    #[arg(long, value_name = "US")]
    reorder_window: Option<u64>,
    /// Time in microseconds that every message takes.
    #[arg(long, value_name = "US")]
    delay: Option<u64>,
    /// Seed of all random choices.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Every n-th message that needs a receive finds the receiver not ready at first.
    #[arg(long, value_name = "N")]
    rnr_every: Option<u32>,
    /// Time in microseconds before a receiver that was not ready is tried again.
    #[arg(long, value_name = "US")]
    rnr_delay: Option<u64>,
    /// Time in milliseconds that a sender waits for a peer that does not answer.
    #[arg(long, value_name = "MS")]
    response_timeout: Option<u64>,
    /// Drop SRD messages from a device to itself, as some real fleets do.
    #[arg(long)]
    no_loopback: bool,
    /// Destroying a queue pair drops what is posted on it without completions.
    #[arg(long)]
    no_destroy_flush: bool,

    /// Log what is unusual to standard error; twice for everything.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// DEVICE:MESSAGES.
#[derive(Clone, Copy, Debug)]
struct Limit {
    device: usize,
    messages: u64,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, messages) = text.split_once(':').ok_or("expected DEVICE:MESSAGES")?;
        Ok(Self { device: number(device)?, messages: number(messages)? })
    }
}

/// OPCODE:NTH:STATUS.
#[derive(Clone, Copy, Debug)]
struct Fault(AdminFault);

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let &[opcode, nth, status] = parts.as_slice() else {
            return Err("expected OPCODE:NTH:STATUS".to_owned());
        };
        let effect = match status {
            "silent" => AdminEffect::Silence,
            status => AdminEffect::Status(number(status)?),
        };
        Ok(Self(AdminFault { opcode: number(opcode)?, nth: number(nth)?, effect }))
    }
}

fn number<T: FromStr<Err = std::num::ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

impl Options {
    fn fabric(&self) -> FabricConfig {
        let default = FabricConfig::default();
        let micros = |asked: Option<u64>, otherwise| asked.map_or(otherwise, Duration::from_micros);
        FabricConfig {
            reorder: !self.in_order,
            reorder_window: micros(self.reorder_window, default.reorder_window),
            delay: micros(self.delay, default.delay),
            seed: self.seed.unwrap_or(default.seed),
            not_ready_every: self.rnr_every,
            not_ready_delay: micros(self.rnr_delay, default.not_ready_delay),
            response_timeout: self
                .response_timeout
                .map_or(default.response_timeout, Duration::from_millis),
            loopback: !self.no_loopback,
            flush_on_destroy: !self.no_destroy_flush,
            keep_alive: default.keep_alive,
        }
    }

    fn device(&self, number: usize) -> DeviceConfig {
        let default = DeviceConfig::default();
        let limit = |limits: &[Limit]| {
            limits.iter().find(|limit| limit.device == number).map(|limit| limit.messages)
        };
        DeviceConfig {
            capabilities: Capabilities {
                rdma_read: !self.no_rdma_read,
                rdma_write: !self.no_rdma_write,
                rnr_retry: !self.no_rnr_retry,
                unsolicited_write_receive: !self.no_unsolicited_write,
                event_counters: !self.no_event_counters,
                wide_request_ids: !self.no_wide_request_ids,
                ..default.capabilities
            },
            interface_minor: self.interface.unwrap_or(default.interface_minor),
            max_queue_pairs: self.max_qp.unwrap_or(default.max_queue_pairs),
            max_completion_queues: self.max_cq.unwrap_or(default.max_completion_queues),
            max_protection_domains: self.max_pd.unwrap_or(default.max_protection_domains),
            max_address_handles: self.max_ah.unwrap_or(default.max_address_handles),
            max_memory_regions: self.max_mr.unwrap_or(default.max_memory_regions),
            max_rdma_size: self.max_rdma_size.unwrap_or(default.max_rdma_size),
            mtu: default.mtu,
            admin_timeout: self.admin_timeout.unwrap_or(default.admin_timeout),
            admin_faults: self.fail.iter().map(|fault| fault.0).collect(),
            dies_after: limit(&self.die),
            lost_after: limit(&self.lose),
        }
    }
}

/// Writes log lines to standard error.
struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    #[expect(clippy::print_stderr, reason = "the log of a program is its standard error")]
    fn log(&self, record: &log::Record<'_>) {
        if record.target().starts_with("efa_device") {
            eprintln!("efa-device: {}", record.args());
        }
    }

    fn flush(&self) {}
}

#[expect(clippy::print_stderr, reason = "a program tells why it ends")]
fn main() -> ExitCode {
    let options = Options::parse();
    let level = match options.verbose {
        0 => log::LevelFilter::Warn,
        1 => log::LevelFilter::Info,
        _ => log::LevelFilter::Debug,
    };
    if log::set_logger(&Log).is_ok() {
        log::set_max_level(level);
    }
    let endpoints = (0..)
        .zip(&options.sockets)
        .map(|(number, socket)| Endpoint { socket: socket.clone(), config: options.device(number) })
        .collect();
    match serve(options.fabric(), endpoints) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = std::error::Error::source(&error);
            let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("efa-device: {error}{cause}");
            ExitCode::FAILURE
        }
    }
}
