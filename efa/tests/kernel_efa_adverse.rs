//! The same transfers while the network delays, reorders more and finds receivers not ready; see
//! `kernel_efa_adverse.efa`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[path = "scenarios/dma_buf.rs"]
mod dma_buf;
#[expect(dead_code, reason = "nothing fails here")]
mod support;
#[path = "scenarios/transfers.rs"]
mod transfers;
