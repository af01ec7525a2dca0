//! Streams of numbered messages between two processes on two hosts, on devices of the kernel.
//!
//! Each process sleeps until it is woken for completions. No message may be missing, doubled or out of its order, no
//! completion may be lost, and nobody may sleep while there is something to do.
//!
//! `RDMA4RS_STREAM_MESSAGES` is how many messages a stream has, 5,000 if it is not set: an emulated machine takes its
//! time. `cargo testbed run --env RDMA4RS_STREAM_MESSAGES=1000000 -- PROGRAM` makes it a million.

#[cfg(test)]
#[expect(dead_code, reason = "each program uses a part of it")]
#[path = "../common/mod.rs"]
mod common;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod datagrams;
#[cfg(test)]
#[expect(dead_code, reason = "each program uses a part of it")]
#[path = "../common/kernel.rs"]
mod kernel;
#[cfg(test)]
mod shared_receives;
#[cfg(test)]
mod support;
