//! What a queue pair of SRD does, under the kernel's own driver. The model reorders, as SRD may.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[path = "scenarios/dma_buf.rs"]
mod dma_buf;
#[path = "scenarios/extras.rs"]
mod extras;
#[path = "scenarios/failures.rs"]
mod failures;
#[path = "scenarios/hardware.rs"]
mod hardware;
mod support;
#[path = "scenarios/transfers.rs"]
mod transfers;
