//! What this machine can do about GPU memory and RDMA, with a remedy for each no, and which NIC is near which GPU.
//!
//! ```text
//! cargo run --example gpu_capabilities
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints a report")]

use std::process::ExitCode;

use cuda_interop::{Gpu, Topology};
use example_support::{AnyError, chain};

fn main() -> ExitCode {
    match print_report() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_capabilities: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn print_report() -> Result<(), AnyError> {
    let topology = Topology::read()?;
    let count = Gpu::count()?;
    println!("GPUs: {count}, RDMA devices: {}", topology.rdma_devices.len());
    for ordinal in 0..count {
        let can = Gpu::open(ordinal)?.capabilities()?;
        let (major, minor) = can.driver_version;
        println!(
            "\nGPU {ordinal}: {} at {}, driver for CUDA {major}.{minor}",
            can.name, can.pci_address
        );
        for (what, there) in [
            ("dma-buf export", can.dma_buf),
            ("GPUDirect RDMA", can.gpu_direct_rdma),
            ("... with virtual memory", can.gpu_direct_rdma_with_virtual_memory),
            ("virtual memory management", can.virtual_memory),
            ("memory pools", can.memory_pools),
        ] {
            println!("  {what:<28}{}", if there { "yes" } else { "no" });
        }
        println!("  {:<28}{:?}", "flush of inbound writes", can.flush_options);
        println!("  {:<28}{:?}", "ordered without a flush for", can.writes_ordering);
        println!("  {:<28}{}", "peer memory module", can.peer_memory_module.unwrap_or("none"));
        for lack in can.lacks() {
            println!("  {lack}");
        }
        let ranking = topology.ranking(can.pci_address);
        if ranking.is_empty() {
            println!("  no RDMA device on PCI: see `rdma link` and `lspci`");
        }
        for near in ranking {
            println!("  {:<28}{}", near.device.name, near.distance);
        }
    }
    Ok(())
}
