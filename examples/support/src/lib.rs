//! Ranks, rendezvous, test patterns and output for the examples.
//!
//! An example is one function that every rank runs:
//!
//! ```
//! use std::process::ExitCode;
//!
//! use example_support::{AnyError, World, check_pattern, pattern, report, run};
//!
//! fn rank(world: &World) -> Result<(), AnyError> {
//!     let mine = pattern(world.rank() as u64, 64);
//!     let theirs = world.exchange_with_peer(&mine)?;
//!     check_pattern(1 - world.rank() as u64, &theirs)?;
//!     world.say(format!("{} bytes from the other rank are right", theirs.len()));
//!     world.barrier()?;
//!     Ok(())
//! }
//!
//! fn main() -> ExitCode {
//!     report(run(2, rank))
//! }
//! ```
//!
//! Started alone, both ranks are threads of the process. Started by a launcher, each process is the
//! rank that its environment says:
//!
#![doc = include_str!("launchers.md")]

mod connection;
mod device;

mod environment;
mod error;
mod frame;
mod host;
mod host_list;
mod join;
mod launch;
mod link;
mod meeting;
mod notice;
mod pattern;
mod placement;
mod srd;
mod verbs;
mod world;

pub use device::{Found, SOFTWARE, any_device, find_device};
#[cfg(feature = "gpu")]
pub use device::{any_device_for_gpus, find_device_for_gpus};
pub use error::{AnyError, Error, Result, chain};
pub use launch::{launch, report, run, run_by_hand};
pub use pattern::{check_pattern, pattern};
pub use placement::Launcher;
pub use srd::{efa_devices, efa_peer, find_efa_devices};
pub use verbs::{connect, wait};
pub use world::World;
