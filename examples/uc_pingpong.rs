//! Messages back and forth over an unreliable connection. Speaks to `ibv_uc_pingpong` of rdma-core.
//!
//! A message that is lost is not sent again: then both ends wait in vain, and give up.
//!
//! ```text
//! cargo run --example uc_pingpong -- --ib-dev mlx5_0 --gid-idx 3            the server
//! cargo run --example uc_pingpong -- --ib-dev mlx5_0 --gid-idx 3 SERVER     the client
//! ```

#[path = "pingpong/connection.rs"]
mod connection;
mod pingpong;
#[path = "pingpong/connected.rs"]
mod program;

use std::process::ExitCode;

use ibverbs::{Access, Uc};

fn main() -> ExitCode {
    pingpong::run(|options| program::pingpong::<Uc>(options, Access::REMOTE_WRITE))
}
