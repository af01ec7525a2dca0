//! The same between two machines while the network delays, reorders more and finds receivers not ready, and with
//! a small `max_rdma_size`; see `kernel_efa_pair_adverse.efa`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[path = "support/meeting.rs"]
mod meeting;
#[path = "scenarios/pair.rs"]
mod pair;
#[expect(dead_code, unused_imports, reason = "these need few of the tools")]
mod support;
