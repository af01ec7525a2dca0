//! A device: where it is, what it can do, and its ports.
#![expect(unsafe_code, reason = "asks a driver whether it takes dma-bufs")]

use std::{fs::File, os::fd::AsFd};

use efa::EfaCapabilities;
use example_support::chain;
use ibverbs::{Access, Context, Device, DeviceSelector, DmaBufPart, Error};
use rustix::io::Errno;

use super::{Check, libraries::Libraries, machine::Machine, pci, port};

/// What else is known when devices are looked at.
#[derive(Debug)]
pub(crate) struct Around<'m> {
    pub(crate) machine: &'m Machine,
    pub(crate) libraries: &'m Libraries,
    pub(crate) wanted: &'m DeviceSelector,
    pub(crate) has_gpus: bool,
}

pub(crate) fn look(around: &Around<'_>, device: &Device) -> Vec<Check> {
    let Around { machine, wanted, .. } = around;
    let name = device.name();
    let context = match device.open() {
        Ok(context) => context,
        // The remedy is part of the error's own words.
        Err(error) => return vec![Check::no(name, "cannot be opened", chain(&error))],
    };
    let function = machine.function(name);
    let mut checks = match &function {
        Some(function) => pci::look(machine, name, function, around.has_gpus),
        None => vec![Check::yes(name, "a device in software, of the kernel")],
    };
    let is_efa = around.libraries.has_efa
        && matches!(efa::query_device(&context), Ok(attributes) if {
            checks.push(fabric(name, attributes.capabilities(), attributes.max_rdma_size()));
            true
        });
    if function.is_some() {
        // To a device in software no other one can write.
        checks.push(dma_bufs(name, &context));
    }
    checks.extend(port::look(machine, &context, wanted.wanted_port(name), is_efa));
    checks
}

/// What an EFA device does besides sends.
fn fabric(name: &str, can: EfaCapabilities, longest: u32) -> Check {
    let what = format!("{name}: EFA");
    let detail = if can.is_empty() { "sends alone".to_owned() } else { can.to_string() };
    if can.contains(EfaCapabilities::RDMA_READ | EfaCapabilities::RDMA_WRITE) {
        return Check::yes(what, format!("{detail}; up to {longest} bytes in a request"));
    }
    Check::note(
        what,
        format!("{detail}, and not both RDMA read and write"),
        "older instance types have no more; a recent one needs a recent driver and rdma-core: update the EFA software",
    )
}

/// Whether the driver takes memory of other devices as dma-bufs.
fn dma_bufs(name: &str, context: &Context) -> Check {
    let what = format!("{name}: dma-bufs");
    let old = "Linux 5.12 or later, and a driver that has it (efa, mlx5; with rdma-core 56 also bnxt_re, irdma); GPU \
               memory needs it, or nvidia_peermem";
    match refusal(context) {
        Err(reason) => Check::note(what, "cannot be tried", reason),
        Ok(Some(code)) if code == Errno::OPNOTSUPP || code == Errno::NOSYS => {
            Check::note(what, "not taken by this driver", old)
        }
        Ok(_) => Check::yes(what, "taken"),
    }
}

/// How the driver refuses something that is no dma-buf: one that takes none does so before it looks.
fn refusal(context: &Context) -> Result<Option<Errno>, String> {
    let file = File::open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    let domain = context.allocate_protection_domain().map_err(|error| chain(&error))?;
    let part = DmaBufPart { fd: file.as_fd(), offset: 0, length: 4096, address: 0 };
    // SAFETY: a file that is no dma-buf is never registered, so that no device gets to any memory by this.
    let outcome = unsafe { domain.register_dma_buf(Vec::<u8>::new(), part, Access::LOCAL_WRITE) };
    match outcome {
        Ok(_) => Ok(None),
        Err(Error::Unsupported { .. }) => Ok(Some(Errno::OPNOTSUPP)),
        Err(error) => Ok(error.errno().map(Errno::from_raw_os_error)),
    }
}
