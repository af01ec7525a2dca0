//! What RDMA to memory of GPUs needs: NVIDIA's driver, a way to register, and a card nearby.

use cuda_interop::{Capabilities, Gpu, PciAddress, Topology};
use example_support::chain;

use super::{Check, machine::Machine};

/// The GPUs and cards of the machine; none if their places cannot be read.
pub(crate) fn topology(machine: &Machine) -> Option<Topology> {
    Topology::read_from(&machine.path("/sys")).ok()
}

pub(crate) fn look(machine: &Machine, topology: Option<&Topology>) -> Vec<Check> {
    let what = "memory of GPUs";
    let version = machine.text("/proc/driver/nvidia/version");
    let gpus = topology.map_or(0, |topology| topology.gpus.len());
    let Some(version) = version else {
        return vec![if gpus == 0 {
            Check::skipped(what, "there is no GPU of NVIDIA")
        } else {
            Check::note(
                what,
                format!("{gpus} GPUs of NVIDIA and no driver"),
                "install NVIDIA's driver with the open kernel modules; a container needs `--gpus all`",
            )
        }];
    };
    let mut checks = vec![driver(&version), peer_memory(machine, &version)];
    match Gpu::count() {
        Ok(0) => checks.push(Check::note(
            "CUDA",
            "no GPU to be used",
            "look at CUDA_VISIBLE_DEVICES and `nvidia-smi`",
        )),
        Ok(count) => checks.extend((0..count).flat_map(|ordinal| gpu(topology, ordinal))),
        // The remedy is part of the error's own words.
        Err(error) => checks.push(Check::note("CUDA", "cannot be used", chain(&error))),
    }
    checks
}

/// Whether the kernel module is the open one, which alone exports dma-bufs.
fn is_open(version: &str) -> bool {
    version.contains("Open Kernel Module")
}

/// `580.159.04` of the first line of the driver's own words.
fn release(version: &str) -> &str {
    let line = version.lines().next().unwrap_or_default();
    let is_release = |word: &&str| {
        word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    line.split_whitespace().find(is_release).unwrap_or("of unknown version")
}

fn driver(version: &str) -> Check {
    let (what, release) = ("NVIDIA driver", release(version));
    if is_open(version) {
        return Check::yes(what, format!("{release}, open kernel modules"));
    }
    Check::note(
        what,
        format!("{release}, closed kernel modules, which export no dma-bufs"),
        "install the open ones (driver 515 or later, for Turing and later), or load nvidia_peermem",
    )
}

fn peer_memory(machine: &Machine, version: &str) -> Check {
    let what = "nvidia_peermem";
    if ["nvidia_peermem", "nv_peer_mem"].iter().any(|module| machine.has_module(module)) {
        return Check::yes(what, "loaded");
    }
    if is_open(version) {
        return Check::yes(what, "not loaded, nor needed where dma-bufs work");
    }
    Check::note(what, "not loaded", "`modprobe nvidia_peermem`, after the RDMA drivers are loaded")
}

fn gpu(topology: Option<&Topology>, ordinal: usize) -> Vec<Check> {
    let what = format!("GPU {ordinal}");
    let can = match Gpu::open(ordinal).and_then(|gpu| gpu.capabilities()) {
        Ok(can) => can,
        Err(error) => {
            let remedy =
                "look at `nvidia-smi`: is it in use by another program alone, or out of memory?";
            return vec![Check::note(what, chain(&error), remedy)];
        }
    };
    let mut checks = vec![Check::yes(&what, identity(&can))];
    checks.extend(
        can.lacks().iter().map(|lack| Check::note(&what, format!("no {}", lack.what), lack.remedy)),
    );
    checks.extend(topology.and_then(|topology| nearest(&what, topology, can.pci_address)));
    checks
}

fn identity(can: &Capabilities) -> String {
    let (major, minor) = can.driver_version;
    let dma_buf = if can.dma_buf { ", exports dma-bufs" } else { "" };
    format!("{} at {}, CUDA {major}.{minor}{dma_buf}", can.name, can.pci_address)
}

/// The cards nearest to a GPU.
fn nearest(what: &str, topology: &Topology, gpu: PciAddress) -> Option<Check> {
    let nearest = topology.nearest(gpu);
    let distance = nearest.first()?.distance;
    let names: Vec<&str> = nearest.iter().map(|each| each.device.name.as_str()).collect();
    Some(Check::yes(
        format!("{what}: nearest RDMA devices"),
        format!("{} ({distance})", names.join(", ")),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n\
                        GCC version:  gcc version 13.2.0 (Debian 13.2.0-1)";
    const CLOSED: &str =
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024";

    #[test]
    fn the_driver_is_told_with_its_version_and_kind() {
        assert_eq!(driver(OPEN), Check::yes("NVIDIA driver", "580.159.04, open kernel modules"));
        let check = driver(CLOSED);
        assert_eq!(check.verdict, Verdict::Note);
        assert!(check.detail.starts_with("535.183.01, closed"), "{check:?}");
    }

    #[test]
    fn a_peer_memory_module_is_missed_only_where_dma_bufs_are() {
        let without = Machine::made_of("no-peermem", &[]);
        assert_eq!(peer_memory(&without, OPEN).verdict, Verdict::Yes);
        assert_eq!(peer_memory(&without, CLOSED).verdict, Verdict::Note);
        let with = Machine::made_of("peermem", &[("/sys/module/nvidia_peermem/refcnt", "0")]);
        assert_eq!(peer_memory(&with, CLOSED).verdict, Verdict::Yes);
    }

    #[test]
    fn a_machine_without_gpus_is_not_looked_at_and_one_without_driver_is_noted() {
        let machine = Machine::made_of("no-gpu", &[]);
        let checks = look(&machine, topology(&machine).as_ref());
        assert_eq!(checks[0].verdict, Verdict::Skipped);

        let (gpu, card) = (
            "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0",
            "/sys/devices/pci0000:10/0000:10:02.0/0000:12:00.0",
        );
        let machine = Machine::made_of("gpu-no-driver", &[]);
        machine.add(&format!("{gpu}/class"), b"0x030200\n");
        machine.add(&format!("{gpu}/vendor"), b"0x10de\n");
        machine.add("/sys/bus/pci/devices/0000:11:00.0", format!("->{gpu}").as_bytes());
        machine.add("/sys/class/infiniband/mlx5_0/device", format!("->{card}").as_bytes());
        let topology = topology(&machine).unwrap();
        let checks = look(&machine, Some(&topology));
        assert_eq!(checks[0].detail, "1 GPUs of NVIDIA and no driver");
        let near = nearest("GPU 0", &topology, topology.gpus[0].address).unwrap();
        assert_eq!(near.detail, "mlx5_0 (same host bridge)");
    }
}
