//! Messages back and forth over a reliable connection. Speaks to `ibv_rc_pingpong` of rdma-core.
//!
//! ```text
//! cargo run --example rc_pingpong -- --ib-dev mlx5_0 --gid-idx 3            the server
//! cargo run --example rc_pingpong -- --ib-dev mlx5_0 --gid-idx 3 SERVER     the client
//! ```

#[path = "pingpong/connection.rs"]
mod connection;
mod pingpong;
#[path = "pingpong/connected.rs"]
mod program;

use std::process::ExitCode;

use ibverbs::{Access, Rc};

fn main() -> ExitCode {
    pingpong::run(|options| program::pingpong::<Rc>(options, Access::empty()))
}
